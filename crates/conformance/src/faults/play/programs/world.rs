//! The world of a story: a holder and its successor in a directory of their own.

use super::victim::{Plan, Victim};
use crate::failure::Failure;
use crosshandle::holder::{Holder, Status};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum time of one command, whatever happens to the victim.
pub(super) const LIMIT: Duration = Duration::from_secs(40);
/// Maximum time until a promised model is available again.
const RECOVERY: Duration = Duration::from_secs(10);
/// Interval at which the state of a process is checked.
pub(super) const LOOK: Duration = Duration::from_millis(2);
/// Time between two requests to a holder. Each request costs a victim some steps.
pub(super) const REQUEST_INTERVAL: Duration = Duration::from_millis(20);

/// The result of a command.
pub(super) struct Ended {
    pub(super) is_ok: bool,
    pub(super) output: String,
    pub(super) complaints: String,
}

/// A holder and its successor, with their own directory.
pub(super) struct World<'a> {
    programs: &'a Programs,
    root: PathBuf,
    pair: Option<Child>,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        let first = self.pair.take();
        // After a failed story, a victim's successor may still run.
        if first.is_some() || self.status().is_ok() {
            let _ = self.run(&["rm", "m"]);
            let _ = self.run(&["hold", "--stop"]);
        }
        if let Some(mut first) = first {
            let _ = first.kill();
            let _ = first.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Paths of the programs that the stories run.
pub(super) struct Programs {
    pub(super) command: PathBuf,
    pub(super) peer: PathBuf,
}

impl<'a> World<'a> {
    pub(super) fn new(programs: &'a Programs, has_pair: bool) -> Result<Self, Failure> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("xh-programs-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root)?;
        for (name, byte) in [("one", 1u8), ("two", 2)] {
            let header = r#"{"t":{"dtype":"U8","shape":[70000],"data_offsets":[0,70000]}}"#;
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(header.as_bytes());
            file.extend(std::iter::repeat_n(byte, 70_000));
            fs::write(root.join(name), file)?;
        }
        let mut world = Self {
            programs,
            root,
            pair: None,
        };
        if has_pair {
            world.pair = Some(world.command(&["hold"]).spawn()?);
            world.await_safe()?;
        }
        Ok(world)
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    fn prepare(&self, command: &mut Command) {
        command
            .env("CROSSHANDLE_SOCKET_DIR", self.root.join("sockets"))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.command);
        command.args(words);
        self.prepare(&mut command);
        command
    }

    /// Runs a command that is not a victim, and must end in time.
    pub(super) fn run(&self, words: &[&str]) -> Result<Ended, Failure> {
        self.run_prepared(self.command(words), words)
    }

    pub(super) fn run_prepared(
        &self,
        mut command: Command,
        words: &[&str],
    ) -> Result<Ended, Failure> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = end(command.spawn()?);
        ended.map_err(|why| Failure::new(format!("`{}` {why}", words.join(" "))))
    }

    pub(super) fn peer(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.peer);
        command.args(words);
        self.prepare(&mut command);
        command
    }

    /// Starts the victim with the given command.
    pub(super) fn victim(&self, words: &[&str], plan: Option<Plan>) -> Result<Victim, Failure> {
        let mut command = self.peer(&["exec"]);
        command.arg(&self.programs.command).args(words);
        Victim::start(command, plan)
    }

    pub(super) fn status(&self) -> crosshandle::Result<Status> {
        let holder = Holder::new().socket_dir(self.root.join("sockets"));
        holder.timeout(Duration::from_secs(5)).status()
    }

    /// Waits until the holder is safe, or says that something must be loaded again. Returns
    /// whether it says so.
    pub(super) fn is_refused_by_successor(&self) -> Result<bool, Failure> {
        let since = Instant::now();
        while since.elapsed() < LIMIT {
            if let Ok(status) = self.status() {
                if status.is_safe {
                    return Ok(false);
                }
                let why = status.why_unsafe.unwrap_or_default();
                if why.contains("load it again") {
                    return Ok(true);
                }
            }
            sleep(REQUEST_INTERVAL);
        }
        Err(Failure::new("the holder does not say whether it is safe"))
    }

    pub(super) fn await_safe(&self) -> Result<Status, Failure> {
        let since = Instant::now();
        loop {
            match self.status() {
                Ok(status) if status.is_safe => return Ok(status),
                other if since.elapsed() > LIMIT => {
                    return Err(Failure::new(format!("the holder is not safe: {other:?}")));
                }
                _ => sleep(REQUEST_INTERVAL),
            }
        }
    }

    /// Returns the number of descriptors of the holder and its successor together.
    pub(super) fn descriptors(&self) -> Result<usize, Failure> {
        let status = self.await_safe()?;
        let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Ok(count(status.pid) + status.successor.map_or(0, count))
    }

    pub(super) fn check_descriptors(&self, before: usize) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            match self.descriptors()? {
                now if now <= before => return Ok(()),
                now if since.elapsed() > RECOVERY => {
                    let why = format!("the holders have {now} descriptors, and had {before}");
                    return Err(Failure::new(why));
                }
                _ => sleep(REQUEST_INTERVAL),
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> Result<bool, Failure> {
        let ended = self.run(&["ls", "--json"])?;
        match ended.is_ok {
            true => Ok(ended.output.contains(&format!("\"{name}\""))),
            false => Err(Failure::new(format!("`ls`: {}", ended.complaints))),
        }
    }

    /// Checks that a model is whole. If it was not promised, it may also be absent.
    pub(super) fn check_model(&self, name: &str, is_promised: bool) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let why = match self.has(name) {
                Ok(false) if !is_promised => return Ok(()),
                Ok(false) => "it is lost".to_owned(),
                Ok(true) => {
                    let verified = self.run(&["verify", name])?;
                    if verified.is_ok {
                        return Ok(());
                    }
                    verified.complaints
                }
                Err(error) => error.to_string(),
            };
            if since.elapsed() > RECOVERY {
                let promised = if is_promised {
                    ", which was promised"
                } else {
                    ""
                };
                return Err(Failure::new(format!("{name}{promised}: {why}")));
            }
            sleep(REQUEST_INTERVAL);
        }
    }
}

/// Waits until a process has ended, and kills it if it takes too long.
pub(super) fn end(mut child: Child) -> Result<Ended, Failure> {
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if since.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::new("does not end"));
        }
        sleep(LOOK);
    };
    let text = |source: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        if let Some(source) = source {
            let _ = source.take(1 << 20).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Ended {
        is_ok: status.success(),
        output: text(child.stdout.as_mut().map(|source| source as &mut dyn Read)),
        complaints: text(child.stderr.as_mut().map(|source| source as &mut dyn Read)),
    })
}
