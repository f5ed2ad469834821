//! The broker carries descriptors between processes and reports deaths.
//!
//! Each exporting process listens on a Unix socket in a directory that both sides know. An importer
//! connects, presents the key from a handle, is checked, and receives descriptors by `SCM_RIGHTS`.
//! No ptrace permission is necessary. Containers only need to share the directory. One connection
//! serves one exporting context while anything of it is open. A hang-up means that the process at
//! the other end has ended.

pub mod address;
mod admission;
mod client;
mod connection;
mod deadline;
mod directory;
mod exports;
mod held;
mod listener;
pub mod protocol;
mod published;
mod reports;
mod sweep;

pub use address::{PeerPolicy, SOCKET_DIR_VARIABLE, socket_directories};
pub use client::Client;
pub use connection::{Connection, Dialogue, FullReply, Route};
pub use deadline::OpenDeadline;
pub use exports::{
    Attached, Exports, Fetch, Fetched, FetchedHandle, FetchedPieces, Newcomer, PieceBatch,
    PieceFile, Supply,
};
pub use held::{
    FileId, HolderDirectory, HolderFiles, MADE_BY_NEW_HOLDERS, control_path, is_holders,
};
pub use listener::{Broker, HeldListener};
pub use published::{hold, local_exports, publish, release_held, withdraw};
pub use sweep::dead_sockets;
