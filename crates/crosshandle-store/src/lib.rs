//! Weights that outlive their loader.
//!
//! A model's tensors are loaded once, into one piece of device memory, and handed over to a
//! [holder](crosshandle::holder) under a name. Programs that open the name map that piece once, and find
//! each tensor in it by the *manifest*: names, types, shapes, offsets, and the hash of all bytes. The loader
//! may end; so may the holder, whose successor goes on.
//!
//! ```no_run
//! use crosshandle_store::{LoadOptions, Store};
//!
//! # fn main() -> crosshandle_store::Result<()> {
//! // `crosshandle hold` runs. The loader, once:
//! let store = Store::new();
//! let loaded = store.load("host", &["model.safetensors".into()], &LoadOptions::new())?;
//! println!("{} has the hash {}", loaded.manifest().tensors.len(), loaded.hash());
//! loaded.publish("llama-70b", Default::default())?;
//!
//! // Any number of programs:
//! let model = store.open("llama-70b")?;
//! let tensor = model.tensor("lm_head.weight")?;
//! println!("{} {:?} {:?}", tensor.info.dtype, tensor.info.shape, tensor.bytes()?.len());
//! # Ok(())
//! # }
//! ```
//!
//! # What the hash promises
//! [`Manifest::data_hash`] is the BLAKE3 hash of *all bytes* of the memory, taken while they were loaded, and
//! the [hash](Model::hash) of a model is that of its manifest, with this one in it. So it stands for names,
//! types, shapes and contents. [`Store::open_expecting`] refuses every other model; [`Model::verify`]
//! takes the hash of the memory again, for readers that trust nobody who may write it.
//!
//! # Updates in place
//! [`Store::updater`] writes new contents over those that readers have open, for instance the weights of a
//! policy that learns. While an update is under way the model's bytes are a mixture. A reader asks
//! [`Model::stable`] before it reads, which waits until no update is under way, and [`Model::is_still`] after,
//! or it stops reading between updates by an understanding of its own. A writer that dies in the middle leaves
//! the model *torn*: readers get [`Error::Torn`] until an update has written all of it.
//!
//! # Addresses
//! A model that was opened with [`OpenOptions::agreed_address`] lies at the same addresses in every process that
//! opens it so, unless they are taken there. It can [sleep](Model::sleep): nothing is mapped then, and the
//! addresses stay reserved until it [wakes](Model::wake) at the same place.
//!
//! # Threads
//! All objects are `Send` and `Sync`. Loading and verifying start threads and join them before they return.

#![forbid(unsafe_code)]

mod contents;
mod error;
mod load;
mod manifest;
mod model;
mod moving;
mod placement;
mod resume;
mod source;
mod state;
mod store;
mod tuning;
mod update;

pub use blake3::Hash;
pub use error::{Error, Result};
pub use load::{LoadOptions, LoadTiming, Loaded};
pub use manifest::{Manifest, TensorInfo};
pub use model::{Model, Tensor};
pub use placement::OpenOptions;
pub use resume::Publication;
pub use source::{NamedBytes, NamedRange};
pub use store::Store;
pub use update::{Update, Updater};
