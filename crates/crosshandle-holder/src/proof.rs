//! The proof that the writer of held memory has ended, and that nothing can write in its
//! place.
//!
//! The proof has three parts:
//!
//! - The process of the writer has ended. The kernel has then released its memory and its
//!   descriptors, and the driver has stopped its work.
//! - No child that the writer forked is alive. Such a child would have the same memory, and would
//!   keep the driver's descriptors open.
//! - No other process can write. For host memory the kernel reports which processes have it mapped
//!   or open for writing. For a driver's memory the exporter must also have ended, or must be the
//!   claiming process. For CUDA memory no MPS daemon may run, since it does the work of many
//!   processes in one.
//!
//! A process that the holder cannot inspect makes the proof fail. The ancestors of the holder are
//! the exception and are trusted. The proof does not see descriptors in the queues of sockets, or a
//! descriptor that a process receives after it was inspected. Nor does it see that a process maps
//! memory for reading now and makes the mapping writable later.

use super::identity::{Image, Maker, ProcessIdentity, Status, ancestors};
use super::segment::Drivers;
use crosshandle_handle::BackendKind;
use crosshandle_ipc::broker::{FileId, PeerPolicy};
use rustix::fs::{AtFlags, CWD, StatxFlags, major, makedev, minor, statx};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of scans of all processes for one claim. A scan is repeated whenever a process
/// has ended during it. With a smaller value, claims fail more often on a machine that starts many
/// processes.
const MAX_PROCESS_SCANS: u32 = 16;

/// Maximum number of earlier writers that are kept for a name. They may still write: they opened a
/// driver's memory for writing before the first claim, or another process claimed the name by
/// force. If there are more, the name can only be claimed by force. A larger value makes the
/// messages to the successor longer.
pub(crate) const MAX_EARLIER_WRITERS: usize = 64;

/// A process that may write the memory of a name.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Writer {
    /// The number of the request that claimed the name. Only this process and its forked children
    /// know it.
    pub(super) request: u64,
    pub(super) uid: u32,
    /// `None` if the holder could not see the process. Only a forced claim admits such a writer.
    pub(super) process: Option<ProcessIdentity>,
    pub(super) image: Option<Image>,
    /// Whether the writer has ended its claim.
    pub(super) is_released: bool,
}

impl Writer {
    /// Describes the process `pid`. 0 stands for a process that has no id in this namespace.
    pub(super) fn new(request: u64, uid: u32, pid: u32) -> Self {
        let status = Status::of(pid);
        Self {
            request,
            uid,
            process: status.map(|status| status.identity),
            image: status.and_then(|status| status.image),
            is_released: false,
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.map(|process| process.pid)
    }
}

/// The memory of a claimed name.
pub(super) struct Region {
    /// The files of host memory.
    pub(super) host: Vec<FileId>,
    /// The exporters of a driver's memory.
    pub(super) makers: Vec<Maker>,
    /// The backends of the memory.
    pub(super) backends: Vec<BackendKind>,
}

/// A claim that needs a proof.
pub(super) struct Claim {
    pub(super) region: Region,
    /// The current writer.
    pub(super) writer: Option<Writer>,
    /// Other processes that may still write, except for the claiming process.
    pub(super) earlier: Vec<Writer>,
    /// The process id of the claiming process. 0 if it has no id in this namespace.
    pub(super) claimer: u32,
    /// The process ids of the holder and its successor.
    pub(super) pair: [u32; 2],
    pub(super) policy: PeerPolicy,
    pub(super) drivers: Drivers,
    /// The process id of the process that prevented the latest claim of the name, or 0. It is
    /// inspected first, because programs repeat their claims until that process has ended.
    pub(super) suspect: Arc<AtomicU32>,
}

/// The reason why a proof failed, as a text for people.
type Refusal = String;

/// The result of inspecting a process.
enum Look {
    Harmless,
    /// The process ended during the inspection.
    Vanished,
}

impl Claim {
    /// Proves that the memory can no longer be written.
    ///
    /// # Errors
    /// Returns the reason why the memory may still be written.
    pub(super) fn prove(&self) -> Result<(), Refusal> {
        if hides_processes() {
            return Err(
                "/proc is mounted with hidepid, so it may not show a process that has it open for writing: \
                 mount it without that option, or give the holder CAP_SYS_PTRACE"
                    .into(),
            );
        }
        self.prove_writers_over()?;
        if !self.region.makers.is_empty() {
            self.prove_makers_over()?;
        }
        let mut backends = self.region.backends.iter();
        if let Some(why) = backends.find_map(|kind| (self.drivers.work_outlives_process)(*kind)) {
            return Err(why);
        }
        // A process that ends during a scan may have left a child that the scan has missed. Further
        // scans inspect only processes that are new, so they are fast.
        let mut harmless = HashSet::new();
        for _ in 0..MAX_PROCESS_SCANS {
            if self.scan(&mut harmless)? {
                return Ok(());
            }
        }
        Err("processes come and go too fast to look at all of them; try again".into())
    }

