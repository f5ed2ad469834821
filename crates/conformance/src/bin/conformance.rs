//! Runs the suite:
//! `conformance [--device D] [--peer-device D] [--jobs N] [--under COMMAND] [--list] [FILTER]`.
//!
//! Without options, all contexts are on the host. `--device cuda:0` puts the contexts of the cases
//! and of their peers on that device. `--peer-device cuda:1` puts the peers' contexts on another
//! device. `--under "compute-sanitizer --error-exitcode 9"` runs each case under a checker, and
//! gives it more time.
//!
//! `conformance figures [ATTACKER]` measures honest processes during each attack. It prints how
//! long opens and bare exchanges take, and how much the exporter's memory grows.
//!
//! `conformance holders` besieges a holder with hostile programs of one user and of two, next to
//! honest programs. It needs `crosshandle` in its directory.
//!
//! `conformance links` connects honest programs to a linked host that lies. It needs `crosshandle`
//! too.
//!
//! `conformance faults` runs workloads with faults at every step. `conformance soak` mixes faults
//! at random moments with attackers (see the module `faults`). `conformance gpu-deaths` kills
//! processes that share GPU memory (see `faults/gpu_deaths.rs`).
//!
//! The program needs `crosshandle-peer` in its directory, and nothing else. Each case runs in a
//! separate process, so a crash or a hang affects only that case. `--jobs` sets how many cases run
//! at a time. The last line contains the counts. The exit code is 1 if a case failed, and 2 for a
//! wrong command line.

