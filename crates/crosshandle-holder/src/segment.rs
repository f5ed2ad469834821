//! Memory that a process keeps only by its descriptor. This module fetches the memory from its
//! exporter and checks which descriptors can be kept.

use super::identity::Maker;
use crosshandle_handle::{BackendKind, MemoryHandle};
use crosshandle_ipc::broker::protocol::BackendBlob;
use crosshandle_ipc::broker::{Fetched, FileId, Route};
use crosshandle_ipc::{Attachment, BackendObject, First, OpenDeadline, Origin};
use crosshandle_os::threads::disposer::{Disposal, PeerDescriptor};
use crosshandle_os::{descriptor, memfd};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time that a holder allows an exporter to send the memory that is handed over. A shorter time
/// fails hand-overs of busy processes. A longer time delays the notice of a process that hangs.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The questions that a process without a driver asks the backends of its build.
#[derive(Clone, Copy)]
pub struct Drivers {
    /// Returns whether a descriptor, with the blob of its exporter, is memory of the backend's
    /// driver that the descriptor keeps alive.
    pub owns_descriptor: fn(BackendKind, BorrowedFd<'_>, &BackendBlob) -> bool,
    /// Returns the reason why the work of a process may continue after the process has ended, if it
    /// may.
    pub work_outlives_process: fn(BackendKind) -> Option<String>,
}

impl fmt::Debug for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drivers").finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Drivers {
    /// No driver, except for memory with a note, which is a driver's.
    pub(super) const OF_TESTS: Self = Self {
        owns_descriptor: |_, _, note| !note.as_bytes().is_empty(),
        work_outlives_process: |_| None,
    };
}

/// Memory that a process keeps only by its descriptor.
pub(super) struct HeldSegment {
    file: Arc<OwnedFd>,
    /// Whether the memory is host memory. For host memory the kernel reports which processes have
    /// it open, and can make read-only descriptors.
    is_of_host: bool,
    /// A read-only descriptor, made when it is first needed.
    read_only: OnceLock<Arc<OwnedFd>>,
    pub(super) len: u64,
    pub(super) note: BackendBlob,
    /// Dropped after the descriptor, which came from a peer. Closing a driver's memory may take
    /// long.
    _disposal: Option<Disposal>,
}

impl HeldSegment {
    /// Keeps memory that a holder has sent to its successor. Any thread may drop it.
    pub(super) fn received(
        file: PeerDescriptor,
        len: u64,
        note: BackendBlob,
        is_of_driver: bool,
    ) -> Self {
        let is_of_host = !is_of_driver && memfd::is_memory(&file);
        let (file, disposal) = match file.into_memory() {
            Ok(memory) => (Arc::new(memory), None),
            Err(file) => {
                let (file, disposal) = file.lend();
                (file, Some(disposal))
            }
        };
        Self {
            file,
            is_of_host,
            read_only: OnceLock::new(),
            len,
            note,
            _disposal: disposal,
        }
    }

    /// Returns the file of the memory. Returns `None` for a driver's memory whose descriptors
    /// cannot be told apart.
    pub(super) fn identity(&self) -> Option<FileId> {
        if !memfd::is_memory(&self.file) && !descriptor::is_dma_buf(&self.file) {
            return None;
        }
        let status = rustix::fs::fstat(&self.file).ok()?;
        Some((status.st_dev, status.st_ino))
    }

    /// Returns the file of host memory. Returns `None` for a driver's memory.
    pub(super) fn file_id(&self) -> Option<FileId> {
        if !self.is_of_host {
            return None;
        }
        let status = rustix::fs::fstat(&self.file).ok()?;
        Some((status.st_dev, status.st_ino))
    }
}

impl AsFd for HeldSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl BackendObject for HeldSegment {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        if access == Access::ReadWrite || !self.is_of_host {
            return Ok(Arc::clone(&self.file));
        }
        if let Some(file) = self.read_only.get() {
            return Ok(Arc::clone(file));
        }
        let file = memfd::reopen_read_only(self.file.as_fd())
            .map_err(Error::os("making a read-only descriptor"))?;
        Ok(Arc::clone(self.read_only.get_or_init(|| Arc::new(file))))
    }

    fn note(&self) -> BackendBlob {
        self.note
    }
}