    /// Returns the processes that must have ended together with all their forked children.
    fn writers(&self) -> impl Iterator<Item = &Writer> {
        let released = |writer: &&Writer| !writer.is_released;
        self.writer.iter().chain(&self.earlier).filter(released)
    }

    fn prove_writers_over(&self) -> Result<(), Refusal> {
        if self.earlier.len() > MAX_EARLIER_WRITERS {
            return Err(
                "more processes may write it than the holder keeps: publish its next version, of other \
                 memory"
                    .into(),
            );
        }
        for writer in self.writers() {
            let Some(process) = writer.process else {
                return Err(
                    "the holder cannot see the process of a writer (run both in one PID namespace)"
                        .into(),
                );
            };
            if !process.has_ended() {
                return Err(format!(
                    "its writer, process {}, has not ended and has not released it",
                    process.pid
                ));
            }
            if writer.image.is_none() {
                return Err(format!(
                    "the holder could not look at its writer, process {}, so it cannot tell whether children \
                     that this has forked live: run both as one user with the same capabilities",
                    process.pid
                ));
            }
        }
        Ok(())
    }

    fn prove_makers_over(&self) -> Result<(), Refusal> {
        for maker in &self.region.makers {
            match maker.process {
                Some(process) if process.pid == self.claimer || process.has_ended() => {}
                Some(process) => {
                    return Err(format!(
                        "process {} has made it and has it mapped, as far as can be seen from outside of the \
                         driver: it must end or claim it itself",
                        process.pid
                    ));
                }
                None => {
                    return Err("the holder cannot see the process that made it (run both in one PID namespace)".into());
                }
            }
        }
        Ok(())
    }

    /// Inspects all processes that may have the memory and are not in `harmless`, and adds them to
    /// it. Returns whether none of them ended during the scan.
    fn scan(&self, harmless: &mut HashSet<ProcessIdentity>) -> Result<bool, Refusal> {
        let unseen =
            |error| format!("the holder cannot list the processes of this machine: {error}");
        let mut is_complete = true;
        match self.suspect.load(Ordering::Relaxed) {
            0 => {}
            pid => {
                self.look_at(pid, harmless)?;
            }
        }
        for entry in fs::read_dir("/proc").map_err(unseen)? {
            let entry = entry.map_err(unseen)?;
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(pid) = number else {
                continue;
            };
            if !self.pair.contains(&pid) {
                let look = self.look_at(pid, harmless);
                let look = look.inspect_err(|_| self.suspect.store(pid, Ordering::Relaxed))?;
                is_complete &= matches!(look, Look::Harmless);
            }
        }
        Ok(is_complete)
    }

    fn look_at(&self, pid: u32, harmless: &mut HashSet<ProcessIdentity>) -> Result<Look, Refusal> {
        let Some(seen) = Status::of(pid) else {
            return Ok(Look::Vanished);
        };
        // Most processes are kernel threads.
        if seen.is_kernel || harmless.contains(&seen.identity) {
            return Ok(Look::Harmless);
        }
        let look = self.inspect(pid, seen)?;
        if matches!(look, Look::Harmless) {
            harmless.insert(seen.identity);
        }
        Ok(look)
    }

    fn inspect(&self, pid: u32, status: Status) -> Result<Look, Refusal> {
        // The file works for any user, whereas the directory of a non-dumpable process belongs to
        // root.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            return Ok(Look::Vanished);
        };
        let users = text.lines().find_map(|line| line.strip_prefix("Uid:"));
        let mut users = users
            .unwrap_or("")
            .split_whitespace()
            .filter_map(|text| text.parse().ok());
        let may_have_it =
            |uid: u32| self.policy.admits(uid) || self.writers().any(|writer| writer.uid == uid);
        if !users.any(may_have_it) {
            return Ok(Look::Harmless);
        }
        if status.has_ended {
            return match status.identity.has_ended() {
                true => Ok(Look::Harmless),
                // The main thread has ended, but other threads still have its memory.
                false => Ok(Look::Vanished),
            };
        }
        for writer in self.writers() {
            let is_same = status.image.is_some() && status.image == writer.image;
            if is_same && writer.process != Some(status.identity) {
                return Err(format!(
                    "process {pid} was forked from its writer and may write for it; end it first"
                ));
            }
            let is_older =
                (writer.process).is_some_and(|process| status.identity.started < process.started);
            if status.image.is_none() && !is_older {
                return unseen(pid);
            }
        }
        if self.region.host.is_empty() || pid == self.claimer {
            return Ok(Look::Harmless);
        }
        self.look_for_host_memory(pid)
    }

