//! Standard input: the text of a handle, and tokens.

pub(crate) mod token;

use crate::failure::{ErrorContext as _, Failure, Result};
use std::io::{self, BufRead};

/// Maximum number of bytes that are read from standard input for a handle. It is several times the
/// length of a handle.
const HANDLE_LINE_MAX_BYTES: u64 = 4096;

/// Returns the text of the HANDLE argument. If `given` is `-`, the text is the first line of
/// standard input.
pub(crate) fn handle_text(given: &str) -> Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut line = String::new();
    io::BufReader::new(io::Read::take(io::stdin(), HANDLE_LINE_MAX_BYTES))
        .read_line(&mut line)
        .context("reading the handle from standard input")?;
    if line.trim().is_empty() {
        return Err(Failure::error(
            "no handle on the first line of standard input; pipe one in, or give it as HANDLE",
        ));
    }
    Ok(line)
}
