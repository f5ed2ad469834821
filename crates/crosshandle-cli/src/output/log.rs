//! Lines on standard error: what is going on, what to be careful about, and why a command fails.

use crate::output::clean;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// How lines on standard error look.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    /// A line of words
    #[default]
    Text,
    /// An object with `time` (seconds since 1970), `level`, `process` and `message`
    Json,
}

impl Format {
    /// Returns the name by which an argument asks for it.
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

/// Sets how all lines of this process look. The first call counts.
pub(crate) fn set_format(format: Format) {
    let _ = FORMAT.set(format);
}

/// Prints a line. If standard error is closed, nothing can be done about that.
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
    // In one piece: other processes write to the same file.
    let _ = io::stderr().write_all(line.as_bytes());
}
