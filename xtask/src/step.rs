//! A check. It prints a line at its start and at its end, and its output only if it fails.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::workspace::Workspace;
use crate::{Result, process, progress};

/// Maximum number of bytes shown of a failed step's output. The log file contains all of it.
const SHOWN_BYTES: u64 = 256 * 1024;

/// A command that must succeed within its limit.
pub(crate) struct Step<'a> {
    workspace: &'a Workspace,
    name: String,
    command: Command,
    limit: Duration,
    repeat: Option<String>,
}

pub(crate) struct Finished {
    /// The failure, or `None` if the command exited with status 0 in time.
    problem: Option<String>,
    /// The file with everything that the step printed on either stream.
    log: PathBuf,
    duration: Duration,
}

impl<'a> Step<'a> {
    pub(crate) fn new(workspace: &'a Workspace, name: impl Into<String>, command: Command) -> Self {
        let limit = Duration::from_secs(30 * 60);
        Self {
            workspace,
            name: name.into(),
            command,
            limit,
            repeat: None,
        }
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the command that repeats the step, if it differs from the command that the step runs.
    pub(crate) fn repeat(mut self, command: impl Into<String>) -> Self {
        self.repeat = Some(command.into());
        self
    }

    /// Runs the step.
    ///
    /// # Errors
    /// Fails if the step fails or is late. Its output has then been printed.
    pub(crate) fn run(self) -> Result<()> {
        self.run_noting(|_| Ok(None)).map(drop)
    }

    /// Runs the step, lets `note` read its log, and adds the result to the line at the end.
    pub(crate) fn run_noting(
        mut self,
        note: impl FnOnce(&Finished) -> Result<Option<String>>,
    ) -> Result<()> {
        say(&format!("start  {}", self.name));
        let finished = self.execute()?;
        if let Some(problem) = &finished.problem {
            return Err(self.explain(&finished, problem));
        }
        let note = match note(&finished) {
            Ok(note) => note.map(|text| format!(", {text}")).unwrap_or_default(),
            Err(reason) => return Err(self.explain(&finished, &reason)),
        };
        let duration = seconds(finished.duration);
        let progress = progress::elapsed();
        say(&format!(
            "ok     {} ({duration}{note}){progress}",
            self.name
        ));
        Ok(())
    }

    /// Runs a step that may be skipped. If it does not succeed, returns the reason with the last
    /// line that the step printed.
    pub(crate) fn run_optional(mut self) -> Result<Option<String>> {
        say(&format!("start  {}", self.name));
        let finished = self.execute()?;
        let duration = seconds(finished.duration);
        let Some(problem) = &finished.problem else {
            say(&format!("ok     {} ({duration})", self.name));
            return Ok(None);
        };
        say(&format!("skip   {} ({duration})", self.name));
        let output = finished.end_of_output();
        let last = output
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        Ok(Some(match last {
            Some(last) => format!("{problem}: {last}"),
            None => problem.clone(),
        }))
    }

    fn execute(&mut self) -> Result<Finished> {
        let cannot = |what: &str, error: io::Error| format!("cannot {what}: {error}");
        let directory = self.workspace.target.join("xtask").join("logs");
        fs::create_dir_all(&directory)
            .map_err(|error| cannot("create the log directory", error))?;
        let log = directory.join(format!("{}.log", self.name.replace([' ', '/', ':'], "-")));
        let output = File::create(&log).map_err(|error| cannot("create a log file", error))?;
        let errors = output
            .try_clone()
            .map_err(|error| cannot("share a log file", error))?;
        self.command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);

        let started = Instant::now();
        let mut child = self
            .command
            .spawn()
            .map_err(|error| format!("cannot run `{}`: {error}", shell(&self.command)))?;
        let ended = process::wait(&mut child, self.limit)?;
        let problem = match ended {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("failed ({status})")),
            None => Some(format!("killed after {}", seconds(self.limit))),
        };
        let duration = started.elapsed();
        Ok(Finished {
            problem,
            log,
            duration,
        })
    }

    /// Prints the output of a failed step. Returns a text with the failure and the command that
    /// repeats the step.
    fn explain(&self, finished: &Finished, what: &str) -> String {
        say(&format!(
            "FAILED {} ({})",
            self.name,
            seconds(finished.duration)
        ));
        say(finished.end_of_output().trim_end());
        let repeat = self.repeat.clone().unwrap_or_else(|| self.typed());
        format!("{}: {what}\n  repeat it with: {repeat}", self.name)
    }

    /// Returns the command as a user would type it, with cargo by its name and tools by their path.
    fn typed(&self) -> String {
        let typed = shell(&self.command);
        let root = format!("{}/", self.workspace.root.display());
        match typed.split_once(' ') {
            Some((program, rest)) if program.ends_with("/cargo") => format!("cargo {rest}"),
            _ => typed,
        }
        .replace(&root, "")
    }
}

impl Finished {
    /// Returns everything that the step printed.
    pub(crate) fn output(&self) -> Result<String> {
        let bytes = fs::read(&self.log)
            .map_err(|error| format!("cannot read {}: {error}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the end of the step's output for display.
    fn end_of_output(&self) -> String {
        tail(&self.log)
    }
}

/// Formats `command` with shell quoting.
fn shell(command: &Command) -> String {
    let quoted = |text: &std::ffi::OsStr| {
        let text = text.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            text.into_owned()
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let skipped = file.metadata()?.len().saturating_sub(SHOWN_BYTES);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(match skipped {
            0 => text,
            _ => format!(
                "[{skipped} bytes before this are in {}]\n{text}",
                log.display()
            ),
        })
    };
    read().unwrap_or_else(|error| format!("[cannot read {}: {error}]", log.display()))
}

/// Prints a line. A closed standard output does not stop the checks.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints the checks that were skipped, each with its reason.
pub(crate) fn report_skipped(reasons: Vec<String>) {
    if reasons.is_empty() {
        say("skipped: nothing");
    }
    for reason in reasons {
        say(&format!("skipped: {reason}"));
    }
}

pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
