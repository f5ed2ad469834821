//! Processes that answer lines with lines.

use crate::failure::Failure;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A process with lines of input and output. It is killed on drop.
pub(super) struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self, Failure> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("no pipes"));
        };
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    pub(super) fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Returns the next line of output.
    pub(super) fn hear(&self, limit: Duration) -> Result<String, Failure> {
        Ok(self.lines.recv_timeout(limit)?)
    }
}
