//! Liveness locks show other processes that this process is alive.
//!
//! A liveness lock is a record lock ([`lock`]) on a byte of a file that other processes have too.
//! The kernel treats all threads that share a descriptor table as one owner of locks. The locks
//! therefore belong to the liveness thread, which has its own table
//! ([`descriptor_table`](crosshandle_os::descriptor_table)):
//!
//! - No close in the rest of the process drops a lock. A process may contain several copies of this
//!   library, for example in two plug-ins, that do not know of each other but have descriptors of
//!   the same files. Each copy has its own liveness thread, and thereby its own locks.
//! - The rest of the process sees the locks like those of other processes, so copies that share a
//!   process find each other alive.
//! - When the process ends for any reason, or replaces itself by `exec`, the thread ends and the
//!   kernel drops the locks. A process that is being killed may be treated as dead a moment before
//!   its last thread has stopped.
//! - A forked child has neither the thread nor its table, so it holds no lock.
//!
//! A panic on the thread ends neither the thread nor a lock. The current request gets an error, and
//! the thread keeps its locks. No lock is therefore lost while the process lives.
//!
//! If many bytes of one file are locked, the kernel walks a list at each query. Files that many
//! processes lock are therefore few and short-lived in this crate. The socket directory has one
//! lock for each living exporter, and all of these are shared locks, which do not conflict.
//!
//! If close_range(2) is missing (Linux before 5.9) or forbidden, the locks belong to the process as
//! a whole ([`LivenessLocks::OfProcess`]). Then only one copy of this library may share a file with
//! other processes.

use crosshandle_os::descriptor_table::{self, PrivateTable};
use crosshandle_os::fork::{Birth, PerProcess};
use crosshandle_os::lock::{self, LockKind};
use crosshandle_os::socket::{self, FEW_DESCRIPTORS, Received};
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Deadline, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Interval at which the liveness thread and its callers retry after the system was out of memory.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The owner of this copy's liveness locks.
pub(super) enum LivenessLocks {
    /// The liveness thread.
    OfThread(Mutex<ThreadLink>),
    /// The process as a whole.
    OfProcess,
}

/// A socket to the liveness thread, which serves one request at a time.
pub(super) struct ThreadLink {
    socket: OwnedFd,
    /// Files with locks, and their locked bytes.
    locked: BTreeMap<FileId, BTreeSet<u64>>,
}

/// The identity of a file, which all its descriptors share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

/// A lock that is held until this is dropped. If locks belong to the process as a whole, it is also
/// lost when the process closes any descriptor of the file.
pub(super) struct LivenessLock {
    locks: &'static LivenessLocks,
    file: FileId,
    index: u64,
    birth: Birth,
}

static LOCKS: PerProcess<OnceLock<LivenessLocks>> = PerProcess::new(OnceLock::new);
/// The lock is held while the thread is started, so that only one is started, and a failed start is
/// repeated.
static STARTING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