    /// Looks for mappings and descriptors by which a process can write the host memory.
    fn look_for_host_memory(&self, pid: u32) -> Result<Look, Refusal> {
        let writes = || {
            Err(format!(
                "process {pid} ({}) has it open for writing; it must end or let go of it",
                program(pid)
            ))
        };
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::PermissionDenied => unseen(pid),
            _ => Ok(Look::Vanished),
        };
        let maps = match fs::read_to_string(format!("/proc/{pid}/maps")) {
            Ok(maps) => maps,
            Err(error) => return failed(error),
        };
        let is_ours = |file: FileId| self.region.host.contains(&file);
        if maps.lines().filter_map(writable_file).any(is_ours) {
            return writes();
        }
        let paths = match descriptors(pid) {
            Ok(paths) => paths,
            Err(error) => return failed(error),
        };
        for path in paths {
            // Other files are not queried, since the process that serves them might never answer.
            let is_memory = fs::read_link(&path)
                .is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
            if is_memory && file_of(&path).is_some_and(is_ours) && is_writable(&path) {
                return writes();
            }
        }
        Ok(Look::Harmless)
    }
}

fn unseen(pid: u32) -> Result<Look, Refusal> {
    // The process has more rights than this one, as a service manager or the init process of a
    // container may have.
    if ancestors().contains(&pid) {
        return Ok(Look::Harmless);
    }
    // The kernel also shows nothing of a process that has ended meanwhile, or that is ending and
    // has released its memory already.
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    if !status.is_ok_and(|status| status.contains("\nVmSize:")) {
        return Ok(Look::Vanished);
    }
    Err(format!(
        "the holder may not look at process {pid} ({}), which may have it open for writing: run both as \
         one user with the same capabilities",
        program(pid)
    ))
}

/// Returns whether `/proc` may omit processes of this user. With the mount option `hidepid`, it
/// omits those that this process may not inspect, and a scan would not notice.
fn hides_processes() -> bool {
    /// The number of the capability CAP_SYS_PTRACE.
    const SYS_PTRACE: u32 = 19;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !has_hidepid(&mounts) {
        return false;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    rights.is_none_or(|rights| rights & (1 << SYS_PTRACE) == 0)
}

/// Returns whether the mount at `/proc` has the option `hidepid`, or cannot be found in
/// `/proc/self/mountinfo`.
fn has_hidepid(mountinfo: &str) -> bool {
    let at_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc");
    // The last mount at a place covers the earlier ones.
    mountinfo.lines().rfind(at_proc).is_none_or(|line| {
        let options = line.split([' ', ',']);
        let mut hides = options.filter_map(|option| option.strip_prefix("hidepid="));
        hides.any(|how| !matches!(how, "0" | "off"))
    })
}

fn program(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "ended".into(), |name| name.trim_end().to_owned())
}

/// Returns the file that a line of `/proc/PID/maps` maps, if the mapping is writable and shared.
fn writable_file(line: &str) -> Option<FileId> {
    let mut words = line.split_ascii_whitespace();
    let (_, access, _) = (words.next()?, words.next()?.as_bytes(), words.next()?);
    let (device, inode) = (words.next()?, words.next()?);
    let is_writable = access.get(1) == Some(&b'w') && access.get(3) == Some(&b's');
    let (high, low) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    is_writable.then_some((makedev(number(high)?, number(low)?), inode.parse().ok()?))
}

/// Returns the paths in `/proc` of all descriptors of a process. A thread may have a table of
/// descriptors of its own.
fn descriptors(pid: u32) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        match fs::read_dir(thread.path().join("fd")) {
            Ok(entries) => paths.extend(entries.flatten().map(|entry| entry.path())),
            // The thread has ended.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(paths)
}

/// Returns the file of a descriptor of another process.
fn file_of(path: &Path) -> Option<FileId> {
    let status = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((
        makedev(status.stx_dev_major, status.stx_dev_minor),
        status.stx_ino,
    ))
}

