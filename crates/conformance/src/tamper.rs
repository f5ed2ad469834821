//! Creates well-formed handles with wrong contents. It changes a field and corrects the tag.

use crosshandle::handle::HANDLE_SIZE;

/// Offsets of the fields in a handle, in bytes.
pub mod at {
    pub const BACKEND: usize = 6;
    pub const FLAGS: usize = 7;
    pub const HOST: usize = 8;
    pub const EXPORTER: usize = 16;
    pub const CONTEXT: usize = 28;
    pub const KEY: usize = 32;
    pub const DEVICE: usize = 48;
    pub const GENERATION: usize = 64;
    pub const RECORD: usize = 72;
    pub const SEGMENT: usize = 76;
    pub const OFFSET: usize = 80;
    pub const LENGTH: usize = 88;
    pub const RESERVED: usize = 96;
    pub const TAG: usize = 100;
}

/// Returns the handle's bytes with `replacement` at `offset`, and a valid tag.
pub fn with(handle: &[u8; HANDLE_SIZE], offset: usize, replacement: &[u8]) -> [u8; HANDLE_SIZE] {
    let mut bytes = *handle;
    bytes[offset..offset + replacement.len()].copy_from_slice(replacement);
    let tag = crc32c::crc32c(&bytes[..at::TAG]);
    bytes[at::TAG..].copy_from_slice(&tag.to_le_bytes());
    bytes
}
