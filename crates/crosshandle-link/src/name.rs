//! What has a name at the other host's holder.

use crate::memory::RemoteMemory;

/// What has a name at the other host's holder: memory in parts, opened for reading.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteName {
    /// The name.
    pub name: String,
    /// The version, counted from 1.
    pub version: u64,
    /// Its parts.
    pub parts: Vec<RemotePart>,
}

/// A part of what has a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemotePart {
    /// What the part is for, as who handed it over says.
    pub role: String,
    /// The device that it is on, at the other host.
    pub device: String,
    /// Its memory.
    pub memory: RemoteMemory,
}

impl RemoteName {
    /// Returns the part with a role.
    pub fn part(&self, role: &str) -> Option<&RemotePart> {
        self.parts.iter().find(|part| part.role == role)
    }
}