/// Fetches the memory of a handle from its exporter, or from the holder that has it, as an importer
/// does. Waits until the deadline. Also returns the process that replied.
pub(super) fn fetch(
    handle: &MemoryHandle,
    route: Route,
    origin: &Origin,
    drivers: Drivers,
    deadline: &OpenDeadline,
) -> Result<(Arc<HeldSegment>, Maker)> {
    let fields = handle.fields();
    let access = match fields.read_only {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    let attachment = Attachment::to(&fields, route, origin, First::Memory(access), deadline)?;
    let Fetched {
        file,
        segment: _,
        len,
        note,
        disposal,
    } = attachment.fetch(&fields, access, deadline)?;
    let is_of_driver = (drivers.owns_descriptor)(fields.backend, file.as_fd(), &note);
    let memory = HeldSegment {
        is_of_host: !is_of_driver && memfd::is_memory(&file),
        file,
        read_only: OnceLock::new(),
        len,
        note,
        _disposal: disposal,
    };
    if fields.offset != 0 || fields.length > len {
        return Err(Error::invalid(
            "only memory that has its segment alone can be held, and this one begins within one",
        ));
    }
    check(memory.as_fd(), memory.len, is_of_driver)?;
    let (uid, pid) = attachment.peer();
    Ok((memory.into(), Maker::new(uid, pid)))
}

/// Fetches the memory of a handle from the holder that has it, for a process that keeps it too.
///
/// # Errors
/// Returns the errors of an importer, and an error for memory that cannot be held.
pub fn fetch_held(
    handle: &MemoryHandle,
    origin: &Origin,
    drivers: Drivers,
    deadline: &OpenDeadline,
) -> Result<Arc<dyn BackendObject>> {
    let (memory, _) = fetch(handle, Route::Holder, origin, drivers, deadline)?;
    Ok(memory)
}

/// Refuses descriptors that do not refer to memory, do not keep it alive, or could not be given to
/// importers. Closing other descriptors may block for as long as their sender likes. The holder
/// does not map a driver's memory, and the drivers of importers check their arguments.
fn check(file: BorrowedFd<'_>, len: u64, is_of_driver: bool) -> Result<()> {
    if is_of_driver {
        return Ok(());
    }
    if !memfd::is_memory(file) {
        return Err(Error::Protocol(
            "its descriptor is of no memory that outlives it",
        ));
    }
    match memfd::check(file).map_err(Error::os("looking at memory"))? == (len, true) {
        true => Ok(()),
        false => Err(Error::Protocol(
            "its memory has another length than it said, or no seal",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_driver_is_lent_as_it_came() {
        let memory = memfd::create_unsealed("ze_sim", 4096).expect("memory");
        let note = BackendBlob::new(b"a driver's handle");
        check(memory.as_fd(), 4096, true).expect("its driver's");
        let held = HeldSegment::received(PeerDescriptor::from(memory), 4096, note, true);
        assert_eq!(held.file_id(), None);
        let file = held.descriptor(Access::ReadOnly).expect("a descriptor");
        rustix::io::pwrite(&file, b"x", 0).expect("as the driver's own, which maps it for writing");
    }

    #[test]
    fn host_memory_is_sealed_and_as_long_as_its_sender_says() {
        let memory = memfd::create("test", 4096).expect("memory");
        check(memory.as_fd(), 4096, false).expect("memory");
        check(memory.as_fd(), 8192, false).expect_err("of another length");
        let unsealed = memfd::create_unsealed("test", 4096).expect("memory");
        check(unsealed.as_fd(), 4096, false).expect_err("it could shrink");
        let (pipe, _write) = rustix::pipe::pipe().expect("a pipe");
        check(pipe.as_fd(), 4096, false).expect_err("of no memory");
    }
}