use crosshandle_conformance::attackers::{LinkSiege, Siege};
use crosshandle_conformance::{
    Case, Devices, Outcome, SLOWDOWN, attackers, faults, find, run, slowdown, suite,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: conformance [--device D] [--peer-device D] [--jobs N] \
     [--under COMMAND] [--list] [FILTER]";
const LINKS_USAGE: &str = "usage: conformance links [--millis N]";
const HOLDERS_USAGE: &str = "usage: conformance holders [--sample] [--short] [--millis N] [--idle] [--two-users] [--attacker NAME]";
/// How long each attacker of a holder attacks in the sample.
const SAMPLE_LENGTH: Duration = Duration::from_millis(120);
/// Terms of the attackers in the sample. They get only processor time that no other program wants,
/// so the sample shows the holder's own time.
const SAMPLE_TERMS: [bool; 1] = [true];
/// Time limit of a case. A hanging case takes this long.
const CASE_TIME_LIMIT: Duration = Duration::from_secs(120);
/// Factor by which every time limit grows under a checker.
const CHECKER_SLOWDOWN: u32 = 4;
/// Exit code of a case that was skipped. `UNAVAILABLE` is that of a case whose precondition the
/// machine refused.
const SKIPPED: u8 = 77;
const UNAVAILABLE: u8 = 78;

/// The options of the command line.
struct Arguments {
    devices: Devices,
    jobs: usize,
    /// The words of a command that runs each case's process. It is empty without such a command.
    under: Vec<String>,
    list: bool,
    /// The name of the only case to run in this process.
    case: Option<String>,
    filter: String,
}

impl Arguments {
    fn read() -> Option<Self> {
        let (mut own, mut peer, mut jobs) = (None, None, 1);
        let (mut list, mut case, mut filter) = (false, None, None);
        let mut under = Vec::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--device" => own = Some(words.next()?),
                "--peer-device" => peer = Some(words.next()?),
                "--jobs" => jobs = words.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
                "--under" => under.extend(words.next()?.split_whitespace().map(String::from)),
                "--case" => case = Some(words.next()?),
                "--list" => list = true,
                _ if word.starts_with('-') || filter.is_some() => return None,
                _ => filter = Some(word),
            }
        }
        let own = own.unwrap_or_else(|| "host".into());
        let peer = peer.unwrap_or_else(|| own.clone());
        Some(Self {
            devices: Devices { own, peer },
            jobs,
            under,
            list,
            case,
            filter: filter.unwrap_or_default(),
        })
    }

    /// Returns the factor by which time limits grow.
    fn slowdown(&self) -> u32 {
        match self.under.is_empty() {
            true => slowdown(),
            false => CHECKER_SLOWDOWN.max(slowdown()),
        }
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next();
    if command.as_deref() == Some("attack") {
        return attackers::serve(words);
    }
    if command.as_deref() == Some("figures") {
        let filter = words.next().unwrap_or_default();
        let shown = peer().map(|peer| attackers::figures(&peer, &filter));
        return match shown {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(failure)) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
            Err(error) => {
                eprintln!("finding the peer program: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if command.as_deref() == Some("holders") {
        return holders(words);
    }
    if command.as_deref() == Some("links") {
        return links(words);
    }
    if let Some("faults" | "soak" | "gpu-deaths") = command.as_deref() {
        return match peer() {
            Ok(peer) if command.as_deref() == Some("soak") => faults::run_soak(words, &peer),
            Ok(peer) if command.as_deref() == Some("gpu-deaths") => {
                faults::run_gpu_deaths(words, &peer)
            }
            Ok(peer) => faults::run(words, &peer),
            Err(error) => {
                eprintln!("finding the peer program: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let Some(arguments) = Arguments::read() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if arguments.list {
        suite().iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    match &arguments.case {
        Some(name) => one(&arguments.devices, name),
        None => all(&arguments),
    }
}

/// Runs `conformance holders` with the words after it.
fn holders(mut words: impl Iterator<Item = String>) -> ExitCode {
    let mut siege = match peer() {
        Ok(peer) => Siege::of(peer.with_file_name("crosshandle")),
        Err(error) => {
            eprintln!("finding the programs: {error}");
            return ExitCode::FAILURE;
        }
    };
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok());
        let is_good = match word.as_str() {
            "--sample" => {
                siege.length = SAMPLE_LENGTH;
                siege.terms = &SAMPLE_TERMS;
                siege.is_sample = true;
                true
            }
            "--short" => {
                siege.is_sample = true;
                true
            }
            "--millis" => number()
                .map(|millis| siege.length = Duration::from_millis(millis))
                .is_some(),
            "--idle" => {
                siege.terms = &SAMPLE_TERMS;
                true
            }
            "--two-users" => {
                siege.only_two_users = true;
                true
            }
            "--attacker" => words.next().map(|name| siege.attacker = name).is_some(),
            _ => false,
        };
        if !is_good {
            eprintln!("{HOLDERS_USAGE}");
            return ExitCode::from(2);
        }
    }
    match attackers::siege(&siege) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `conformance links` with the words after it.
fn links(mut words: impl Iterator<Item = String>) -> ExitCode {
    let command = match peer() {
        Ok(peer) => peer.with_file_name("crosshandle"),
        Err(error) => {
            eprintln!("finding the programs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut length = Duration::ZERO;
    while let Some(word) = words.next() {
        let millis = words.next().and_then(|text| text.parse().ok());
        match (word.as_str(), millis) {
            ("--millis", Some(millis)) => length = Duration::from_millis(millis),
            _ => {
                eprintln!("{LINKS_USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    match attackers::link_siege(&LinkSiege { command, length }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a case in this process, and returns its exit code.
fn one(devices: &Devices, name: &str) -> ExitCode {
    let Some(case) = find(name) else {
        eprintln!("no case {name}");
        return ExitCode::from(2);
    };
    match peer().map(|peer| run(case, devices, &peer)) {
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

fn all(arguments: &Arguments) -> ExitCode {
    let filter = &arguments.filter;
    let cases = suite().iter().filter(|case| case.name.contains(filter));
    let cases = Mutex::new(cases);
    let counts = Mutex::new(BTreeMap::<&str, u32>::new());
    let next = || -> Option<&Case> { cases.lock().expect("no case panics here").next() };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let result = show(arguments, case);
                    let mut counts = counts.lock().expect("no case panics here");
                    *counts.entry(result).or_default() += 1;
                }
            });
        }
    });
    let counts = counts.into_inner().expect("no case panics here");
    let count = |results: &[&str]| -> u32 {
        let counts = results.iter().filter_map(|result| counts.get(result));
        counts.sum()
    };
    let (passed, skipped) = (count(&["ok"]), count(&["skipped", "unavailable"]));
    let failed = counts.values().sum::<u32>() - passed - skipped;
    let Devices { own, peer } = &arguments.devices;
    println!("{own} with {peer}: {passed} passed, {skipped} skipped, {failed} failed");
    if failed == 0 && passed + skipped > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a case in a separate process, prints its line, and returns its result as a word.
fn show(arguments: &Arguments, case: &Case) -> &'static str {
    let started = Instant::now();
    let (result, text) = in_process_of_its_own(arguments, case.name);
    let taken = started.elapsed().as_secs_f64();
    let text = text.trim().replace('\n', "\n    ");
    println!("{result:<12} {taken:>7.2} s  {:<45} {text}", case.name);
    result
}

/// Runs a case in a separate process. Returns its result as a word, and its output.
fn in_process_of_its_own(arguments: &Arguments, name: &str) -> (&'static str, String) {
    let Arguments { devices, under, .. } = arguments;
    let child = std::env::current_exe().and_then(|program| {
        let mut words = under.iter().map(OsStr::new).chain([program.as_os_str()]);
        Command::new(words.next().unwrap_or_default())
            .env(SLOWDOWN, arguments.slowdown().to_string())
            .args(words)
            .args(["--device", &devices.own, "--peer-device", &devices.peer])
            .args(["--case", name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return ("failed", error.to_string()),
    };
    let output = collect(child.stdout.take());
    let complaints = collect(child.stderr.take());
    let limit = CASE_TIME_LIMIT * arguments.slowdown();
    let status = wait(&mut child, limit);
    let text = output.join().unwrap_or_default();
    let complaints = complaints.join().unwrap_or_default();
    match status.map(|status| (status, status.code())) {
        None => ("late", format!("not done within {limit:?} {complaints}")),
        Some((_, Some(0))) => ("ok", text),
        Some((_, Some(code))) if code == i32::from(SKIPPED) => ("skipped", text),
        Some((_, Some(code))) if code == i32::from(UNAVAILABLE) => ("unavailable", text),
        Some((status, None)) => ("crashed", format!("{status} {text} {complaints}")),
        Some(_) => ("failed", format!("{text} {complaints}")),
    }
}

/// Waits for a child, and kills it at the time limit.
fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Starts a thread that reads the whole output of a child.
fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