impl LivenessLocks {
    /// Returns the owner of the locks, and starts the thread if necessary.
    ///
    /// # Errors
    /// Returns [`Error::LimitReached`] if the system has no free thread or descriptor.
    pub(super) fn get() -> Result<&'static Self> {
        if let Some(locks) = LOCKS.get() {
            return Ok(locks);
        }
        let _starting = STARTING.lock();
        if let Some(locks) = LOCKS.get() {
            return Ok(locks);
        }
        let locks = Self::start()?;
        Ok(LOCKS.get_or_init(|| locks))
    }

    /// Returns whether the locks survive when other code of this process closes descriptors, and
    /// whether that code sees them as held.
    pub(super) fn are_separate(&self) -> bool {
        matches!(self, Self::OfThread(_))
    }

    /// Locks byte `index` of a file. Fails with [`Errno::EXIST`] if this copy already holds a lock
    /// on the byte.
    pub(super) fn hold(
        &'static self,
        file: BorrowedFd<'_>,
        index: u64,
        kind: LockKind,
    ) -> Result<LivenessLock, Errno> {
        let status = fstat(file)?;
        let id = FileId {
            device: status.st_dev,
            inode: status.st_ino,
        };
        match self {
            Self::OfThread(link) => link
                .lock()
                .hold(file, Request::new(id, index, Action::Lock(kind)))?,
            Self::OfProcess => lock::hold(file, index, kind)?,
        }
        Ok(LivenessLock {
            locks: self,
            file: id,
            index,
            birth: Birth::here(),
        })
    }

    fn start() -> Result<Self> {
        let starting = Error::os("starting the thread of the liveness locks");
        let (ours, theirs) = socket::pair().map_err(&starting)?;
        let (started, has_started) = mpsc::channel();
        let theirs = Arc::new(theirs);
        let shared = Arc::clone(&theirs);
        ThreadKind::Liveness.start(move || {
            let table = descriptor_table::unshare(shared.as_fd());
            let result = table.as_ref().map(drop).map_err(|errno| *errno);
            // `shared` is a descriptor of the starting thread's table, which this thread no longer
            // uses. The starting thread therefore closes it.
            let _ = started.send((result, shared));
            if let Ok(PrivateTable { kept, .. }) = &table {
                serve(kept);
            }
        })?;
        let result = match has_started.recv() {
            Ok((result, _)) => result,
            Err(_) => Err(Errno::IO),
        };
        match result {
            Ok(()) => Ok(Self::OfThread(Mutex::new(ThreadLink {
                socket: ours,
                locked: BTreeMap::new(),
            }))),
            // Kernels and sandboxes without the call or the flag return these errors.
            Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
                tracing::warn!(%error, "no thread with descriptors of its own");
                Ok(Self::OfProcess)
            }
            Err(error) => Err(starting(error)),
        }
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        let LivenessLocks::OfThread(link) = self.locks else {
            return;
        };
        // The thread belongs to the parent.
        if self.birth.is_inherited() {
            return;
        }
        let released = link.lock().release(self.file, self.index);
        if let Err(error) = released {
            tracing::error!(%error, "a liveness lock stays until this process ends");
        }
    }
}

impl ThreadLink {
    /// Makes the thread lock a byte of the file behind `descriptor`.
    fn hold(&mut self, descriptor: BorrowedFd<'_>, request: Request) -> Result<(), Errno> {
        let bytes = self.locked.entry(request.file).or_default();
        // The thread has a descriptor of each file with locks. A second descriptor would be closed
        // at some time, which would drop all locks on the file.
        let descriptor = bytes.is_empty().then_some(descriptor);
        if !bytes.insert(request.index) {
            return Err(Errno::EXIST);
        }
        let result = self.send(&request, descriptor);
        let result = result.and_then(|()| self.receive());
        if result.is_err() {
            self.forget(request.file, request.index);
        }
        result
    }

    /// Makes the thread release a lock soon.
    fn release(&mut self, file: FileId, index: u64) -> Result<(), Errno> {
        self.forget(file, index);
        self.send(&Request::new(file, index, Action::Unlock), None)
    }

    fn forget(&mut self, file: FileId, index: u64) {
        if let Some(bytes) = self.locked.get_mut(&file) {
            bytes.remove(&index);
            if bytes.is_empty() {
                self.locked.remove(&file);
            }
        }
    }

    /// Sends a request, and waits for room. The wait is short, because the thread does nothing that
    /// takes long.
    fn send(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        loop {
            match socket::send(&self.socket, &request.encode(), file.as_slice()) {
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], None);
                }
                result => return result,
            }
        }
    }

    fn receive(&self) -> Result<(), Errno> {
        let mut answer = [0; ANSWER_BYTES];
        // The wait has no deadline, because after a timeout the next request would receive this
        // reply.
        let received = patiently(|| {
            socket::receive_until::<OwnedFd>(
                &self.socket,
                &mut answer,
                FEW_DESCRIPTORS,
                Deadline::NEVER,
            )
        });
        match received {
            Ok(Received::Message(ANSWER_BYTES, _)) => match i32::from_ne_bytes(answer) {
                0 => Ok(()),
                code => Err(Errno::from_raw_os_error(code)),
            },
            Ok(_) => Err(Errno::PIPE),
            Err(error) => Err(error),
        }
    }
}

/// A request to the thread. The first lock on a file carries a descriptor. A release has no reply.
struct Request {
    file: FileId,
    index: u64,
    action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Lock(LockKind),
    Unlock,
}

