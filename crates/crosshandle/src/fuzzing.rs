//! The private parts that fuzz targets need. Exists in builds with `--cfg fuzzing` alone.

use crate::ipc::broker::protocol::{Reply, Request};

/// Reads bytes as a broker reads an importer's request; the bytes of what was understood.
pub fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    let (request, serial) = Request::decode(bytes).ok()?;
    Some(request.encode(serial).to_vec())
}

/// Reads bytes as an importer reads a broker's reply; the bytes of what was understood.
pub fn reply(bytes: &[u8]) -> Option<Vec<u8>> {
    let (reply, serial) = Reply::decode(bytes).ok()?;
    Some(reply.encode(serial).to_vec())
}
