//! Identities of processes. The kernel reuses process ids, and a forked child runs the same program
//! as its parent.

use serde::{Deserialize, Serialize};

/// Identifies a process uniquely since the machine started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub(super) struct ProcessIdentity {
    /// The process id, in the PID namespace of the holder.
    pub(super) pid: u32,
    /// The time at which the process started, in clock ticks since boot.
    pub(super) started: u64,
}

/// Addresses of a program in the memory of its process. They are random for every program that is
/// started, and the same in a forked child.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Image {
    code: u64,
    stack: u64,
    heap: u64,
}

/// State of a process, as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) identity: ProcessIdentity,
    /// The process that started this one, or has adopted it since.
    parent: u32,
    /// `None` for kernel threads, and if the holder may not inspect the process.
    pub(super) image: Option<Image>,
    /// Whether the main thread has ended. Other threads may still run.
    pub(super) has_ended: bool,
    /// Whether the process is a kernel thread.
    pub(super) is_kernel: bool,
}

impl Status {
    /// Reads the state of a process. Returns `None` if no process has this id, or if `/proc` is
    /// missing.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &text)
    }

    /// Parses `/proc/PID/stat`: numbers separated by blanks, after a program name that may contain
    /// any characters.
    fn parse(pid: u32, text: &str) -> Option<Self> {
        /// The flag of kernel threads.
        const PF_KTHREAD: u64 = 0x0020_0000;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // Field numbers as in proc_pid_stat(5). The first one here is number 3, the state.
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

/// Returns the ancestors of this process, nearest first: shells and service managers.
pub(super) fn ancestors() -> Vec<u32> {
    let parent = |pid: &u32| Some(Status::of(*pid)?.parent).filter(|parent| *parent != 0);
    std::iter::successors(Some(std::process::id()), parent)
        .skip(1)
        .collect()
}

impl ProcessIdentity {
    /// Returns whether the process and all its threads have ended. The kernel has then released its
    /// memory and its descriptors.
    pub(super) fn has_ended(self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use rustix::io::Errno;
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // The descriptor is opened first, so that the checks below concern this process or a later
        // one with its id.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(errno) => return errno == Errno::SRCH,
        };
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
            return true;
        }
        // If the start times differ, the id belongs to another process.
        Status::of(self.pid).is_some_and(|now| now.identity != self)
    }
}

/// The process that sends a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Asker {
    pub(super) uid: u32,
    /// The process id, in the PID namespace of the holder. 0 if the process has no id there.
    pub(super) pid: u32,
}

/// The process that exported memory. Two values are equal if their users and processes are.
/// Processes that the holder cannot see are distinguished only by their users.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Maker {
    pub(super) uid: u32,
    /// `None` if the holder cannot see the process.
    pub(super) process: Option<ProcessIdentity>,
}

impl Maker {
    /// Identifies the process that replied. `pid` is 0 if the process has no id in this namespace.
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
        // The child has ended, but has not been reaped yet.
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