/// Size of a request in bytes.
const REQUEST_BYTES: usize = 32;
/// Size of a reply in bytes. A reply is an error code of the system, or 0.
const ANSWER_BYTES: usize = 4;

impl Request {
    fn new(file: FileId, index: u64, action: Action) -> Self {
        Self {
            file,
            index,
            action,
        }
    }

    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let action: u64 = match self.action {
            Action::Lock(LockKind::Exclusive) => 0,
            Action::Lock(LockKind::Shared) => 1,
            Action::Unlock => 2,
        };
        zerocopy::transmute!([self.file.device, self.file.inode, self.index, action])
    }

    fn decode(bytes: [u8; REQUEST_BYTES]) -> Self {
        let [device, inode, index, action]: [u64; 4] = zerocopy::transmute!(bytes);
        let action = match action {
            0 => Action::Lock(LockKind::Exclusive),
            1 => Action::Lock(LockKind::Shared),
            _ => Action::Unlock,
        };
        Self::new(FileId { device, inode }, index, action)
    }
}

/// A file with locks, as the thread keeps it. Closing its only descriptor drops all locks.
struct LockedFile {
    descriptor: OwnedFd,
    bytes: BTreeSet<u64>,
}

/// Replies to requests until the process ends. Runs on the liveness thread.
fn serve(socket: &OwnedFd) {
    // A hash map would need random bytes, and would panic if they are missing.
    let mut held = BTreeMap::new();
    loop {
        let served = catch_unwind(AssertUnwindSafe(|| serve_one(socket, &mut held)));
        let is_over = match served {
            Ok(is_over) => is_over,
            // The thread still holds its locks, and the waiting caller gets a reply.
            Err(_) => answer(socket, Err(Errno::IO)),
        };
        if is_over {
            return;
        }
    }
}

/// Handles one request. Returns whether it was the last.
fn serve_one(socket: &OwnedFd, held: &mut BTreeMap<FileId, LockedFile>) -> bool {
    let mut request = [0; REQUEST_BYTES];
    let received = patiently(|| {
        socket::receive_until::<OwnedFd>(socket, &mut request, FEW_DESCRIPTORS, Deadline::NEVER)
    });
    let result = match received {
        Ok(Received::Message(_, mut descriptors)) => {
            let request = Request::decode(request);
            #[cfg(test)]
            assert!(request.index != tests::FATAL_INDEX, "as the test wants");
            let Action::Lock(kind) = request.action else {
                unlock(held, &request);
                return false;
            };
            lock(held, &request, kind, descriptors.pop())
        }
        // The request carried a descriptor, but there was no room for it.
        Err(Errno::MFILE) => match patiently(|| socket::drop_message(socket)) {
            Ok(()) => Err(Errno::MFILE),
            Err(_) => return true,
        },
        // The process is ending, because no other process writes to this socket.
        Ok(_) | Err(_) => return true,
    };
    answer(socket, result)
}

fn lock(
    held: &mut BTreeMap<FileId, LockedFile>,
    request: &Request,
    kind: LockKind,
    descriptor: Option<OwnedFd>,
) -> Result<(), Errno> {
    let index = request.index;
    if let Some(file) = held.get_mut(&request.file) {
        lock::hold(file.descriptor.as_fd(), index, kind)?;
        file.bytes.insert(index);
        return Ok(());
    }
    let descriptor = descriptor.ok_or(Errno::BADF)?;
    lock::hold(descriptor.as_fd(), index, kind)?;
    let bytes = BTreeSet::from([index]);
    held.insert(request.file, LockedFile { descriptor, bytes });
    Ok(())
}

fn unlock(held: &mut BTreeMap<FileId, LockedFile>, request: &Request) {
    let Some(file) = held.get_mut(&request.file) else {
        return;
    };
    file.bytes.remove(&request.index);
    if file.bytes.is_empty() {
        held.remove(&request.file);
    } else {
        // It cannot fail for a byte that was locked before.
        let _ = lock::release(file.descriptor.as_fd(), request.index);
    }
}

