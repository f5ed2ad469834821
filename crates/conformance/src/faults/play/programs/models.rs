//! Programs that update a model in place, and a program that reads the model at the same time.
//!
//! The model has one tensor `t` of bytes. A writer fills the tensor with one byte value, so a
//! reading with two different values is a mixture of two updates.

use super::BROKEN_PROMISE;
use crate::harness::slowdown;
use crosshandle::holder::ClaimOptions;
use crosshandle_store::{Error, Model, OpenOptions, Result, Store};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const TENSOR: &str = "t";
/// Timeout of each wait of a reader.
const WAIT: Duration = Duration::from_millis(200);
/// Maximum time by which a wait may exceed its timeout.
const LATENESS: Duration = Duration::from_secs(1);
/// Timeout of a writer that waits for the previous writer. A claim takes long while many processes
/// start and end.
const WRITER_WAIT: Duration = Duration::from_secs(30);
/// Time within which a reader must read the byte that it waits for.
const READER_LIMIT: Duration = Duration::from_secs(60);
/// Pause of a reader after a temporary error.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs `write MODEL BYTE [claim]` or `follow MODEL BYTE`. Returns `None` for other words.
pub fn run_model_program(words: &[&str]) -> Option<ExitCode> {
    let (result, what) = match *words {
        ["write", model, byte] => (write(model, byte.parse().ok()?, false), "write"),
        ["write", model, byte, "claim"] => (write(model, byte.parse().ok()?, true), "write"),
        ["follow", model, byte] => (follow(model, byte.parse().ok()?), "follow"),
        _ => return None,
    };
    Some(match result {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(broken)) => {
            eprintln!("{what}: {broken}");
            ExitCode::from(BROKEN_PROMISE)
        }
        Err(error) => {
            eprintln!("{what}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// A description of a broken promise, if one was broken.
type Broken = Option<String>;

/// Fills the model with a byte value, in two writes.
fn write(name: &str, byte: u8, claims: bool) -> Result<Broken> {
    let store = Store::new();
    let mut updater = match claims {
        true => store.claim(name, &ClaimOptions::new().wait(WRITER_WAIT))?,
        false => store.updater_timeout(name, WRITER_WAIT)?,
    };
    let len = updater.manifest().tensors[TENSOR].bytes;
    let bytes = vec![byte; len as usize];
    let (one, two) = bytes.split_at(bytes.len() / 2);
    let mut update = updater.begin(WRITER_WAIT)?;
    update.write_part(TENSOR, 0, one)?;
    update.write_part(TENSOR, one.len() as u64, two)?;
    update.finish()?;
    updater.end()?;
    Ok(None)
}

/// Reads the model between updates until all bytes have the value `wanted`. Prints a line when the
/// model is open.
fn follow(name: &str, wanted: u8) -> Result<Broken> {
    let store = Store::new();
    let until = Instant::now() + READER_LIMIT * slowdown();
    let model = loop {
        let options = OpenOptions::new().patience(WAIT);
        let (opened, broken) = timed("open", || store.open_with(name, &options));
        match opened {
            _ if broken.is_some() => return Ok(broken),
            Ok(model) => break model,
            Err(error) if may_pass(&error) && Instant::now() < until => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    };
    println!("open");
    let mut bytes = vec![0; model.tensor(TENSOR)?.info.bytes as usize];
    while Instant::now() < until {
        let (number, broken) = timed("stable", || model.stable(WAIT));
        if broken.is_some() {
            return Ok(broken);
        }
        let number = match number {
            Ok(number) => number,
            Err(error) if may_pass(&error) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(byte) = reading(&model, number, &mut bytes)? {
            match byte {
                Err(mixture) => return Ok(Some(mixture)),
                Ok(byte) if byte == wanted => return Ok(None),
                Ok(_) => {}
            }
        }
        let (next, broken) = timed("next_update", || model.next_update(number, WAIT));
        match next {
            _ if broken.is_some() => return Ok(broken),
            Ok(_) => {}
            Err(error) if may_pass(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(format!(
        "no whole reading with the byte {wanted} in {READER_LIMIT:?}"
    )))
}

/// Returns the byte value that fills the model, or a description of a mixture. Returns `None` if an
/// update happened during the reading.
fn reading(
    model: &Model,
    number: u64,
    bytes: &mut [u8],
) -> Result<Option<std::result::Result<u8, String>>> {
    model.tensor(TENSOR)?.bytes()?.read(0, bytes)?;
    if !model.is_still(number)? {
        return Ok(None);
    }
    let other = bytes.iter().find(|byte| **byte != bytes[0]);
    Ok(Some(match other {
        None => Ok(bytes[0]),
        Some(other) => Err(format!("a reading has the bytes {} and {other}", bytes[0])),
    }))
}

/// Returns whether a later call may succeed, because another writer ends or begins, or because the
/// writer had no descriptor left for a moment.
fn may_pass(error: &Error) -> bool {
    let is_limit = matches!(
        error,
        Error::Crosshandle(crosshandle::Error::LimitReached { .. })
    );
    error.is_timeout() || is_limit || matches!(error, Error::Torn)
}

/// Calls a function with the timeout [`WAIT`], and reports if it took much longer.
fn timed<T>(what: &str, call: impl FnOnce() -> T) -> (T, Broken) {
    let began = Instant::now();
    let result = call();
    let taken = began.elapsed();
    let is_late = taken > (WAIT + LATENESS) * slowdown();
    let broken = is_late.then(|| format!("{what} with a timeout of {WAIT:?} took {taken:?}"));
    (result, broken)
}
