//! Memory that a process keeps only by its descriptor. This module fetches the memory from its
//! exporter and checks which descriptors can be kept.

use super::identity::Maker;
use crosshandle_handle::{BackendKind, MemoryHandle};
use crosshandle_ipc::broker::protocol::BackendBlob;
use crosshandle_ipc::broker::{Fetched, FileId, Route};
use crosshandle_ipc::{Attachment, BackendObject, First, OpenDeadline, Origin};
use crosshandle_os::descriptor::{self, FileKind};
use crosshandle_os::memfd;
use crosshandle_os::threads::disposer::{Disposal, PeerDescriptor};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time that a holder allows an exporter to send the memory that is handed over. A shorter time
/// fails hand-overs of busy processes. A longer time delays the notice of a process that hangs.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Linux's major number of NVIDIA's character devices. CUDA exports memory by descriptors of such
/// devices.
const NVIDIA_MAJOR: u32 = 195;

/// Memory that a process keeps only by its descriptor.
pub(super) struct HeldSegment {
    file: Arc<OwnedFd>,
    /// Whether it is host memory. For host memory the kernel reports which processes have it open,
    /// and can make read-only descriptors.
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
        backend: BackendKind,
    ) -> Self {
        let is_of_host = is_of_host(&file, &note, backend);
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
    let memory = HeldSegment {
        is_of_host: is_of_host(&file, &note, fields.backend),
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
    check(
        memory.as_fd(),
        memory.len,
        memory.is_of_host,
        fields.backend,
    )?;
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
    deadline: &OpenDeadline,
) -> Result<Arc<dyn BackendObject>> {
    let (memory, _) = fetch(handle, Route::Holder, origin, deadline)?;
    Ok(memory)
}

/// Returns whether a descriptor is host memory that this library made. A software Level Zero driver
/// uses memfds for its own memory, and sends its driver handle as the note.
fn is_of_host(file: impl AsFd, note: &BackendBlob, backend: BackendKind) -> bool {
    let is_of_driver = backend == BackendKind::LevelZero && !note.as_bytes().is_empty();
    !is_of_driver && memfd::is_memory(file)
}

/// Refuses descriptors that do not refer to memory, do not keep it alive, or could not be given to
/// importers. Closing other descriptors may block for as long as their sender likes.
fn check(file: BorrowedFd<'_>, len: u64, is_of_host: bool, backend: BackendKind) -> Result<()> {
    if is_of_host {
        let looked = memfd::check(file).map_err(Error::os("looking at memory"))?;
        return match looked == (len, true) {
            true => Ok(()),
            false => Err(Error::Protocol(
                "its memory has another length than it said, or no seal",
            )),
        };
    }
    let is_memory = match backend {
        BackendKind::Host => false,
        BackendKind::Cuda => {
            let nvidia = FileKind::CharacterDevice {
                major: NVIDIA_MAJOR,
            };
            descriptor::kind(file) == Ok(nvidia) || descriptor::is_dma_buf(file)
        }
        // The memory is that of Intel's driver, or of a software driver. The holder maps neither,
        // and the drivers of importers check their arguments.
        BackendKind::LevelZero => descriptor::is_dma_buf(file) || memfd::is_memory(file),
    };
    match is_memory {
        true => Ok(()),
        false => Err(Error::Protocol(
            "its descriptor is of no memory that outlives it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn memory_of_a_driver_in_software_is_a_drivers() {
        let memory = memfd::create_unsealed("ze_sim", 4096).expect("memory");
        let note = BackendBlob::new(b"a driver's handle");
        assert!(!is_of_host(&memory, &note, BackendKind::LevelZero));
        check(memory.as_fd(), 4096, false, BackendKind::LevelZero).expect("its driver's");
        // A sender that declares another backend gains nothing that its own driver would not give
        // it.
        assert!(is_of_host(&memory, &note, BackendKind::Cuda));
        assert!(is_of_host(
            &memory,
            &BackendBlob::NONE,
            BackendKind::LevelZero
        ));
        let held = HeldSegment::received(
            PeerDescriptor::from(memory),
            4096,
            note,
            BackendKind::LevelZero,
        );
        assert_eq!(held.file_id(), None);
        let file = held.descriptor(Access::ReadOnly).expect("a descriptor");
        rustix::io::pwrite(&file, b"x", 0).expect("as the driver's own, which maps it for writing");
    }

    #[test]
    fn only_descriptors_of_memory_are_kept() {
        let memory = memfd::create("test", 4096).expect("memory");
        let unsealed = memfd::create_unsealed("test", 4096).expect("memory");
        let (socket, _) = crosshandle_os::socket::pair().expect("two sockets");
        let (pipe, _write) = rustix::pipe::pipe().expect("a pipe");
        let open = |path: &str| OwnedFd::from(File::open(path).expect("opened"));
        let program = std::env::current_exe().expect("this program");
        let others = [
            unsealed,
            socket,
            pipe,
            // A file system that the sender controls may serve this file.
            File::open(program).expect("opened").into(),
            open("/dev/null"),
            open("/"),
            open("/proc/self/stat"),
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd"),
        ];
        for backend in [BackendKind::Host, BackendKind::Cuda, BackendKind::LevelZero] {
            check(memory.as_fd(), 4096, true, backend).expect("memory");
            check(memory.as_fd(), 8192, true, backend).expect_err("of another length");
            let none = BackendBlob::NONE;
            for (index, other) in others.iter().enumerate() {
                let is_of_host = is_of_host(other, &none, backend);
                let refused = check(other.as_fd(), 4096, is_of_host, backend);
                assert!(refused.is_err(), "{backend}: {index}");
            }
        }
    }
}