/// Sends a reply. Returns whether the receiver no longer exists.
fn answer(socket: &OwnedFd, result: Result<(), Errno>) -> bool {
    let code = result.map_or_else(Errno::raw_os_error, |()| 0);
    patiently(|| socket::send(socket, &code.to_ne_bytes(), &[])).is_err()
}

/// Retries `f` until the system has memory for it, and room in the socket between the two threads.
/// A failure would end the thread, or leave a reply to the next request.
fn patiently<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_os::memfd;
    use rustix::io::dup;
    use std::fs::File;

    /// A byte whose lock makes the thread panic.
    pub(super) const FATAL_INDEX: u64 = 0x7fff_0000_dead_beef;

    fn file() -> OwnedFd {
        memfd::create("test", 4096).expect("a file")
    }

    fn hold(file: &OwnedFd, index: u64) -> Result<LivenessLock, Errno> {
        let locks = LivenessLocks::get().expect("a thread");
        assert!(locks.are_separate());
        locks.hold(file.as_fd(), index, LockKind::Exclusive)
    }

    /// Returns the locked bytes of a file.
    fn held(file: &OwnedFd) -> Vec<u64> {
        // A release has no reply, but this lock has one and comes after it.
        hold(&self::file(), 0).expect("held");
        let is_held = |index: &u64| lock::is_held(file.as_fd(), *index).expect("an answer");
        (0..4).filter(is_held).collect()
    }

    #[test]
    fn closing_descriptors_drops_no_lock() {
        let file = file();
        let lock = hold(&file, 1).expect("held");
        drop(dup(&file).expect("another descriptor"));
        assert_eq!(held(&file), [1]);
        let other = dup(&file).expect("another descriptor");
        drop(file);
        assert_eq!(held(&other), [1]);
        drop(lock);
        assert!(held(&other).is_empty());
        let _again = hold(&other, 2).expect("held");
        assert_eq!(held(&other), [2]);
    }

    #[test]
    fn what_is_refused_drops_no_lock() {
        let file = file();
        let lock = hold(&file, 1).expect("held");
        let same = dup(&file).expect("another descriptor");
        assert_eq!(hold(&same, 1).err(), Some(Errno::EXIST));
        drop(same);
        assert_eq!(held(&file), [1]);
        drop(lock);
        // A lock of this process looks like another process's to the liveness thread.
        lock::hold(file.as_fd(), 2, LockKind::Exclusive).expect("locked");
        assert_eq!(hold(&file, 2).err(), Some(Errno::AGAIN));
        assert_eq!(hold(&file, u64::MAX).err(), Some(Errno::INVAL));
        let _lock = hold(&file, 3).expect("held");
        assert_eq!(held(&file), [3]);
    }

    #[test]
    fn each_lock_on_a_file_ends_by_itself() {
        let file = file();
        let same = dup(&file).expect("another descriptor");
        let first = hold(&file, 1).expect("held");
        let second = hold(&same, 2).expect("held");
        drop(same);
        assert_eq!(held(&file), [1, 2]);
        drop(first);
        assert_eq!(held(&file), [2]);
        let _first = hold(&file, 1).expect("held again");
        drop(second);
        assert_eq!(held(&file), [1]);
    }

    #[test]
    fn a_panic_on_the_thread_drops_no_lock() {
        let file = file();
        let _lock = hold(&file, 1).expect("held");
        assert_eq!(hold(&self::file(), FATAL_INDEX).err(), Some(Errno::IO));
        assert_eq!(held(&file), [1]);
    }

    #[test]
    fn a_directory_can_be_locked_by_several() {
        let name = format!("xh-lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory");
        let directory = File::open(&path).expect("opened");
        let locks = LivenessLocks::get().expect("a thread");
        lock::hold(directory.as_fd(), 7, LockKind::Shared).expect("as another process");
        let held = locks.hold(directory.as_fd(), 7, LockKind::Shared);
        let _held = held.expect("locked");
        // Opening and closing the directory, as every listing does, drops no lock.
        assert_eq!(std::fs::read_dir(&path).expect("listed").count(), 0);
        let again = File::open(&path).expect("opened");
        assert_eq!(lock::is_held(again.as_fd(), 7), Ok(true));
        std::fs::remove_dir(&path).expect("empty");
    }
}
