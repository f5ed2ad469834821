//! What crosses beside a descriptor: the driver's own handle, and whose it is.

use super::driver::{Driver, IPC_HANDLE};
use crate::error::{Error, Result};
use crate::exchange::protocol::Note;
use std::os::fd::{AsRawFd, OwnedFd};
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
    /// The number there of the descriptor that is sent along: who can fetch that may fetch others.
    sent: U32,
    handle: [u8; IPC_HANDLE],
}

/// A handle of the driver's on its way.
pub(super) struct DriverHandleBytes {
    pub(super) bytes: [u8; IPC_HANDLE],
    /// If the driver fetches the descriptor by itself.
    pub(super) fetched_from: Option<FetchedFrom>,
}

/// Where a driver fetches a descriptor.
pub(super) struct FetchedFrom {
    /// The process named in the handle.
    pub(super) pid: u32,
    /// The number there of the descriptor that came along.
    pub(super) sent: u32,
}

/// A note for importers, who get a descriptor of `file` besides.
pub(super) fn encode(
    driver: &Driver,
    subject: Subject,
    handle: [u8; IPC_HANDLE],
    file: Option<&OwnedFd>,
) -> Note {
    let raw = Raw {
        magic: MAGIC,
        subject: (subject as u32).into(),
        driver_version: driver.version.into(),
        fetched_from: match std::process::id() {
            pid if names(&handle, pid) => pid.into(),
            _ => 0.into(),
        },
        sent: file
            .map_or(0, |file| file.as_raw_fd().cast_unsigned())
            .into(),
        handle,
    };
    Note::new(raw.as_bytes())
}

/// What an exporter's note says, if its driver is ours.
pub(super) fn decode(driver: &Driver, subject: Subject, note: &Note) -> Result<DriverHandleBytes> {
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
    let (pid, sent) = (raw.fetched_from.get(), raw.sent.get());
    if pid != 0 && !names(&raw.handle, pid) {
        return Err(Error::Protocol("its driver's handle is of another process"));
    }
    Ok(DriverHandleBytes {
        bytes: raw.handle,
        fetched_from: (pid != 0).then_some(FetchedFrom { pid, sent }),
    })
}

/// Whether a handle has a process's number in it, as those of drivers do that fetch descriptors from
/// the exporting process.
pub(super) fn names(handle: &[u8; IPC_HANDLE], pid: u32) -> bool {
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
