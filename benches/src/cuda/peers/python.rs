//! The process of a peer, a Python program that measures itself on request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Python code that runs the script from an environment variable, so that no file is needed.
const BOOT: &str = "import os; exec(os.environ['CROSSHANDLE_BENCH_SCRIPT'])";
const SCRIPT_VARIABLE: &str = "CROSSHANDLE_BENCH_SCRIPT";

/// A peer's process, which is killed and reaped when dropped. It also ends when this process ends.
pub(super) struct Peer {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Name and version of the peer.
    pub(super) name: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only if the process has been reaped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Peer {
    /// Starts a peer. Returns the reason as the inner error if the peer is not installed.
    pub(super) fn start(script: &str) -> Result<Result<Self, String>> {
        let spawned = Command::new("python3")
            .args(["-c", BOOT])
            .env(SCRIPT_VARIABLE, script)
            // Python must not import modules from the current directory.
            .env("PYTHONSAFEPATH", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = match spawned {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Err("absent: there is no python3".to_owned()));
            }
            Err(error) => return Err(error).context("cannot start python3"),
        };
        let questions = process.stdin.take().context("it has no standard input")?;
        let answers = process.stdout.take().context("it has no standard output")?;
        let mut peer = Self {
            process,
            questions,
            answers: BufReader::new(answers),
            name: String::new(),
        };
        let greeting = peer.receive_line()?;
        Ok(match greeting.split_once(' ') {
            Some(("ready", name)) => {
                peer.name = name.to_owned();
                Ok(peer)
            }
            Some(("absent", reason)) => Err(format!("absent: {reason}")),
            // The process has ended because an import failed. The reason was on its standard error,
            // which is discarded.
            _ => Err("absent: python3 does not have it".to_owned()),
        })
    }

    /// Makes the peer measure an ability `count` times. Returns the samples of each series by its
    /// name.
    pub(super) fn ask(
        &mut self,
        ability: &str,
        count: usize,
    ) -> Result<BTreeMap<String, Vec<f64>>> {
        writeln!(self.questions, "{ability} {count}").context("cannot ask a peer")?;
        let answer = self.receive_line()?;
        let answer: BTreeMap<String, Value> =
            serde_json::from_str(&answer).context("a peer has gone")?;
        if let Some(error) = answer.get("error") {
            bail!("a peer failed: {error}");
        }
        let series = |(name, value)| Ok((name, serde_json::from_value(value)?));
        answer.into_iter().map(series).collect()
    }

    /// Waits for the peer's next line.
    fn receive_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .context("cannot hear a peer")?;
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}
