//! Exporters that did not reply.

use super::text;
use crosshandle::report::{Silent, SilentReason};
use serde::Serialize;
use std::fmt;
use std::fs;

/// An exporter that did not reply, in the form of the JSON output.
#[derive(Serialize, Clone, Debug)]
pub(crate) struct SilentExporter {
    /// Path of the exporter's socket, or of a directory that could not be read.
    pub(crate) socket: String,
    /// Number of the exporter. The exporter's handles contain it.
    exporter: String,
    /// The id of the process that listens at the socket, if known.
    pub(crate) pid: Option<u32>,
    pub(crate) program: String,
    state: State,
    /// The reason in words.
    error: String,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The process has ended.
    Dead,
    /// The process was stopped by a signal or a debugger.
    Stopped,
    /// The process has not replied in time, for an unknown reason.
    Late,
    /// The query has failed.
    Failed,
}

impl SilentExporter {
    /// Converts the library's description. Returns `None` for a process of another user, because
    /// `ps` does not list such processes.
    pub(crate) fn new(silent: Silent) -> Option<Self> {
        let error = silent.to_string();
        let (state, program) = match (silent.reason, silent.pid) {
            (SilentReason::OtherUser { .. }, _) => return None,
            (SilentReason::Dead, _) => (State::Dead, String::new()),
            (SilentReason::Late, Some(pid)) if is_stopped(pid) => (State::Stopped, program(pid)),
            (SilentReason::Late, pid) => (State::Late, pid.map_or(String::new(), program)),
            (_, pid) => (State::Failed, pid.map_or(String::new(), program)),
        };
        Some(Self {
            socket: silent.socket.display().to_string(),
            exporter: silent.exporter,
            pid: silent.pid,
            program,
            state,
            error,
        })
    }

    pub(crate) fn is_late(&self) -> bool {
        matches!(self.state, State::Late | State::Stopped)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }
}

impl fmt::Display for SilentExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = match self.pid {
            Some(pid) => text::process(pid, &self.program),
            None => text::clean(&self.socket),
        };
        match self.state {
            State::Stopped => write!(f, "{process} is stopped and does not answer"),
            State::Late => write!(f, "{process} does not answer"),
            State::Dead | State::Failed => f.write_str(&self.error),
        }
    }
}

/// Returns `true` if a process was stopped by a signal or a debugger.
fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the program's name, which may contain any characters.
    let state = status.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with(['T', 't'])
}

fn program(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
