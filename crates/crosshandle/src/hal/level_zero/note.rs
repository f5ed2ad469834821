//! What crosses beside a descriptor: the driver's own handle, and whose it is.

use super::driver::{Driver, IPC_HANDLE};
use crate::error::{Error, Result};
use crate::ipc::broker::protocol::BackendBlob;
use std::ops::Range;
use std::os::fd::RawFd;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"XHZE";

/// What a note is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Subject {
    /// An allocation, by the driver's handle.
    Memory = 1,
    /// Physical memory, by its descriptor alone.
    Physical = 2,
    /// A counter-based event, by the driver's handle.
    Event = 3,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    subject: U32,
    /// Drivers of different builds don't understand each other's handles.
    driver_version: U32,
    /// The process that the importer's driver fetches the descriptor from, if it does so by itself;
    /// 0 if not.
    fetched_from: U32,
    handle: [u8; IPC_HANDLE],
}

/// A handle of the driver's on its way.
pub(super) struct DriverHandleBytes {
    pub(super) bytes: [u8; IPC_HANDLE],
    /// The process named in the handle, if the driver fetches the descriptor from there by itself.
    pub(super) fetched_from: Option<u32>,
}

/// A note for importers.
pub(super) fn encode(driver: &Driver, subject: Subject, handle: [u8; IPC_HANDLE]) -> BackendBlob {
    let raw = Raw {
        magic: MAGIC,
        subject: (subject as u32).into(),
        driver_version: driver.version.into(),
        fetched_from: match std::process::id() {
            pid if names(&handle, pid) => pid.into(),
            _ => 0.into(),
        },
        handle,
    };
    BackendBlob::new(raw.as_bytes())
}

/// What an exporter's note says, if its driver is ours.
pub(super) fn decode(
    driver: &Driver,
    subject: Subject,
    note: &BackendBlob,
) -> Result<DriverHandleBytes> {
    let raw = Raw::ref_from_bytes(note.as_bytes())
        .map_err(|_| Error::Protocol("its memory is not a Level Zero driver's"))?;
    if raw.magic != MAGIC || raw.subject != subject as u32 {
        return Err(Error::Protocol("its memory is not a Level Zero driver's"));
    }
    if raw.driver_version != driver.version {
        return Err(Error::Unsupported(format!(
            "the exporter's Level Zero driver has version {:#x}, this process's {:#x}; drivers \
             only understand handles of their own version, so both need the same one",
            raw.driver_version.get(),
            driver.version
        )));
    }
    let fetched_from = Some(raw.fetched_from.get()).filter(|pid| *pid != 0);
    if fetched_from.is_some_and(|pid| !names(&raw.handle, pid)) {
        return Err(Error::Protocol("its driver's handle is of another process"));
    }
    Ok(DriverHandleBytes {
        bytes: raw.handle,
        fetched_from,
    })
}

/// Whether a handle has a process's number in it, as those of drivers do that fetch descriptors from
/// the exporting process.
fn names(handle: &[u8; IPC_HANDLE], pid: u32) -> bool {
    // The first four bytes are the descriptor's number.
    handle[4..]
        .chunks_exact(4)
        .any(|word| word == pid.to_ne_bytes())
}

/// Takes a process's number out of a handle.
pub(super) fn forget_process(handle: &mut [u8; IPC_HANDLE], pid: u32) {
    let mut words = handle[4..].chunks_exact_mut(4);
    if let Some(word) = words.find(|word| **word == pid.to_ne_bytes()) {
        word.fill(0);
    }
}

/// Where in a driver's handle the number of the descriptor is: first, but in events' handles of Intel's
/// drivers from 26.14 to 26.31, which begin with eight zeros instead.
pub(super) fn place_of_number(subject: Subject, handle: &[u8; IPC_HANDLE]) -> Range<usize> {
    match subject {
        Subject::Event if handle[..8] == [0; 8] => 8..12,
        _ => 0..4,
    }
}

/// The number of the descriptor in a driver's handle.
pub(super) fn number_in(subject: Subject, handle: &[u8; IPC_HANDLE]) -> RawFd {
    let place = place_of_number(subject, handle);
    let bytes = handle[place].try_into();
    RawFd::from_ne_bytes(bytes.expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::{IPC_HANDLE, Subject, number_in};

    #[test]
    fn numbers_are_found_where_drivers_have_them() {
        let mut handle = [0; IPC_HANDLE];
        handle[8] = 7;
        assert_eq!(number_in(Subject::Event, &handle), 7);
        // The offset in a pool.
        assert_eq!(number_in(Subject::Memory, &handle), 0);
        handle[0] = 5;
        assert_eq!(number_in(Subject::Event, &handle), 5);
        assert_eq!(number_in(Subject::Memory, &handle), 5);
    }
}
