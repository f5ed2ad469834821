//! A file of a file system in user space whose closing nobody answers, spoken to `/dev/fuse` without a
//! library.
//!
//! Closing a descriptor of such a file asks the file system first (`FUSE_FLUSH`), and waits for the answer.
//! The layouts are those of `linux/fuse.h`, protocol 7.31.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
/// Bytes of a request before its arguments: length, operation, number, node, and four more.
const IN_HEADER: usize = 40;
/// Bytes of the buffer for a request; the kernel wants room for a write at least.
const BUFFER: usize = 1 << 17;

/// The mounted file. The mount is out of sight at once, so that nothing is left of it when the process
/// ends in any way.
pub(super) struct HeldFile {
    file: OwnedFd,
    daemon: Arc<Daemon>,
}

struct Daemon {
    device: File,
    /// Numbers of the requests that somebody waits for.
    unanswered: Mutex<Vec<u64>>,
    held: AtomicU32,
    ended: AtomicBool,
}

impl HeldFile {
    /// Mounts a file, opens it and takes the mount out of sight. Needs root.
    pub(super) fn mount() -> Result<Self, Failure> {
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
        // SAFETY: four strings that live until the call returns.
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
        let daemon = Arc::new(Daemon {
            device,
            unanswered: Mutex::default(),
            held: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&daemon);
        std::thread::spawn(move || serving.serve());
        let file = rustix::fs::open(&place, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        // SAFETY: a string that lives until the call returns.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_file(&place);
        Ok(Self {
            file: file?,
            daemon,
        })
    }

    /// Returns another descriptor of the file.
    pub(super) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Answers everybody who waits.
    pub(super) fn let_go(&self) {
        self.daemon.let_go();
    }

    /// Returns how often somebody had to wait.
    #[cfg(test)]
    fn held(&self) -> u32 {
        self.daemon.held.load(Ordering::Relaxed)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        self.daemon.ended.store(true, Ordering::Relaxed);
        self.daemon.let_go();
    }
}

fn place() -> PathBuf {
    std::env::temp_dir().join(format!("xh-held-{}", std::process::id()))
}

impl Daemon {
    fn serve(&self) {
        let mut buffer = vec![0; BUFFER];
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        while !self.ended.load(Ordering::Relaxed) {
            let mut ready = [PollFd::new(&self.device, PollFlags::IN)];
            match poll(&mut ready, Some(&tick)) {
                Ok(0) => continue,
                Ok(_) if ready[0].revents().contains(PollFlags::IN) => {}
                _ => return,
            }
            match (&self.device).read(&mut buffer) {
                Ok(len) if len >= IN_HEADER => self.request(&buffer[..len]),
                _ => return,
            }
        }
        self.let_go();
    }

    fn request(&self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let number = u64::from_ne_bytes(request[8..16].try_into().expect("eight"));
        match word(4) {
            INIT => {
                // Major, minor, read-ahead, flags, background and threshold, greatest write, and the
                // rest of 64 bytes.
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
                // Mode and number of links.
                answer[76..80].copy_from_slice(&0o100_666u32.to_ne_bytes());
                answer[80..84].copy_from_slice(&1u32.to_ne_bytes());
                self.answer(number, 0, &answer);
            }
            OPEN => self.answer(number, 0, &[0; 16]),
            RELEASE => self.answer(number, 0, &[]),
            FLUSH if !self.ended.load(Ordering::Relaxed) => {
                self.held.fetch_add(1, Ordering::Relaxed);
                let unanswered = &self.unanswered;
                let mut unanswered = unanswered.lock().unwrap_or_else(PoisonError::into_inner);
                unanswered.push(number);
            }
            FLUSH => self.answer(number, 0, &[]),
            FORGET | INTERRUPT => {}
            _ => self.answer(number, -libc::EIO, &[]),
        }
    }

    fn let_go(&self) {
        let unanswered = &self.unanswered;
        let mut unanswered = unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        for number in unanswered.drain(..) {
            self.answer(number, 0, &[]);
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
    use super::HeldFile;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Closing waits until it is let go: otherwise nothing is shown by those who aren't held up.
    #[test]
    fn closing_is_held_up() {
        let held = match HeldFile::mount() {
            Ok(held) => held,
            Err(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        };
        let descriptor = held.descriptor().expect("a descriptor");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            drop(descriptor);
            let _ = tell.send(());
        });
        while held.held() == 0 {
            std::thread::yield_now();
        }
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        held.let_go();
        told.recv_timeout(Duration::from_secs(10)).expect("let go");
    }
}
