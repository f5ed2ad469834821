//! A file of a user-space file system that does not reply when the file is closed. It uses
//! `/dev/fuse` without a library.
//!
//! When a descriptor of such a file is closed, the kernel sends a request to the file system
//! (`FUSE_FLUSH`), and waits for the reply. The layouts are those of `linux/fuse.h`, protocol 7.31.

use super::descriptors::HOLD;
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
/// Size of a request's header in bytes: length, operation, number, node, and four more fields.
const IN_HEADER: usize = 40;
/// Size of the request buffer in bytes. The kernel requires room for at least one write.
const BUFFER: usize = 1 << 17;
/// Name with which the attacker starts the process of the file system.
pub(super) const DAEMON: &str = "held-file";

/// The mounted file. The mount is detached at once, and the file system's process ends when no
/// descriptor of the file is left. So nothing remains, however the attacker ends.
pub(super) struct HeldFile(OwnedFd);

impl HeldFile {
    /// Mounts a file that is served by a separate process. If the attacker served the file itself,
    /// it could not be killed while it closes the file. Needs root.
    pub(super) fn mount() -> Result<Self, Failure> {
        Self::mount_by(&std::env::current_exe()?)
    }

    /// Mounts a file that a separate process serves. `program` is the path of the test suite's
    /// program.
    pub(super) fn mount_by(program: &Path) -> Result<Self, Failure> {
        Self::mount_with(|device| {
            let daemon = Command::new(program)
                .args(["attack", DAEMON])
                .stdin(Stdio::from(device))
                .stdout(Stdio::null())
                .spawn();
            daemon.map(drop)
        })
    }

    fn mount_with(serve: impl FnOnce(File) -> std::io::Result<()>) -> Result<Self, Failure> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let place = place();
        File::create(&place)?;
        let options = format!(
            "fd={},rootmode=100666,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let text = |bytes: &[u8]| CString::new(bytes).expect("no zero inside");
        let path = text(place.as_os_str().as_bytes());
        let (kind, options) = (text(b"fuse"), text(options.as_bytes()));
        // SAFETY: four strings that outlive the call.
        let mounted = unsafe {
            libc::mount(
                kind.as_ptr(),
                path.as_ptr(),
                kind.as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            )
        };
        let error = std::io::Error::last_os_error();
        if mounted != 0 {
            let _ = std::fs::remove_file(&place);
            return Err(Failure::new(format!("mounting a file: {error}")));
        }
        let served = serve(device);
        let file = served.and_then(|()| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            Ok(rustix::fs::open(&place, flags, Mode::empty())?)
        });
        // SAFETY: a string that outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_file(&place);
        Ok(Self(file?))
    }

    pub(super) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

/// Serves the file whose FUSE device is standard input, until no process has the file open.
pub(super) fn serve() {
    if let Ok(device) = std::io::stdin().as_fd().try_clone_to_owned() {
        Daemon::new(device.into()).serve();
    }
}

/// The file system. It replies at once to all requests except those that close the file.
struct Daemon {
    device: File,
    /// Numbers of the pending requests, with the time at which each gets its reply.
    held: VecDeque<(u64, Instant)>,
}

fn place() -> PathBuf {
    std::env::temp_dir().join(format!("xh-held-{}", std::process::id()))
}

impl Daemon {
    fn new(device: File) -> Self {
        let held = VecDeque::new();
        Self { device, held }
    }

    fn serve(mut self) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let next = self.held.front().map(|(_, end)| *end);
            let left = next.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let number = self.held.pop_front().map_or(0, |(number, _)| number);
                self.answer(number, 0, &[]);
                continue;
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut ready = [PollFd::new(&self.device, PollFlags::IN)];
            match poll(&mut ready, left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) if ready[0].revents().contains(PollFlags::IN) => {}
                _ => return,
            }
            match (&self.device).read(&mut buffer) {
                Ok(len) if len >= IN_HEADER => self.request(&buffer[..len]),
                Ok(_) => return,
                // The kernel has withdrawn a request.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn request(&mut self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let number = u64::from_ne_bytes(request[8..16].try_into().expect("eight"));
        match word(4) {
            INIT => {
                // Major and minor version, read-ahead, flags, background requests and threshold,
                // maximum write size, and padding up to 64 bytes.
                let mut answer = Vec::new();
                for part in [7, 31, 0, 0, 0, 1 << 16] {
                    answer.extend(u32::to_ne_bytes(part));
                }
                answer.resize(64, 0);
                self.answer(number, 0, &answer);
            }
            GETATTR => {
                let mut answer = vec![0; 104];
                answer[16..24].copy_from_slice(&1u64.to_ne_bytes());
                // The mode and the number of links.
                answer[76..80].copy_from_slice(&0o100_666u32.to_ne_bytes());
                answer[80..84].copy_from_slice(&1u32.to_ne_bytes());
                self.answer(number, 0, &answer);
            }
            OPEN => self.answer(number, 0, &[0; 16]),
            RELEASE => self.answer(number, 0, &[]),
            FLUSH => self.held.push_back((number, Instant::now() + HOLD)),
            FORGET | INTERRUPT => {}
            _ => self.answer(number, -libc::EIO, &[]),
        }
    }

    fn answer(&self, number: u64, error: i32, body: &[u8]) {
        let mut answer = u32::to_ne_bytes(16 + body.len() as u32).to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(number.to_ne_bytes());
        answer.extend(body);
        // Fails if the request was interrupted.
        let _ = (&self.device).write(&answer);
    }
}

#[cfg(test)]
mod tests {
    use super::{Daemon, HOLD, HeldFile};
    use std::time::Instant;

    /// If closing is not held up, tests with this file show nothing.
    #[test]
    fn closing_is_held_up() {
        let serve = |device| {
            std::thread::spawn(|| Daemon::new(device).serve());
            Ok(())
        };
        let held = match HeldFile::mount_with(serve) {
            Ok(held) => held,
            Err(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        };
        let descriptor = held.descriptor().expect("a descriptor");
        let began = Instant::now();
        drop(descriptor);
        assert!(began.elapsed() >= HOLD);
    }
}
