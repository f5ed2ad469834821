//! Bundles whose table lies in shared memory.

use crate::api::context::Context;
use crate::api::memory::Memory;
use crate::error::{Error, Result};
use crate::handle::bundle::{Bundle, BundleError, Unpacked};
use crate::types::{AllocationOptions, MemoryKind};

/// Bytes of table up to which a bundle has its table inside. Halved or doubled: bundles of a hundred
/// arrays need one opening more or less, and are some kilobytes shorter or longer.
const MAX_INLINE_TABLE: usize = 16 << 10;

impl From<BundleError> for Error {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::Handle(error) => Self::Handle(error),
            error => Self::invalid(error.to_string()),
        }
    }
}

/// A bundle that is ready to be sent.
#[derive(Debug)]
pub struct PackedBundle {
    bytes: Vec<u8>,
    table: Option<Memory>,
}

impl PackedBundle {
    /// Returns the bytes to send. They can be unpacked for as long as this lives; and without a
    /// [`table`](Self::table), for as long as the handles in them can be opened.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the shared memory that holds the bundle's table, if it is long.
    pub fn table(&self) -> Option<&Memory> {
        self.table.as_ref()
    }

    /// Returns the bytes, and the memory that the caller keeps for as long as somebody may unpack
    /// them.
    pub fn into_parts(self) -> (Vec<u8>, Option<Memory>) {
        (self.bytes, self.table)
    }
}

impl Context {
    /// Packs a bundle. If it is long, its bytes are a small head only, and the rest lies in memory of
    /// this context that the result keeps. Who unpacks it can read what shares a segment with that
    /// memory; see [`ContextOptions::pooling`](crate::ContextOptions::pooling).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a bundle that no bytes can hold; as
    /// [`allocate`](Self::allocate).
    pub fn pack_bundle(&self, bundle: &Bundle) -> Result<PackedBundle> {
        let table = bundle.encode_table()?;
        if table.len() <= MAX_INLINE_TABLE {
            return Ok(PackedBundle {
                bytes: bundle.encode()?,
                table: None,
            });
        }
        let options = AllocationOptions::new(table.len()).kind(MemoryKind::Host);
        let memory = self.allocate_with(options)?;
        memory.write(0, &table)?;
        Ok(PackedBundle {
            bytes: bundle.encode_head(&memory.handle_read_only()?, &table)?,
            table: Some(memory),
        })
    }

    /// Unpacks a bundle that any process packed. If its table lies in shared memory, it is copied from
    /// there, at most [`MAX_TABLE`](crate::handle::bundle::MAX_TABLE) bytes. No other handle of the
    /// bundle is opened.
    ///
    /// # Errors
    /// [`Error::Handle`] and [`Error::InvalidArgument`] for bytes that are no bundle; for a table in
    /// shared memory as [`open_memory`](Self::open_memory).
    pub fn unpack_bundle(&self, bytes: &[u8]) -> Result<Bundle> {
        let head = match Bundle::decode(bytes)? {
            Unpacked::Whole(bundle) => return Ok(bundle),
            Unpacked::Head(head) => head,
        };
        let memory = self.open_memory_read_only(head.table())?;
        let shared = memory.bytes()?.slice(..head.len())?;
        let mut table = vec![0; head.len()];
        shared.read(0, &mut table)?;
        Ok(head.finish(&table)?)
    }
}
