//! Runs the suite, attackers and faults. `conformance --help` lists the commands.
//!
//! The program needs `crosshandle-peer` in its directory, and nothing else. Each case runs in a
//! separate process, so a crash or a hang affects only that case. `--jobs` sets how many cases run
//! at a time. The last line contains the counts. The exit code is 1 if a case failed, and 2 for a
//! wrong command line.

use clap::{Args, Parser, Subcommand};
use crosshandle_conformance::attackers::{LinkSiege, Siege};
use crosshandle_conformance::{
    Case, Devices, Failure, Outcome, SLOWDOWN, attackers, faults, find, run, run_replays, slowdown,
    suite,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Runs the conformance suite, or one of its tools
#[derive(Parser)]
#[command(name = "conformance", args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Tool>,
    #[command(flatten)]
    suite: Suite,
}

#[derive(Args)]
struct Suite {
    /// Device of the contexts of the cases
    #[arg(long, default_value = "host")]
    device: String,
    /// Device of the peers' contexts, if it is another one
    #[arg(long, value_name = "DEVICE")]
    peer_device: Option<String>,
    /// Number of cases that run at a time
    #[arg(long, value_name = "N", default_value = "1")]
    jobs: NonZeroUsize,
    /// Runs each case under a checker, such as "compute-sanitizer --error-exitcode 9", and gives it
    /// more time
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "",
        hide_default_value = true
    )]
    under: String,
    /// Prints the names of all cases
    #[arg(long)]
    list: bool,
    /// Runs only this case, in this process
    #[arg(long, value_name = "NAME", hide = true)]
    case: Option<String>,
    /// Only cases whose name contains this text
    #[arg(default_value = "", hide_default_value = true)]
    filter: String,
}

#[derive(Subcommand)]
enum Tool {
    /// Runs an attacker until its standard input is closed
    Attack {
        /// NAME DIRECTORY [HANDLE…]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Measures honest processes during each attack
    ///
    /// Prints how long opens and bare exchanges take, and how much the exporter's memory grows.
    Figures {
        /// Only attackers whose name contains this text
        #[arg(default_value = "", hide_default_value = true)]
        attacker: String,
    },
    /// Besieges a holder with hostile programs of one user and of two
    ///
    /// Honest programs run next to them. It needs `crosshandle` in its directory.
    Holders(Holders),
    /// Connects honest programs to linked hosts that lie
    ///
    /// It needs `crosshandle` in its directory.
    Links {
        /// Minimum time in milliseconds
        #[arg(long, value_name = "N", default_value_t = 0)]
        millis: u64,
    },
    /// Runs workloads with faults at every step
    Faults(faults::Options),
    /// Mixes faults at random moments with attackers
    Soak(faults::Plays),
    /// Kills members of channels after any instruction
    ChannelKills(faults::ChannelKills),
    /// Kills processes that share GPU memory
    GpuDeaths(faults::GpuDeaths),
    /// Replays a graph next to other signals, and checks that no replay is stale or lost
    Replays {
        /// Device of the graph
        #[arg(long, default_value = "host")]
        device: String,
        /// Device of the other process, if it is another one
        #[arg(long, value_name = "DEVICE")]
        peer_device: Option<String>,
        /// Number of replays
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        count: u64,
    },
}

#[derive(Args)]
struct Holders {
    /// As --short --idle, with attacks of 120 ms
    #[arg(long)]
    sample: bool,
    /// Does not wait for idle threads of the holder to end
    #[arg(long)]
    short: bool,
    /// Time of each attack in milliseconds
    #[arg(long, value_name = "N")]
    millis: Option<u64>,
    /// Attackers only get processor time that is otherwise idle
    #[arg(long)]
    idle: bool,
    /// Only the part with two users
    #[arg(long)]
    two_users: bool,
    /// Only attackers whose name contains this text
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    attacker: String,
}

impl Suite {
    fn devices(&self) -> Devices {
        let own = self.device.clone();
        Devices {
            peer: self.peer_device.clone().unwrap_or_else(|| own.clone()),
            own,
        }
    }

