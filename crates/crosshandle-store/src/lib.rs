//! Model weights that outlive the process that loaded them.
//!
//! A loader loads the tensors of a model once, into one allocation of device memory, and hands this
//! memory over to a [holder](crosshandle::holder) under a name. After that, the loader may end. If
//! the holder ends too, its successor continues. A program that opens the name maps the whole
//! memory once. It finds each tensor by the *manifest*, which contains names, types, shapes,
//! offsets, and the hash of all bytes.
//!
//! ```no_run
//! use crosshandle_store::{LoadOptions, Store};
//!
//! # fn main() -> crosshandle_store::Result<()> {
//! // `crosshandle hold` is running. The loader does this once:
//! let store = Store::new();
//! let loaded = store.load("host", &["model.safetensors".into()], &LoadOptions::new())?;
//! println!("{} has the hash {}", loaded.manifest().tensors.len(), loaded.hash());
//! loaded.publish("llama-70b", Default::default())?;
//!
//! // Any number of programs do this:
//! let model = store.open("llama-70b")?;
//! let tensor = model.tensor("lm_head.weight")?;
//! println!("{} {:?} {:?}", tensor.info.dtype, tensor.info.shape, tensor.bytes()?.len());
//! # Ok(())
//! # }
//! ```
//!
//! # What the hash promises
//! [`Manifest::data_hash`] is the BLAKE3 hash of *all bytes* of the memory, computed during the
//! load. The [hash](Model::hash) of a model is the hash of its manifest, which contains the data
//! hash. So it covers names, types, shapes and contents. [`Store::open_expecting`] refuses a model
//! with another hash. [`Model::verify`] computes the hash of the memory again, for readers that do
//! not trust the processes that may write it.
//!
//! # Updates in place
//! [`Store::updater`] writes new contents over a model that readers have open, for instance the
//! weights of a policy that learns. During an update, the model's bytes are a mixture of old and
//! new contents. Before it reads, a reader calls [`Model::stable`], which waits until no update is
//! in progress. After reading, it calls [`Model::is_still`] to check that no update has started.
//! Alternatively, the program itself ensures that no process reads during an update. A writer that
//! dies during an update leaves the model *torn*. Readers then get [`Error::Torn`] until an update
//! has written the whole model.
//!
//! # Addresses
//! A model opened with [`OpenOptions::agreed_address`] has the same addresses in every process that
//! uses this option, unless the process already uses these addresses. Such a model can
//! [sleep](Model::sleep). While it sleeps, it is unmapped, and its addresses stay reserved until it
//! [wakes](Model::wake) at the same addresses.
//!
//! # Threads
//! All objects are `Send` and `Sync`. Loading and verifying start threads, and join them before
//! they return.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
