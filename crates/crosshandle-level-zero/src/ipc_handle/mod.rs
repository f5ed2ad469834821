//! The driver's handles for other processes, and their transfer through the broker.
//!
//! A driver's handle contains the number of a descriptor, which means nothing in another process.
//! The broker therefore sends the descriptor itself, and the handle's other bytes as a blob. The
//! importer inserts the number of its own descriptor. If the driver fetches descriptors from the
//! exporting process, the handle also contains the id of that process (see [`layout`]).

mod layout;
mod loaned_descriptor;

pub(super) use loaned_descriptor::{LoanedDescriptor, identity};

use super::driver::{Driver, INTEL_26_18, IPC_HANDLE_BYTES};
use crosshandle_hal::BackendBlob;
use crosshandle_os::descriptor::{self, FileKind};
use crosshandle_types::error::{Error, Result};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"XHZE";

/// The kind of object that a blob describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Subject {
    /// An allocation, identified by the driver's handle.
    Memory = 1,
    /// Physical memory, identified by its descriptor alone.
    Physical = 2,
    /// A counter-based event, identified by the driver's handle.
    Event = 3,
}

/// The contents of a blob.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawBlob {
    magic: [u8; 4],
    subject: U32,
    /// The exporter's driver version. Drivers of different builds cannot read each other's handles.
    driver_version: U32,
    /// The id of the process from which the importer's driver fetches the descriptor, or 0 if it
    /// fetches none.
    fetched_from: U32,
    handle: [u8; IPC_HANDLE_BYTES],
}

/// An exporter's handle as an importer received it.
pub(super) struct ReceivedHandle {
    subject: Subject,
    /// The handle as the exporter created it.
    pub(super) bytes: [u8; IPC_HANDLE_BYTES],
    /// The id of the process in the handle, if the driver itself fetches the descriptor from that
    /// process.
    pub(super) fetched_from: Option<u32>,
}

/// Creates a blob for importers.
pub(super) fn encode(
    driver: &Driver,
    subject: Subject,
    handle: [u8; IPC_HANDLE_BYTES],
) -> BackendBlob {
    let fetched_from = layout::process_in(subject, driver.version, &handle);
    let raw = RawBlob {
        magic: MAGIC,
        subject: (subject as u32).into(),
        driver_version: driver.version.into(),
        fetched_from: fetched_from.unwrap_or(0).into(),
        handle,
    };
    BackendBlob::new(raw.as_bytes())
}

/// Decodes an exporter's blob. Fails if the exporter's driver has another version than this
/// process's driver.
pub(super) fn decode(
    driver: &Driver,
    subject: Subject,
    blob: &BackendBlob,
) -> Result<ReceivedHandle> {
    let raw = RawBlob::ref_from_bytes(blob.as_bytes())
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
    let fetched_from = layout::process_in(subject, driver.version, &raw.handle);
    if fetched_from.unwrap_or(0) != raw.fetched_from.get()
        || layout::has_hidden_process(subject, driver.version, &raw.handle)
    {
        return Err(Error::Protocol("its driver's handle is of another process"));
    }
    Ok(ReceivedHandle {
        subject,
        bytes: raw.handle,
        fetched_from,
    })
}

impl ReceivedHandle {
    /// Returns the descriptor number of the exporter.
    pub(super) fn descriptor(&self) -> RawFd {
        layout::descriptor_in(self.subject, &self.bytes)
    }

    /// Calls `open` with the handle, into which a descriptor number of this process is inserted.
    /// The number differs from the exporter's number, because only then does the driver notice that
    /// it was inserted.
    pub(super) fn open_with<T>(
        &self,
        file: &OwnedFd,
        driver: &Driver,
        open: impl FnOnce([u8; IPC_HANDLE_BYTES]) -> Result<T>,
    ) -> Result<T> {
        let mut bytes = self.bytes;
        if driver.version < INTEL_26_18
            && let Some(process) = layout::place_of_process(self.subject, driver.version, &bytes)
        {
            // These drivers do not check whether a number was inserted. Without a process id to
            // fetch the descriptor from, they treat the number as this process's own.
            bytes[process].fill(0);
        }
        let place = layout::place_of_descriptor(self.subject, &bytes);
        LoanedDescriptor::for_a_call(file, Some(self.descriptor()), |number| {
            bytes[place].copy_from_slice(&number.to_ne_bytes());
            open(bytes)
        })
    }
}

/// A driver's handle with its descriptor, for importers.
pub(super) struct Exported {
    /// The driver's handle.
    pub(super) handle: [u8; IPC_HANDLE_BYTES],
    /// A duplicate of the descriptor in the handle. The driver may close its own descriptor at any
    /// time, but a handle that was given to an importer must stay usable.
    pub(super) file: Arc<OwnedFd>,
}

impl Exported {
    /// Keeps a handle that the driver has just created.
    pub(super) fn new(subject: Subject, handle: [u8; IPC_HANDLE_BYTES]) -> Result<Self> {
        let file = descriptor::duplicate(layout::descriptor_in(subject, &handle));
        let file = file.map_err(Error::os("keeping a descriptor of the driver"))?;
        // A driver that has created no descriptor leaves a zero in its place, which is this
        // process's standard input.
        let kind = descriptor::kind(&file);
        if matches!(
            kind,
            Ok(FileKind::CharacterDevice { .. } | FileKind::Stream)
        ) {
            return Err(Error::Unsupported(
                "the Level Zero driver's handle has no descriptor of memory in it".into(),
            ));
        }
        Ok(Self {
            handle,
            file: Arc::new(file),
        })
    }
}
