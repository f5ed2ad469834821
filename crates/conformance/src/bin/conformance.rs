//! Runs the suite on a device: `conformance DEVICE [--list] [FILTER]`.
//!
//! Needs `crosshandle-peer` beside it, and nothing else. Each case runs in a process of its own,
//! so that a crash or a hang is that case's alone. Ends with the counts; exit code 1 if a case
//! failed, 2 for a wrong command line.

use crosshandle_conformance::{Outcome, find, run, suite};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: conformance DEVICE [--list] [FILTER]";
/// How long a case may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Exit codes of a case's process.
const SKIPPED: u8 = 77;
const UNAVAILABLE: u8 = 78;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [_, "--case", name] => one(words[0], name),
        ["--list"] | [_, "--list"] => {
            suite().iter().for_each(|case| println!("{}", case.name));
            ExitCode::SUCCESS
        }
        [device] if !device.starts_with('-') => all(device, ""),
        [device, filter] if !filter.starts_with('-') => all(device, filter),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs a case in this process.
fn one(device: &str, name: &str) -> ExitCode {
    let Some(case) = find(name) else {
        eprintln!("no case {name}");
        return ExitCode::from(2);
    };
    match peer().map(|peer| run(case, device, &peer)) {
        Ok(Ok(Outcome::Passed(notes))) => {
            print!("{notes}");
            ExitCode::SUCCESS
        }
        Ok(Ok(Outcome::Skipped(capability))) => {
            print!("the device lacks {capability}");
            ExitCode::from(SKIPPED)
        }
        Ok(Ok(Outcome::Unavailable(reason))) => {
            print!("{reason}");
            ExitCode::from(UNAVAILABLE)
        }
        Ok(Err(failure)) => {
            print!("{failure}");
            ExitCode::FAILURE
        }
        Err(error) => {
            print!("finding the peer program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn peer() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let peer = own
        .parent()
        .unwrap_or(Path::new("."))
        .join("crosshandle-peer");
    std::fs::metadata(&peer)
        .map_err(|error| std::io::Error::other(format!("{}: {error}", peer.display())))?;
    Ok(peer)
}

fn all(device: &str, filter: &str) -> ExitCode {
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for case in suite().iter().filter(|case| case.name.contains(filter)) {
        let started = Instant::now();
        let (result, text) = in_process_of_its_own(device, case.name);
        let taken = started.elapsed().as_secs_f64();
        match result {
            "ok" => passed += 1,
            "skipped" | "unavailable" => skipped += 1,
            _ => failed += 1,
        }
        let text = text.trim().replace('\n', "\n    ");
        println!("{result:<12} {taken:>7.2} s  {:<45} {text}", case.name);
    }
    println!("{device}: {passed} passed, {skipped} skipped, {failed} failed");
    if failed == 0 && passed + skipped > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What became of a case, in a word, and what it said.
fn in_process_of_its_own(device: &str, name: &str) -> (&'static str, String) {
    let child = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args([device, "--case", name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return ("failed", error.to_string()),
    };
    let mut output = child.stdout.take();
    let mut errors = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = output
            .as_mut()
            .map(|output| output.read_to_string(&mut text));
        text
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors
            .as_mut()
            .map(|errors| errors.read_to_string(&mut text));
        text
    });
    let end = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    let complaints = complaints.join().unwrap_or_default();
    match status.map(|status| (status, status.code())) {
        None => ("late", format!("not done within {LIMIT:?} {complaints}")),
        Some((_, Some(0))) => ("ok", text),
        Some((_, Some(code))) if code == i32::from(SKIPPED) => ("skipped", text),
        Some((_, Some(code))) if code == i32::from(UNAVAILABLE) => ("unavailable", text),
        Some((status, None)) => ("crashed", format!("{status} {text} {complaints}")),
        Some(_) => ("failed", format!("{text} {complaints}")),
    }
}
