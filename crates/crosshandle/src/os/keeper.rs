//! The keeper: a thread that holds this process's proofs of life.
//!
//! A proof of life is a record lock ([`lock`]) on a byte of a file that other processes have too.
//! The kernel takes whoever shares a table of descriptors for one owner of locks. So the locks
//! belong to a thread with a table of its own, which close_range(2) gives it:
//!
//! - Nothing that the rest of the process closes drops one. There may be several copies of this
//!   library in a process (say, in two plug-ins) that don't know of each other but have
//!   descriptors of the same files: each has a keeper, and thereby proofs of its own.
//! - The rest of the process sees the locks as it sees those of other processes, so copies that
//!   share a process find each other alive.
//! - When the process ends, however it ends, or replaces itself by `exec`, the keeper ends and the
//!   kernel drops the locks. A process that is being killed may count as dead a moment before
//!   the last of its threads has stopped.
//! - A forked child has neither the keeper nor its table, so it proves nothing.
//!
//! Where close_range(2) is missing (Linux before 5.9) or forbidden, the locks belong to the process
//! as a whole ([`Keeper::Here`]), and only one copy of this library may share a file with others.

use super::lock::{self, last_error};
use super::process;
use super::socket::{self, Received};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

/// Who holds the locks.
pub(crate) enum Keeper {
    /// The keeper's thread.
    Apart(Mutex<Line>),
    /// The process as a whole.
    Here,
}

/// A line to the keeper's thread; one question at a time.
pub(crate) struct Line {
    socket: OwnedFd,
    /// Files with a lock.
    files: HashSet<File>,
}

/// What is the same for all descriptors of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct File {
    device: u64,
    inode: u64,
}

/// A lock that is held until this is dropped. Where the keeper is not [apart](Keeper::is_apart),
/// until any descriptor of the file is closed.
pub(crate) struct Proof {
    keeper: &'static Keeper,
    file: File,
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();
/// Held while it is started, so that it is started once, and again if that failed.
static STARTING: Mutex<()> = Mutex::new(());

impl Keeper {
    /// The one of this copy of the library, started now if it isn't yet.
    pub(crate) fn get() -> io::Result<&'static Self> {
        if let Some(keeper) = KEEPER.get() {
            return Ok(keeper);
        }
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = KEEPER.get() {
            return Ok(keeper);
        }
        let keeper = Self::start()?;
        Ok(KEEPER.get_or_init(|| keeper))
    }

    /// Whether locks are safe from the rest of the process, and seen by it.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self, Self::Apart(_))
    }

    /// Locks byte `index` of a file. There is one lock a file ([`Errno::EXIST`]: not another
    /// one), so that the keeper can close its descriptor when the lock ends.
    pub(crate) fn hold(&'static self, file: BorrowedFd<'_>, index: u64) -> Result<Proof, Errno> {
        if process::is_forked() {
            // The keeper is the parent's.
            return Err(Errno::PERM);
        }
        let status = fstat(file)?;
        let id = File {
            device: status.st_dev,
            inode: status.st_ino,
        };
        match self {
            Self::Apart(line) => Line::lock(line).hold(file, id, index)?,
            Self::Here => lock::hold(file, index)?,
        }
        Ok(Proof {
            keeper: self,
            file: id,
        })
    }

    fn start() -> io::Result<Self> {
        let (ours, theirs) = socket::pair()?;
        let (started, has_started) = mpsc::channel();
        let number = theirs.as_raw_fd();
        // Without signals: the program's handlers know nothing of this table.
        process::without_signals(|| {
            std::thread::Builder::new()
                .name("crosshandle-life".into())
                .spawn(move || match move_apart(number) {
                    Ok((line, _fillers)) => {
                        let _ = started.send(Ok(()));
                        serve(&line);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                })
        })?;
        match has_started.recv().unwrap_or(Err(Errno::IO)) {
            Ok(()) => Ok(Self::Apart(Mutex::new(Line {
                socket: ours,
                files: HashSet::new(),
            }))),
            // What kernels and sandboxes answer that don't know the call, or the flag.
            Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
                tracing::warn!(%error, "no thread with descriptors of its own");
                Ok(Self::Here)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        let Keeper::Apart(line) = self.keeper else {
            return;
        };
        // The keeper is the parent's.
        if process::is_forked() {
            return;
        }
        if let Err(error) = Line::lock(line).end(self.file) {
            tracing::error!(%error, "a proof of life stays until this process ends");
        }
    }
}

impl Line {
    fn lock(line: &Mutex<Self>) -> MutexGuard<'_, Self> {
        line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a byte of a file locked.
    fn hold(&mut self, descriptor: BorrowedFd<'_>, file: File, index: u64) -> Result<(), Errno> {
        if !self.files.insert(file) {
            return Err(Errno::EXIST);
        }
        let request = Request { file, index };
        let result = self.send(&request, Some(descriptor));
        let result = result.and_then(|()| self.receive());
        if result.is_err() {
            self.files.remove(&file);
        }
        result
    }

    /// Has the lock on a file ended, soon.
    fn end(&mut self, file: File) -> Result<(), Errno> {
        self.files.remove(&file);
        self.send(&Request { file, index: 0 }, None)
    }

    /// Sends once there is room; the keeper does nothing that takes long.
    fn send(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        loop {
            match socket::send(&self.socket, &request.encode(), file) {
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], None);
                }
                result => return result,
            }
        }
    }

    fn receive(&self) -> Result<(), Errno> {
        let mut answer = [0; ANSWER];
        loop {
            return match socket::receive_within(&self.socket, &mut answer) {
                Err(Errno::INTR) => continue,
                Ok(Received::Message(ANSWER, None)) => match i32::from_ne_bytes(answer) {
                    0 => Ok(()),
                    code => Err(Errno::from_raw_os_error(code)),
                },
                Ok(_) => Err(Errno::PIPE),
                Err(error) => Err(error),
            };
        }
    }
}

