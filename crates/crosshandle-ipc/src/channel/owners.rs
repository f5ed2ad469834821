//! The processes that have a channel open, and their owner numbers.

use super::ChannelControl;
use crate::liveness::{LivenessLock, LivenessLocks};
use crate::platform::{AtomicU64, Ordering, Os};
use crosshandle_events::channel::{Channel, Peers};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::lock::{self, LockKind};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The byte of the first liveness lock, far beyond the end of the file.
const LOCKS_AT: u64 = 1 << 40;
/// Maximum number of openings of a channel at the same time.
pub(super) const MAX_OWNERS: u16 = 1024;
/// Time in which a process that has lost its lock ends completely, if its end cannot be watched. On
/// an H200 it took up to 80 ms.
pub(super) const UNSEEN_EXIT: Duration = Duration::from_secs(2);

/// The process that took an owner number last.
#[repr(C)]
pub(super) struct OwnerProcess {
    /// The process id in the lower half, and its PID namespace in the upper half. 0 while the other
    /// word changes.
    id: AtomicU64,
    /// The time at which the process started, in clock ticks since boot, or 0 if it is not known.
    started: AtomicU64,
}

/// A copy of an [`OwnerProcess`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnerIdentity {
    pub(super) pid: u32,
    pub(super) namespace: u32,
    pub(super) started: u64,
}

impl ChannelControl {
    /// Returns whether the process with this number has ended. Makes system calls.
    pub fn is_dead(&self, owner: u16) -> bool {
        if owner == self.owner {
            return false;
        }
        // If the kernel cannot tell, the process is treated as alive.
        if lock::is_held(self.file.as_fd(), lock_of(owner)).unwrap_or(true) {
            return false;
        }
        !self.awaits_exit || self.has_ended(owner)
    }

    /// Returns whether the kernel has released all resources of a process that has lost its lock,
    /// such as its access to a device.
    fn has_ended(&self, owner: u16) -> bool {
        let Some(identity) = self.process_of(owner) else {
            return true;
        };
        if let Some(has_ended) = identity.has_ended(self.namespace) {
            return has_ended;
        }
        let mut unseen = self.unseen.lock();
        let now = Instant::now();
        let (noticed, since) = unseen.entry(owner).or_insert((identity, now));
        if *noticed != identity {
            (*noticed, *since) = (identity, now);
        }
        now.duration_since(*since) >= UNSEEN_EXIT
    }

    pub(super) fn process_of(&self, owner: u16) -> Option<OwnerIdentity> {
        self.owners.get(usize::from(owner.checked_sub(1)?))?.load()
    }
}

/// The view of a process that takes a number of a channel.
pub(super) struct View {
    pub(super) words: Channel<'static, Os>,
    pub(super) owners: &'static [OwnerProcess],
    pub(super) namespace: u32,
    pub(super) awaits_exit: bool,
}

impl View {
    /// Takes the first free number, and ends the memberships of the process that had it.
    pub(super) fn take_number(
        &self,
        locks: &'static LivenessLocks,
        file: BorrowedFd<'_>,
    ) -> Result<(u16, LivenessLock)> {
        for (owner, process) in (1_u16..).zip(self.owners) {
            let held = match locks.hold(file, lock_of(owner), LockKind::Exclusive) {
                Ok(held) => held,
                Err(Errno::EXIST | Errno::AGAIN | Errno::ACCESS) => continue,
                Err(errno) => return Err(Error::os("locking a place in a channel")(errno)),
            };
            // The previous process with this number is dead, because its lock was free. A device
            // may still use its slots until it has ended completely.
            if self.awaits_exit && self.has_members(owner) && !process.has_ended(self.namespace) {
                continue;
            }
            self.words.remove_dead(&Former(owner));
            process.store(&OwnerIdentity::own(self.namespace));
            return Ok((owner, held));
        }
        Err(Error::LimitReached {
            what: format!("the channel is open {MAX_OWNERS} times"),
            remedy: "close some of the openings".into(),
        })
    }

