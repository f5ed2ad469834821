//! Bundles whose table may be in shared memory.

use crate::api::context::Context;
use crate::api::memory::Memory;
use crosshandle_handle::bundle::{Bundle, Unpacked};
use crosshandle_types::error::Result;
use crosshandle_types::{AllocationOptions, MemoryKind};

/// Maximum size of a table inside a bundle, in bytes. A longer table is in shared memory, which
/// makes the bundle a few kilobytes shorter but costs the receiver one more open.
const MAX_INLINE_TABLE: usize = 16 << 10;

/// A bundle that is ready to be sent, with the shared memory of its table if it has any.
#[derive(Debug)]
pub struct PackedBundle {
    bytes: Vec<u8>,
    table: Option<Memory>,
}

impl PackedBundle {
    /// Packs a bundle. The table of a long bundle goes into shared memory of this context, which
    /// the result keeps, and the bytes contain a small head only.
    ///
    /// A process that unpacks such a bundle can also read other memory in the segment of the table.
    /// See [`ContextOptions::pooling`](crate::ContextOptions::pooling).
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the bundle cannot be encoded.
    /// - The errors of [`Context::allocate`].
    pub fn pack(context: &Context, bundle: &Bundle) -> Result<Self> {
        let table = bundle.encode_table()?;
        if table.len() <= MAX_INLINE_TABLE {
            return Ok(Self {
                bytes: bundle.encode()?,
                table: None,
            });
        }
        let options = AllocationOptions::new(table.len()).kind(MemoryKind::Host);
        let memory = context.allocate_with(options)?;
        memory.write(0, &table)?;
        Ok(Self {
            bytes: bundle.encode_head(&memory.handle_read_only()?, &table)?,
            table: Some(memory),
        })
    }

    /// Unpacks a bundle that any process has packed. A table in shared memory is copied, up to
    /// [`MAX_TABLE`](crosshandle_handle::bundle::MAX_TABLE) bytes. No other handle of the bundle is
    /// opened.
    ///
    /// # Errors
    /// - [`Error::Handle`](crate::Error::Handle) and
    ///   [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the bytes are not a bundle.
    /// - The errors of [`Context::open_memory`] for a table in shared memory.
    pub fn unpack(context: &Context, bytes: &[u8]) -> Result<Bundle> {
        let head = match Bundle::decode(bytes)? {
            Unpacked::Whole(bundle) => return Ok(bundle),
            Unpacked::Head(head) => head,
        };
        let memory = context.open_memory_read_only(head.table())?;
        let shared = memory.bytes()?.slice(..head.len())?;
        let mut table = vec![0; head.len()];
        shared.read(0, &mut table)?;
        Ok(head.finish(&table)?)
    }

    /// Returns the bytes to send. If the bundle has a [`table`](Self::table) in shared memory, the
    /// bytes can be unpacked only while this object exists.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the shared memory that contains the bundle's table, or `None` if the table is inside
    /// the bytes.
    pub fn table(&self) -> Option<&Memory> {
        self.table.as_ref()
    }

    /// Returns the bytes to send and the memory of the table. Keep that memory for as long as a
    /// process may unpack the bytes.
    pub fn into_parts(self) -> (Vec<u8>, Option<Memory>) {
        (self.bytes, self.table)
    }
}
