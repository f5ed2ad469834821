//! Holders: processes that keep shared memory after the processes that exported it have ended.
//!
//! A program hands an allocation over to a holder with
//! [`Memory::hand_over`](crate::Memory::hand_over). From then on the holder serves the memory.
//! Handles that were made earlier stay valid, even for processes that have never opened one, and
//! the exporter may end. The holder keeps only descriptors and has no driver context. The kernel
//! and the driver keep the memory for as long as a descriptor of it exists.
//!
//! A holder consists of two processes. The second one, the *successor*, has duplicates of all
//! descriptors and a copy of the table of names. When the first process dies for any reason, the
//! successor continues under the same names and starts a successor of its own. Processes that have
//! the memory open notice nothing.
//!
//! ```no_run
//! use crosshandle::holder::Holder;
//! use crosshandle::{Context, ContextOptions, Device};
//!
//! # fn main() -> crosshandle::Result<()> {
//! // `crosshandle hold` runs. The loader:
//! let holder = Holder::new();
//! let options = ContextOptions::new().pooling(false);
//! let context = Context::with_options(&Device::find("host")?, options)?;
//! let weights = context.allocate(1 << 30)?;
//! weights.hand_over(&holder, "weights")?;
//! // It may end now. Another program:
//! let context = Context::new(&Device::find("host")?)?;
//! let held = holder.open("weights")?;
//! let handle = held.parts[0].read_only.expect("it was asked for");
//! let weights = context.open_memory_read_only(&handle)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/holder.md` in the repository describes the protocol, the failures that a holder survives,
//! and measurements.

mod client;

pub use client::{Backup, ClaimOptions, HandedOver, HoldOptions, Holder, Lease};
pub use crosshandle_holder::message::{HeldName, HeldPart, Recovered, Status};
pub use crosshandle_holder::{LogLevel, ServeOptions};
pub use crosshandle_types::error::HolderFault;

use crate::backends::DRIVERS;
use crosshandle_types::error::Result;

/// Runs a holder on the calling thread until `Holder::stop` or
/// [`ServeOptions::stop_when_readable`] ends it. `ready` is called once programs can send requests.
///
/// A service manager may pass the socket that receives requests. The holder uses the first
/// descriptor that the variables `LISTEN_FDS` and `LISTEN_PID` describe.
///
/// # Errors
/// - [`Error::Holder`](crate::Error::Holder) if the directory already has a running holder.
/// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the directory cannot be used, or
///   is removed and not restored.
/// - Limits of the system also cause errors.
pub fn serve(options: ServeOptions, ready: impl FnOnce()) -> Result<()> {
    crosshandle_holder::serve(options, DRIVERS, ready)
}

/// Follows the holder that started this process, on the calling thread, and replaces it when it
/// dies.
///
/// `ready` is called when this process takes over. The function returns without taking over if the
/// holder died before it had sent enough for a takeover. After a takeover it returns when this
/// process is told to end.
///
/// This process starts a session of its own, unless it already leads its process group. A terminal
/// that closes or sends an interrupt therefore signals only the holder. A holder that ends this way
/// also ends its successor.
///
/// # Errors
/// Returns an error if the holder runs a release that this process cannot follow, or if a limit of
/// the system is reached.
pub fn serve_as_successor(options: ServeOptions, ready: impl FnOnce()) -> Result<()> {
    crosshandle_holder::serve_as_successor(options, DRIVERS, ready)
}