/// Returns whether a descriptor of another process is writable. Also returns `true` if that cannot
/// be determined.
fn is_writable(descriptor: &Path) -> bool {
    let number = descriptor.file_name().unwrap_or_default();
    let thread = descriptor.ancestors().nth(2).unwrap_or(descriptor);
    let Ok(info) = fs::read_to_string(thread.join("fdinfo").join(number)) else {
        return true;
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    // The lowest two bits are the access mode. 0 means read-only.
    flags.is_none_or(|flags| flags & 3 != 0)
}

/// Converts the numbers that `/proc` and system calls give for a file to one form.
pub(super) fn normal(file: FileId) -> FileId {
    (makedev(major(file.0), minor(file.0)), file.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_os::{descriptor_table, memfd};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    #[test]
    fn only_what_others_see_counts_as_writable() {
        let line =
            |access: &str| format!("7f00-7f01 {access} 00000000 00:01 4711   /memfd:x (deleted)");
        assert_eq!(writable_file(&line("rw-s")), Some((makedev(0, 1), 4711)));
        assert_eq!(writable_file(&line("-w-s")), Some((makedev(0, 1), 4711)));
        assert_eq!(writable_file(&line("r--s")), None);
        assert_eq!(writable_file(&line("rw-p")), None);
        assert_eq!(writable_file(""), None);
        assert_eq!(writable_file("7f00-7f01 rw-s"), None);
    }

    #[test]
    fn descriptors_are_told_by_file_and_access() {
        let memory = Arc::new(memfd::create("test", 4096).expect("memory"));
        let read_only =
            memfd::reopen_read_only(std::os::fd::AsFd::as_fd(&*memory)).expect("opened");
        let status = rustix::fs::fstat(&*memory).expect("a status");
        let pid = std::process::id();
        let held = || {
            let paths = descriptors(pid).expect("this process");
            let is_memory = |path: &PathBuf| {
                file_of(path) == Some(normal((status.st_dev, status.st_ino))) && is_writable(path)
            };
            paths.into_iter().any(|path| is_memory(&path))
        };
        assert!(held());
        for (file, writes) in [(&*memory, true), (&read_only, false)] {
            let path = format!("/proc/{pid}/fd/{}", file.as_raw_fd());
            let path = Path::new(&path);
            assert_eq!(file_of(path), Some(normal((status.st_dev, status.st_ino))));
            assert_eq!(is_writable(path), writes);
        }
        assert!(
            is_writable(Path::new("/proc/self/fd/99999")),
            "it cannot be told"
        );
        // A thread keeps the memory in a table of its own.
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                let table = descriptor_table::unshare(std::os::fd::AsFd::as_fd(&*memory));
                // The last owner closes the descriptor in the table of the other threads.
                drop(memory);
                ready.send(table.is_ok()).expect("the test waits");
                let _ = ends.recv();
            }
        });
        assert!(is_ready.recv().expect("an answer"), "a table of its own");
        drop((memory, read_only));
        assert!(held(), "a thread has it");
        drop(end);
        thread.join().expect("ended");
        assert!(!held());
    }

    #[test]
    fn a_proc_that_hides_processes_proves_nothing() {
        let mount = |place: &str, options: &str| {
            format!("25 30 0:22 / {place} rw,nosuid,nodev - proc proc rw{options}\n")
        };
        assert!(!has_hidepid(&mount("/proc", "")));
        assert!(!has_hidepid(&mount("/proc", ",hidepid=off")));
        for hides in ["hidepid=1", "hidepid=invisible", "gid=3,hidepid=ptraceable"] {
            let hides = mount("/proc", &format!(",{hides}"));
            assert!(has_hidepid(&hides), "{hides}");
            let covered = hides.clone() + &mount("/proc", "") + &mount("/other/proc", ",hidepid=2");
            assert!(!has_hidepid(&covered), "{covered}");
            assert!(has_hidepid(&(mount("/proc", "") + &hides)));
        }
        assert!(has_hidepid(&mount("/sys", "")), "it cannot be told");
    }

    #[test]
    #[ignore = "needs permission to mount; `cargo xtask test` runs it"]
    fn the_kernel_says_that_a_proc_hides_processes() {
        const ROLE: &str = "CROSSHANDLE_TEST_HIDEPID";
        if std::env::var_os(ROLE).is_some() {
            println!("hides: {}", hides_processes());
            return;
        }
        let script = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --bounding-set -sys_ptrace \
                      --inh-caps -sys_ptrace \"$0\" --exact --include-ignored --nocapture \"$1\"";
        let test = "proof::tests::the_kernel_says_that_a_proc_hides_processes";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", script]);
        let program = std::env::current_exe().expect("a path");
        let output = unshare.arg(program).arg(test).env(ROLE, "1").output();
        let output = output.expect("unshare");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("hides: true"), "{output:?}");
    }

    fn sleeper() -> std::process::Child {
        let mut command = Command::new("sleep");
        let command = command.arg("60").stdin(Stdio::null());
        await_begin(command.spawn().expect("a process"))
    }

    /// Waits until a process that was just started runs `sleep`.
    fn await_begin(child: std::process::Child) -> std::process::Child {
        // `exec` may still be in progress. Until it is done, no process can inspect the child.
        let begin = std::time::Instant::now();
        let has_begun = || {
            let status = Status::of(child.id());
            program(child.id()) == "sleep" && status.is_some_and(|status| status.image.is_some())
        };
        while !has_begun() && begin.elapsed() < std::time::Duration::from_secs(10) {
            std::thread::yield_now();
        }
        child
    }

    /// Creates a claim of a driver's memory, which the kernel knows nothing about.
    fn claim_after(writer: Option<Writer>, earlier: Vec<Writer>) -> Claim {
        Claim {
            region: Region {
                host: Vec::new(),
                makers: Vec::new(),
                backends: Vec::new(),
            },
            writer,
            earlier,
            claimer: std::process::id(),
            pair: [std::process::id(), 0],
            policy: PeerPolicy::SameUser,
            drivers: Drivers::OF_TESTS,
            suspect: Arc::default(),
        }
    }

    #[test]
    fn the_process_that_prevented_a_claim_is_inspected_first() {
        let memory = memfd::create("test", 4096).expect("memory");
        let status = rustix::fs::fstat(&memory).expect("a status");
        let with_it = || {
            let memory = memory.try_clone().expect("a descriptor");
            let mut command = Command::new("sleep");
            command.arg("60").stdin(Stdio::from(memory));
            await_begin(command.spawn().expect("a process"))
        };
        let mut processes = [with_it(), with_it()];
        let [first, second] = processes.each_ref().map(std::process::Child::id);
        let mut claim = claim_after(None, Vec::new());
        claim
            .region
            .host
            .push(normal((status.st_dev, status.st_ino)));
        let refused = claim.prove().expect_err("both have it");
        assert!(refused.contains(&format!("process {first} ")), "{refused}");
        claim.suspect.store(second, Ordering::Relaxed);
        let refused = claim.prove().expect_err("both have it");
        assert!(refused.contains(&format!("process {second} ")), "{refused}");
        for process in &mut processes {
            process.kill().expect("it lives");
            process.wait().expect("our child");
        }
    }

    #[test]
    fn all_earlier_writers_must_have_ended() {
        let mut process = sleeper();
        let writer = Writer::new(7, 0, process.id());
        let unseen = Writer::new(7, 0, 0);
        let refused = claim_after(None, vec![writer.clone()]).prove();
        let refused = refused.expect_err("it lives");
        assert!(refused.contains("has not ended"), "{refused}");
        process.kill().expect("it lives");
        process.wait().expect("our child");
        let claim = claim_after(None, vec![writer.clone()]);
        claim.prove_writers_over().expect("it has ended");
        let refused = claim_after(None, vec![writer.clone(), unseen]).prove();
        let refused = refused.expect_err("one cannot be seen");
        assert!(refused.contains("cannot see"), "{refused}");
        let many = vec![writer; MAX_EARLIER_WRITERS + 1];
        let refused = claim_after(None, many).prove().expect_err("too many");
        assert!(refused.contains("more processes"), "{refused}");
    }

    #[test]
    fn a_writer_whose_children_cannot_be_told_is_not_proven_over() {
        let mut process = sleeper();
        let writer = Writer {
            image: None,
            ..Writer::new(7, 0, process.id())
        };
        process.kill().expect("it lives");
        process.wait().expect("our child");
        let refused = claim_after(Some(writer.clone()), Vec::new()).prove();
        let refused = refused.expect_err("its children cannot be told");
        assert!(refused.contains("forked"), "{refused}");
        let released = Writer {
            is_released: true,
            ..writer
        };
        let claim = claim_after(Some(released), Vec::new());
        claim.prove_writers_over().expect("it has said so");
    }
}
