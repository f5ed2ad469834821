//! Lines on standard error: progress, warnings, and the reason why a command fails.

use crate::output::clean;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Format of the lines on standard error.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    #[default]
    Text,
    /// A JSON object with `time` (seconds since 1970), `level`, `process` and `message`
    Json,
}

impl Format {
    /// Returns the format's name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

#[derive(Serialize)]
struct Line<'a> {
    time: f64,
    level: Level,
    process: u32,
    message: &'a str,
}

static FORMAT: OnceLock<Format> = OnceLock::new();

/// Sets the format of all lines of this process. Only the first call has an effect.
pub(crate) fn set_format(format: Format) {
    let _ = FORMAT.set(format);
}

/// Prints a line. Does nothing if standard error is closed.
pub(crate) fn say(level: Level, message: impl Display) {
    let message = message.to_string();
    let line = match FORMAT.get().copied().unwrap_or_default() {
        Format::Text => format!("crosshandle: {}\n", clean::line(&message)),
        Format::Json => {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
            let line = Line {
                time: since_1970.map_or(0.0, |time| time.as_secs_f64()),
                level,
                process: std::process::id(),
                message: &message,
            };
            let line = serde_json::to_string(&line).unwrap_or_default();
            format!("{}\n", clean::json(&line))
        }
    };
    // Write the line with one call, because other processes may write to the same file.
    let _ = io::stderr().write_all(line.as_bytes());
}
