//! Tokens: secret words that a holder requires before a program may use a name.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::output::log::{self, Level};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The environment variable that contains the token for a command. Options override it.
pub(crate) const VARIABLE: &str = "CROSSHANDLE_TOKEN";

/// Maximum number of bytes that are read of a line with a token.
const MAX_LINE_BYTES: u64 = 4096;

/// The token that a command presents to the holder.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct ShownToken {
    /// The token itself. Other users can read it in the list of processes, so prefer --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file whose first line is the token for names that need one, or `-` for standard input
    /// [default: $CROSSHANDLE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ShownToken {
    /// Returns the token from the options or the environment, or `None` if there is none.
    pub(crate) fn get(&self) -> Result<Option<String>> {
        if let Some(token) = given("--token", self.token.as_deref(), self.token_file.as_deref())? {
            return Ok(Some(token));
        }
        match std::env::var(VARIABLE) {
            Ok(token) if token.is_empty() => Ok(None),
            Ok(token) => Ok(Some(token)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(Failure::error(format!("{VARIABLE}: {error}"))),
        }
    }
}

/// Returns the token that an option contains, or the token in the file that the option with the
/// suffix `-file` names.
pub(crate) fn given(
    option: &str,
    token: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<String>> {
    if let Some(token) = token {
        log::say(
            Level::Warn,
            format_args!(
                "warning: other users can read the value of {option} in the list of processes; use {option}-file"
            ),
        );
        return Ok(Some(token.to_owned()));
    }
    file.map(|file| read(file).context(format_args!("{option}-file {}", file.display())))
        .transpose()
}

/// Reads a token from the first line of a file, or from the next line of standard input if the path
/// is `-`.
fn read(path: &Path) -> Result<String> {
    let mut line = String::new();
    let doing = "reading a token";
    match path == Path::new("-") {
        // Each option with the path `-` reads its own line of standard input.
        true => io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut line),
        false => BufReader::new(File::open(path).context(doing)?.take(MAX_LINE_BYTES))
            .read_line(&mut line),
    }
    .context(doing)?;
    let token = line.trim_end_matches(['\n', '\r']);
    match token.is_empty() {
        true => Err(Failure::error("its first line is empty")),
        false => Ok(token.to_owned()),
    }
}
