//! Which process is which: process numbers are used again, and a forked child runs the same program.

use serde::{Deserialize, Serialize};

/// A process, told from every other one since the machine was started.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct ProcessIdentity {
    /// Its number in this process's PID namespace.
    pub(super) pid: u32,
    /// When it began, in ticks since the machine did.
    pub(super) started: u64,
}

/// Where a program lies in its process's memory. It is at random for every program that is started, and
/// the same in a forked child.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Image {
    code: u64,
    stack: u64,
    heap: u64,
}

/// What the kernel tells of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) identity: ProcessIdentity,
    /// The process that started it, or has taken it over since.
    parent: u32,
    /// `None` if this process may not see it, and for threads of the kernel.
    pub(super) image: Option<Image>,
    /// Whether its first thread has ended. Others may run still.
    pub(super) has_ended: bool,
    /// Whether it is a thread of the kernel.
    pub(super) is_kernel: bool,
}

impl Status {
    /// Looks at a process; `None` if there is none of this number, or no `/proc`.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &text)
    }

    /// Reads `/proc/PID/stat`: numbers with blanks between, behind a name that may contain anything.
    fn parse(pid: u32, text: &str) -> Option<Self> {
        /// The flag of a thread of the kernel.
        const PF_KTHREAD: u64 = 0x0020_0000;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // As proc_pid_stat(5) counts them; the state is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |index: usize| field(index).and_then(|text| text.parse::<u64>().ok());
        let image = Image {
            code: number(26)?,
            stack: number(28)?,
            heap: number(47)?,
        };
        Some(Self {
            identity: ProcessIdentity {
                pid,
                started: number(22)?,
            },
            parent: number(4)?.try_into().ok()?,
            image: (image.stack != 0).then_some(image),
            has_ended: matches!(field(3)?, "Z" | "X"),
            is_kernel: number(9)? & PF_KTHREAD != 0,
        })
    }
}

/// Returns the processes that have started this one, one by the other: service managers and shells.
pub(super) fn ancestors() -> Vec<u32> {
    let parent = |pid: &u32| Some(Status::of(*pid)?.parent).filter(|parent| *parent != 0);
    std::iter::successors(Some(std::process::id()), parent)
        .skip(1)
        .collect()
}

impl ProcessIdentity {
    /// Returns whether the process has ended with all its threads, so that the kernel has taken back its
    /// memory and its descriptors.
    pub(super) fn has_ended(self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use rustix::io::Errno;
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // First, so that what is looked at next is of this one or a later process.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(errno) => return errno == Errno::SRCH,
        };
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
            return true;
        }
        // Another process has its number if this one began at another time.
        Status::of(self.pid).is_some_and(|now| now.identity != self)
    }
}

/// The process that a program runs in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Asker {
    pub(super) uid: u32,
    /// Its number in this process's PID namespace; 0 if it has none there.
    pub(super) pid: u32,
}

/// The process that made memory. Two are the same if their users and processes are; those that cannot be seen are
/// told apart by their users alone.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Maker {
    pub(super) uid: u32,
    /// `None` for one that cannot be seen from here.
    pub(super) process: Option<ProcessIdentity>,
}

impl Maker {
    /// Looks at the process that has answered. `pid` is 0 if that has no number here.
    pub(super) fn new(uid: u32, pid: u32) -> Self {
        Self {
            uid,
            process: Status::of(pid).map(|status| status.identity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn processes_and_programs_are_told_apart() {
        let own = Status::of(std::process::id()).expect("this process");
        assert!(!own.has_ended && !own.is_kernel && !own.identity.has_ended());
        let image = own.image.expect("it may be seen");
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .expect("a process");
        let other = Status::of(child.id()).expect("a process");
        assert_ne!(other.identity, own.identity);
        let before = ProcessIdentity {
            started: other.identity.started - 1,
            ..other.identity
        };
        assert!(before.has_ended(), "another one has its number");
        assert!(!other.identity.has_ended());
        child.kill().expect("it lives");
        // Not reaped yet, but ended.
        while !other.identity.has_ended() {
            std::thread::yield_now();
        }
        child.wait().expect("our child");
        assert!(other.identity.has_ended());
        assert_ne!(Status::of(std::process::id()).expect("it").image, None);
        assert_eq!(
            Status::of(std::process::id()).expect("it").image,
            Some(image)
        );
        assert_eq!(
            ancestors().first(),
            Some(&std::os::unix::process::parent_id())
        );
    }

    #[test]
    fn names_of_programs_do_not_mislead() {
        let mut fields = vec!["0"; 50];
        (fields[0], fields[19], fields[25]) = ("S", "77", "4096");
        let text = format!("12 (a) Z 9 (b) {}", fields.join(" "));
        let status = Status::parse(12, &text).expect("numbers");
        assert_eq!(
            status.identity,
            ProcessIdentity {
                pid: 12,
                started: 77
            }
        );
        assert!(!status.has_ended && status.image.is_some());
        assert!(Status::parse(12, "12 (a) S 1 2").is_none());
        assert!(Status::parse(12, "").is_none());
    }
}
