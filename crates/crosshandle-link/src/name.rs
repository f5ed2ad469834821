//! Named objects of the remote host's holder.

use crate::memory::RemoteMemory;

/// A named object of the remote host's holder: parts of memory, opened for reading.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteName {
    /// The name.
    pub name: String,
    /// The version of the object, counted from 1.
    pub version: u64,
    /// The parts of the object.
    pub parts: Vec<RemotePart>,
}

/// A part of a named object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemotePart {
    /// The purpose of the part, as set by the process that handed it to the holder.
    pub role: String,
    /// The device of the remote host that has the part.
    pub device: String,
    /// The memory of the part.
    pub memory: RemoteMemory,
}

impl RemoteName {
    /// Returns the part with this role.
    pub fn part(&self, role: &str) -> Option<&RemotePart> {
        self.parts.iter().find(|part| part.role == role)
    }
}