    fn has_members(&self, owner: u16) -> bool {
        let mut members = (self.words.living_producers()).chain(self.words.living_consumers());
        members.any(|key| key.owner == owner)
    }
}

impl OwnerProcess {
    pub(super) fn load(&self) -> Option<OwnerIdentity> {
        let id = self.id.load(Ordering::SeqCst);
        let started = self.started.load(Ordering::SeqCst);
        (id != 0 && self.id.load(Ordering::SeqCst) == id).then_some(OwnerIdentity {
            pid: id as u32,
            namespace: (id >> 32) as u32,
            started,
        })
    }

    /// Stores the identity of this process, which has the number.
    pub(super) fn store(&self, identity: &OwnerIdentity) {
        self.id.store(0, Ordering::SeqCst);
        self.started.store(identity.started, Ordering::SeqCst);
        let id = u64::from(identity.namespace) << 32 | u64::from(identity.pid);
        self.id.store(id, Ordering::SeqCst);
    }

    /// Returns whether the process has ended, as far as this process can see.
    fn has_ended(&self, namespace: u32) -> bool {
        self.load()
            .is_none_or(|identity| identity.has_ended(namespace) == Some(true))
    }
}

impl OwnerIdentity {
    /// Returns the identity of this process.
    fn own(namespace: u32) -> Self {
        let pid = process::pid();
        Self {
            pid,
            namespace,
            started: process::start_time(pid).unwrap_or(0),
        }
    }

    /// Opens the process. Fails with [`Errno::SRCH`] if it no longer exists, and with other errors
    /// if it may exist but cannot be opened.
    pub(super) fn pidfd(&self, namespace: u32) -> Result<OwnedFd, Errno> {
        // A process id of another namespace stands for another process here.
        if self.namespace != namespace || namespace == 0 {
            return Err(Errno::XDEV);
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(Errno::INVAL)?, PidfdFlags::empty())?;
        // The descriptor is opened first, so it is of this process or of a later one with its id.
        match process::start_time(self.pid) {
            Some(started) if self.started != 0 && started != self.started => Err(Errno::SRCH),
            _ => Ok(pidfd),
        }
    }

    /// Returns whether the process has ended completely, or `None` if this process cannot see that.
    fn has_ended(&self, namespace: u32) -> Option<bool> {
        match self.pidfd(namespace) {
            Ok(pidfd) => {
                let mut descriptors = [PollFd::new(&pidfd, PollFlags::IN)];
                Some(poll(&mut descriptors, Some(&Timespec::default())) != Ok(0))
            }
            Err(Errno::SRCH) => Some(true),
            Err(_) => None,
        }
    }
}

/// Returns the byte that the process with this number locks.
pub(super) fn lock_of(owner: u16) -> u64 {
    LOCKS_AT + u64::from(owner)
}

/// Returns the identity of this process's PID namespace, or 0 if it is not known.
pub(super) fn pid_namespace() -> u32 {
    stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino as u32)
}

/// The view of a process that has just taken a number: members with this number are dead.
struct Former(u16);

impl Peers for Former {
    fn is_dead(&self, owner: u16) -> bool {
        owner == self.0
    }
}

/// The only opening of a channel in a process whose liveness locks belong to the process as a
/// whole. Closing a second one would drop the locks of the first.
pub(super) struct SoleOpening((u64, u64));

static OPENINGS: PerProcess<Mutex<BTreeSet<(u64, u64)>>> = PerProcess::new(Mutex::default);

impl SoleOpening {
    pub(super) fn begin(file: &OwnedFd) -> Result<Self> {
        let status = fstat(file).map_err(Error::os("looking at a channel"))?;
        let id = (status.st_dev, status.st_ino);
        match OPENINGS.lock().insert(id) {
            true => Ok(Self(id)),
            false => Err(Error::Unsupported(
                "this process already has the channel open, and the system lacks close_range, \
                 without which a process can open a channel only once"
                    .into(),
            )),
        }
    }
}

impl Drop for SoleOpening {
    fn drop(&mut self) {
        OPENINGS.lock().remove(&self.0);
    }
}