    /// Returns the factor by which time limits grow.
    fn slowdown(&self) -> u32 {
        match self.under.is_empty() {
            true => slowdown(),
            false => CHECKER_SLOWDOWN.max(slowdown()),
        }
    }
}

impl Holders {
    fn siege(self, command: PathBuf) -> Siege {
        let mut siege = Siege::of(command);
        if self.sample {
            siege.length = SAMPLE_LENGTH;
        }
        if let Some(millis) = self.millis {
            siege.length = Duration::from_millis(millis);
        }
        if self.sample || self.idle {
            siege.terms = &SAMPLE_TERMS;
        }
        siege.is_sample = self.sample || self.short;
        siege.only_two_users = self.two_users;
        siege.attacker = self.attacker;
        siege
    }
}

fn main() -> ExitCode {
    let CommandLine { command, suite } = CommandLine::parse();
    let done = match command {
        None => return run_suite(&suite),
        Some(Tool::Attack { words }) => return attackers::serve(words.into_iter()),
        Some(tool) => peer().and_then(|peer| match tool {
            Tool::Attack { .. } => Ok(true),
            Tool::Figures { attacker } => attackers::figures(&peer, &attacker).map(|()| true),
            Tool::Holders(holders) => {
                attackers::siege(&holders.siege(peer.with_file_name("crosshandle")))
            }
            Tool::Links { millis } => attackers::link_siege(&LinkSiege {
                command: peer.with_file_name("crosshandle"),
                length: Duration::from_millis(millis),
            }),
            Tool::Faults(options) => faults::run(&options, &peer),
            Tool::Soak(plays) => faults::run_soak(&plays, &peer),
            Tool::ChannelKills(options) => faults::run_channel_kills(&options, &peer),
            Tool::GpuDeaths(options) => Ok(faults::run_gpu_deaths(&options, &peer)),
            Tool::Replays {
                device,
                peer_device,
                count,
            } => {
                let devices = Devices {
                    peer: peer_device.unwrap_or_else(|| device.clone()),
                    own: device,
                };
                let outcome = run_replays(&devices, &peer, count)?;
                println!("{outcome:?}");
                Ok(matches!(outcome, Outcome::Passed(_)))
            }
        }),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_suite(options: &Suite) -> ExitCode {
    if options.list {
        suite().iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    match &options.case {
        Some(name) => one(&options.devices(), name),
        None => all(options),
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
        Ok(Err(failure)) | Err(failure) => {
            print!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn peer() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let peer = own
        .parent()
        .unwrap_or(Path::new("."))
        .join("crosshandle-peer");
    std::fs::metadata(&peer)
        .map_err(|error| Failure::new(format!("{}: {error}", peer.display())))?;
    Ok(peer)
}

fn all(options: &Suite) -> ExitCode {
    let filter = &options.filter;
    let cases = suite().iter().filter(|case| case.name.contains(filter));
    let cases = Mutex::new(cases);
    let counts = Mutex::new(BTreeMap::<&str, u32>::new());
    let next = || -> Option<&Case> { cases.lock().expect("no case panics here").next() };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.get() {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let result = show(options, case);
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
    let Devices { own, peer } = options.devices();
    println!("{own} with {peer}: {passed} passed, {skipped} skipped, {failed} failed");
    if failed == 0 && passed + skipped > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a case in a separate process, prints its line, and returns its result as a word.
fn show(options: &Suite, case: &Case) -> &'static str {
    let started = Instant::now();
    let (result, text) = in_process_of_its_own(options, case.name);
    let taken = started.elapsed().as_secs_f64();
    let text = text.trim().replace('\n', "\n    ");
    println!("{result:<12} {taken:>7.2} s  {:<45} {text}", case.name);
    result
}

/// Runs a case in a separate process. Returns its result as a word, and its output.
fn in_process_of_its_own(options: &Suite, name: &str) -> (&'static str, String) {
    let devices = options.devices();
    let child = std::env::current_exe().and_then(|program| {
        let under = options.under.split_whitespace().map(OsStr::new);
        let mut words = under.chain([program.as_os_str()]);
        Command::new(words.next().unwrap_or_default())
            .env(SLOWDOWN, options.slowdown().to_string())
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
    let limit = CASE_TIME_LIMIT * options.slowdown();
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
