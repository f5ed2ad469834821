//! Honest programs of a holder: an exporter and a reader in their own processes, which measure the
//! time of their calls.

use super::KEPT;
use crate::attackers::running::Running;
use crate::failure::Failure;
use crate::pattern::pattern;
use crosshandle::holder::{Backup, HeldName, HoldOptions, Holder};
use crosshandle::{Context, ContextOptions, Device, Memory};
use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The command-line word that starts an honest program.
pub(crate) const ROLE: &str = "honest";
/// Maximum time of one honest call.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Maximum time until readers have restored all names.
pub(super) const RECOVERY: Duration = Duration::from_secs(10);
/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(1);
/// Size of the memory of one name, in bytes.
const LEN: usize = 64 << 10;
/// Maximum number of its own names that the exporter has at a time.
const OWN_NAMES: usize = 4;

fn limit() -> Duration {
    LIMIT * crate::slowdown()
}

struct Program {
    directory: PathBuf,
    holder: Holder,
    backups: Vec<Backup>,
    /// The context in which the exporter creates its own names.
    context: Context,
    /// The exporter's own names, starting with the oldest.
    names: VecDeque<String>,
    next: u64,
}

fn context(directory: &Path) -> Result<Context, Failure> {
    let options = ContextOptions::new().socket_dir(directory).pooling(false);
    Ok(Context::with_options(&Device::find("host")?, options)?)
}

fn kept(number: u64) -> String {
    format!("{KEPT}{number}")
}

impl Program {
    fn memory(context: &Context, seed: u64) -> Result<Memory, Failure> {
        let memory = context.allocate(LEN)?;
        memory.write(0, &pattern(seed, LEN))?;
        Ok(memory)
    }

    /// Opens a name in a new context and checks its bytes. Returns the duration of the open.
    fn open(&self, number: u64) -> Result<(HeldName, Duration), Failure> {
        let context = context(&self.directory)?;
        let began = Instant::now();
        let held = self.holder.open(&kept(number))?;
        let part = held.parts.first().ok_or(Failure::new("no part"))?;
        let handle = part.read_only.ok_or(Failure::new("no handle"))?;
        let memory = context.open_memory_read_only(&handle)?;
        let took = began.elapsed();
        let mut bytes = vec![0; LEN];
        memory.read(0, &mut bytes)?;
        match bytes == pattern(number, LEN) {
            true => Ok((held, took)),
            false => Err(Failure::new(format!("{} has other bytes", held.name))),
        }
    }

    /// Hands memory over to the holder under a new name. Returns the duration of the call.
    fn hand_over(&mut self) -> Result<Duration, Failure> {
        self.next += 1;
        let name = format!("honest-{}-{}", std::process::id(), self.next);
        let memory = Self::memory(&self.context, self.next)?;
        let began = Instant::now();
        let done = memory.hand_over(&self.holder, &name)?;
        let took = began.elapsed();
        self.names.push_back(name);
        if !done.is_safe {
            return Err(Failure::new("what was handed over is not safe"));
        }
        if self.names.len() > OWN_NAMES
            && let Some(oldest) = self.names.pop_front()
        {
            self.holder.remove(&oldest)?;
        }
        Ok(took)
    }

    /// Executes a command line, and returns the answer.
    fn answer(&mut self, line: &str) -> Result<String, Failure> {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let number = words.next().map_or(Ok(0), str::parse::<u64>)?;
        let end = Instant::now() + Duration::from_millis(number);
        match what {
            "make" => {
                for seed in 0..number {
                    let memory = Self::memory(&context(&self.directory)?, seed)?;
                    let options = HoldOptions::new().label(seed.to_string());
                    let parts = [("memory", &memory)];
                    self.holder.hand_over(&kept(seed), &parts, options)?;
                }
                Ok("made".to_owned())
            }
            "keep" => {
                for number in 0..number {
                    let (held, _) = self.open(number)?;
                    self.backups.push(self.holder.back_up(&held)?);
                }
                Ok("kept".to_owned())
            }
            "hand-over" => measure(end, || self.hand_over()),
            "open" => {
                let mut next = 0;
                measure(end, || {
                    next += 1;
                    let kept = (self.backups.len() as u64).max(1);
                    Ok(self.open(next % kept)?.1)
                })
            }
            "back" => {
                let began = Instant::now();
                for number in 0..self.backups.len() as u64 {
                    while let Err(failure) = self.open(number) {
                        if began.elapsed() > RECOVERY * crate::slowdown() {
                            return Err(failure);
                        }
                        std::thread::sleep(PAUSE);
                    }
                }
                Ok(format!("{}", began.elapsed().as_millis()))
            }
            "forget" => {
                while let Some(name) = self.names.pop_front() {
                    self.holder.remove(&name)?;
                }
                Ok("forgotten".to_owned())
            }
            _ => Err(Failure::new(format!("{what}: what?"))),
        }
    }
}

/// Repeats a call until `end`, and returns the durations.
fn measure(
    end: Instant,
    mut call: impl FnMut() -> Result<Duration, Failure>,
) -> Result<String, Failure> {
    let mut took = vec![call()?];
    while Instant::now() < end {
        std::thread::sleep(PAUSE);
        took.push(call()?);
    }
    let took = took.iter().map(|took| took.as_micros().to_string());
    Ok(took.collect::<Vec<_>>().join(" "))
}

/// Runs an honest program, which executes each line of its standard input, until the input is
/// closed.
pub(crate) fn serve(directory: PathBuf) -> ExitCode {
    let context = match context(&directory) {
        Ok(context) => context,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    let mut program = Program {
        context,
        holder: Holder::new().socket_dir(&directory).timeout(limit()),
        directory,
        backups: Vec::new(),
        names: VecDeque::new(),
        next: 0,
    };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match program.answer(&line) {
            Ok(answer) => format!("ok {answer}"),
            Err(failure) => format!("failed {}", failure.to_string().replace('\n', " ")),
        };
        let mut output = std::io::stdout().lock();
        if writeln!(output, "{answer}")
            .and_then(|()| output.flush())
            .is_err()
        {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// An honest program, as seen by the siege.
pub(super) struct Honest(Running);

impl Honest {
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        user: Option<u32>,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let command = command.args(["attack", ROLE]).arg(directory);
        Ok(Self(Running::start(command)?))
    }

    /// Sends a command line. [`Self::hear`] returns the answer.
    pub(super) fn say(&mut self, line: &str) -> Result<(), Failure> {
        self.0.say(line)
    }

    /// Returns the answer to a command that takes `length` if nothing delays it.
    pub(super) fn hear(&mut self, length: Duration) -> Result<String, Failure> {
        // A late call ends within its own limit and reports that it is late.
        let limit = length + RECOVERY * crate::slowdown() + 4 * limit();
        let answer = self.0.hear(limit)?;
        match answer.split_once(' ') {
            Some(("ok", answer)) => Ok(answer.to_owned()),
            _ => Err(Failure::new(answer)),
        }
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<String, Failure> {
        self.say(line)?;
        self.hear(Duration::ZERO)
    }
}