/// With a descriptor: lock byte `index` of it. Without: end the lock, which is not answered.
struct Request {
    file: File,
    index: u64,
}

/// Bytes in a request, and in its answer: an error code of the system, or 0.
const REQUEST: usize = 24;
const ANSWER: usize = 4;

impl Request {
    fn encode(&self) -> [u8; REQUEST] {
        zerocopy::transmute!([self.file.device, self.file.inode, self.index])
    }

    fn decode(bytes: [u8; REQUEST]) -> Self {
        let [device, inode, index] = zerocopy::transmute!(bytes);
        let file = File { device, inode };
        Self { file, index }
    }
}

/// Gives the calling thread a descriptor table of its own, with nothing in it but descriptor
/// `number` and some that keep the standard streams' places taken.
fn move_apart(number: RawFd) -> Result<(OwnedFd, Vec<OwnedFd>), Errno> {
    close_range(number as u32 + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    // SAFETY: the starter keeps `number` open meanwhile, so it came along to the new table, where
    // nobody else knows of it.
    let line = unsafe { OwnedFd::from_raw_fd(number) };
    if number > 0 {
        close_range(0, number as u32 - 1, 0)?;
    }
    // A message to the standard error stream must not end up in somebody's memory. An epoll
    // instance refuses to be written to.
    let mut fillers = Vec::new();
    loop {
        let filler = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        if filler.as_raw_fd() > libc::STDERR_FILENO {
            return Ok((line, fillers));
        }
        fillers.push(filler);
    }
}

/// close_range(2), by its number, since not every C library has it.
fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: only called by the keeper's thread, which uses no descriptor of others: with the
    // flag the call leaves the shared table alone, and without it finds nothing of others' left.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == -1 {
        return Err(last_error());
    }
    Ok(())
}

/// Answers until the process ends.
fn serve(line: &OwnedFd) {
    // Closing a file's only descriptor here ends its lock.
    let mut held = HashMap::new();
    loop {
        let mut request = [0; REQUEST];
        let result = match socket::receive_within(line, &mut request) {
            Ok(Received::Message(REQUEST, Some(descriptor))) => {
                let request = Request::decode(request);
                let result = lock::hold(descriptor.as_fd(), request.index);
                if result.is_ok() {
                    held.insert(request.file, descriptor);
                }
                result
            }
            Ok(Received::Message(..)) => {
                held.remove(&Request::decode(request).file);
                continue;
            }
            Ok(Received::HungUp) => return,
            Err(Errno::INTR) => continue,
            // There was a descriptor, but no room for it.
            Err(error) => Err(error),
        };
        let code = result.map_or_else(Errno::raw_os_error, |()| 0);
        if socket::send(line, &code.to_ne_bytes(), None).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memfd;
    use rustix::io::dup;

    fn file() -> OwnedFd {
        memfd::create("test", 4096).expect("a file")
    }

    fn hold(file: &OwnedFd, index: u64) -> Result<Proof, Errno> {
        let keeper = Keeper::get().expect("a keeper");
        assert!(keeper.is_apart());
        keeper.hold(file.as_fd(), index)
    }

    /// The bytes of a file that are locked.
    fn held(file: &OwnedFd) -> Vec<u64> {
        // The end of a lock is not answered, but this is, and comes after.
        hold(&self::file(), 0).expect("held");
        let is_held = |index: &u64| lock::is_held(file.as_fd(), *index).expect("an answer");
        (0..4).filter(is_held).collect()
    }

    #[test]
    fn closing_descriptors_drops_no_lock() {
        let file = file();
        let proof = hold(&file, 1).expect("held");
        drop(dup(&file).expect("another descriptor"));
        assert_eq!(held(&file), [1]);
        let other = dup(&file).expect("another descriptor");
        drop(file);
        assert_eq!(held(&other), [1]);
        drop(proof);
        assert_eq!(held(&other), []);
        let _again = hold(&other, 2).expect("held");
        assert_eq!(held(&other), [2]);
    }

    #[test]
    fn what_is_refused_drops_no_lock() {
        let file = file();
        let proof = hold(&file, 1).expect("held");
        let same = dup(&file).expect("another descriptor");
        for index in [1, 2] {
            assert_eq!(hold(&same, index).err(), Some(Errno::EXIST));
        }
        drop(same);
        assert_eq!(held(&file), [1]);
        drop(proof);
        // As another process has it.
        lock::hold(file.as_fd(), 2).expect("locked");
        assert_eq!(hold(&file, 2).err(), Some(Errno::AGAIN));
        assert_eq!(hold(&file, u64::MAX).err(), Some(Errno::INVAL));
        let _proof = hold(&file, 3).expect("held");
        assert_eq!(held(&file), [3]);
    }
}
