//! Creates well-formed handles with wrong contents. It changes a field and corrects the tag.

/// Offsets of the fields in a handle, in bytes. An event has the fields up to the record.
pub mod at {
    pub const BACKEND: usize = 6;
    pub const FLAGS: usize = 7;
    pub const HOST: usize = 8;
    pub const EXPORTER: usize = 16;
    pub const CONTEXT: usize = 28;
    pub const KEY: usize = 32;
    pub const GENERATION: usize = 48;
    pub const RECORD: usize = 56;
    pub const SEGMENT: usize = 60;
    pub const DEVICE: usize = 64;
    pub const OFFSET: usize = 80;
    pub const LENGTH: usize = 88;
    pub const RESERVED: usize = 96;
}

/// Returns the handle's bytes with `replacement` at `offset`, and a valid tag.
pub fn with(handle: &[u8], offset: usize, replacement: &[u8]) -> Vec<u8> {
    let mut bytes = handle.to_vec();
    bytes[offset..offset + replacement.len()].copy_from_slice(replacement);
    let (contents, tag) = bytes.split_at_mut(handle.len() - 4);
    tag.copy_from_slice(&crc32c::crc32c(contents).to_le_bytes());
    bytes
}
