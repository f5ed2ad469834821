//! Named objects that the holder on the remote host keeps.

use crate::memory::RemoteMemory;

/// A named object that the holder on the remote host keeps. All of its parts are opened read-only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteName {
    /// The name of the object.
    pub name: String,
    /// The version of the object. The first version is 1.
    pub version: u64,
    /// The parts of the object, each with its own memory.
    pub parts: Vec<RemotePart>,
}

/// A part of a named object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemotePart {
    /// The purpose of the part. The process that handed the part over to the holder has set it.
    pub role: String,
    /// The name of the remote device that contains the part.
    pub device: String,
    /// The memory that contains the part.
    pub memory: RemoteMemory,
}

impl RemoteName {
    /// Returns the first part whose role is `role`, or `None` if there is none.
    pub fn part(&self, role: &str) -> Option<&RemotePart> {
        self.parts.iter().find(|part| part.role == role)
    }
}
