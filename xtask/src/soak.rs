//! Faults in the processes of a workload: the fixed sample of every check, the soak, and the
//! planted bugs that they and the tests must find.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::step::{Finished, Step, say, seconds};
use crate::workspace::Workspace;
use crate::{Result, process, tools};

/// The programs of the fault harness.
const PROGRAMS: [&str; 3] = ["conformance", "crosshandle-peer", "crosshandle"];
/// Environment variable that selects the bug in a build with `planted-bugs`.
const PLANTED_BUG: &str = "CROSSHANDLE_PLANTED_BUG";
/// Number of cases that a sample runs at a time. They mostly wait, so it may exceed the number of
/// processors.
const JOBS: &str = "6";
/// Number of cases in the sample on Level Zero.
const LEVEL_ZERO_CASES: &str = "80";
/// Time after which the sample on Level Zero ends, in minutes, even if cases remain.
const LEVEL_ZERO_MINUTES: &str = "1";
/// Approximate number of attacks in a whole siege of a holder.
const SIEGE_ATTACKS: u64 = 60;
/// Longest time of each of them, in milliseconds.
const MAX_ATTACK_MILLIS: u64 = 5_000;
/// Time limit of a check that must find a planted bug.
const CHECK_LIMIT: Duration = Duration::from_secs(200);

/// Builds the harness with a feature, and copies its programs to a separate directory, because
/// other builds replace them.
fn build(workspace: &Workspace, feature: &str) -> Result<()> {
    let feature = format!("crosshandle-conformance/{feature}");
    let mut command = workspace.cargo(&["build", "--locked", "--bins", "--features", &feature]);
    // Both packages are built together, so that the feature also applies to the command.
    command.args(["--package", "crosshandle-conformance"]);
    command.args(["--package", "crosshandle-cli"]);
    Step::new(workspace, "build the fault harness", command).run()?;
    let directory = directory(workspace);
    let copied = fs::create_dir_all(&directory).and_then(|()| {
        PROGRAMS.iter().try_for_each(|program| {
            let built = workspace.target.join("debug").join(program);
            let kept = directory.join(program);
            // A process may still run the old program.
            let _ = fs::remove_file(&kept);
            fs::copy(built, kept).map(drop)
        })
    });
    copied.map_err(|error| format!("cannot keep the fault harness: {error}"))
}

fn directory(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fault-harness")
}

fn harness(workspace: &Workspace, words: &[&str]) -> Command {
    let mut command = Command::new(directory(workspace).join(PROGRAMS[0]));
    command.args(words);
    command
}

/// Runs the fixed sample of faults at every step on the host.
pub(crate) fn sample(workspace: &Workspace) -> Result<()> {
    build(workspace, "fault-steps")?;
    let command = harness(workspace, &["faults", "--sample", "--jobs", JOBS]);
    Step::new(workspace, "faults at every step", command).run_noting(last_line)?;
    let words = ["faults", "--programs", "--sample", "--jobs", JOBS];
    let command = harness(workspace, &words);
    Step::new(workspace, "faults of holders, models and links", command).run_noting(last_line)?;
    let command = harness(workspace, &["holders", "--sample"]);
    Step::new(workspace, "holders under siege", command).run_noting(last_line)
}

/// Runs a smaller sample on the simulated Level Zero driver, with the stock loader in the directory
/// `loader`. [`sample`] must run first, because it builds the harness.
pub(crate) fn sample_on_level_zero(workspace: &Workspace, loader: &Path) -> Result<()> {
    let build = workspace.cargo(&["build", "--locked", "--package", "level-zero-sim"]);
    Step::new(workspace, "build the simulated driver", build).run()?;
    let driver = workspace.target.join("debug/libze_sim.so");
    let words = [
        "faults",
        "--sample",
        "--jobs",
        JOBS,
        "--device",
        "level_zero:0",
    ];
    let mut command = harness(workspace, &words);
    command.args(["--cases", LEVEL_ZERO_CASES, "--minutes", LEVEL_ZERO_MINUTES]);
    command
        .env("LD_LIBRARY_PATH", loader)
        .env("ZE_ENABLE_ALT_DRIVERS", driver);
    Step::new(workspace, "faults on Level Zero", command).run_noting(last_line)
}

fn last_line(finished: &Finished) -> Result<Option<String>> {
    let output = finished.output()?;
    Ok(output.lines().next_back().map(str::to_owned))
}

/// Besieges a holder for at most a third of this many minutes. Then replaces this process by a soak
/// of this many minutes.
pub(crate) fn run(workspace: &Workspace, minutes: u64, device: &str) -> Result<()> {
    build(workspace, "fault-steps")?;
    let length = (minutes * 60_000 / 3 / SIEGE_ATTACKS).clamp(300, MAX_ATTACK_MILLIS);
    let siege = harness(workspace, &["holders", "--millis", &length.to_string()]).status();
    match siege {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("holders under siege: {status}")),
        Err(error) => return Err(format!("cannot besiege a holder: {error}")),
    }
    let minutes = minutes.to_string();
    let words = ["soak", "--minutes", &minutes, "--device", device];
    let error = harness(workspace, &words).args(["--jobs", "2"]).exec();
    Err(format!("cannot run the soak: {error}"))
}

/// The check that finds a planted bug.
#[derive(Clone, Copy)]
enum Finder {
    /// The program `conformance faults`.
    Faults,
    /// A case of the suite.
    Case(&'static str),
    /// A test of the library.
    Test(&'static str),
    /// No check here. The bug cannot be put back by a switch, and the text says what detects it.
    Elsewhere(&'static str),
}

/// The bugs of a build with `planted-bugs`, with their effect and with what finds each.
const BUGS: &[(&str, &str, Finder)] = &[
    (
        "lost-wake-up",
        "who fails the signals of a dead process does not wake their waiters",
        Finder::Faults,
    ),
    (
        "early-reuse",
        "an importer looks at the generation before it counts its open",
        Finder::Faults,
    ),
    (
        "finding-1",
        "no key is checked",
        Finder::Case("hostile::a_key_opens_one_object_alone"),
    ),
    (
        "finding-2",
        "a peer's descriptors are closed where they arrive",
        Finder::Test("a_peers_descriptor_blocks_nobody"),
    ),
    (
        "finding-3",
        "sleeps have no timeout",
        Finder::Test("a_requeued_sleeper_keeps_its_timeout"),
    ),
    (
        "finding-4",
        "the exporter walks by words that importers write",
        Finder::Elsewhere(
            "those words are gone: the case hostile::scribbles_stay_in_their_arena writes all there are",
        ),
    ),
    (
        "finding-5",
        "connections have no limits",
        Finder::Test("connections_that_say_nothing_are_few_and_short"),
    ),
    (
        "finding-6",
        "the limit of files is not looked at",
        Finder::Test("a_limit_of_files_is_no_signal"),
    ),
    (
        "finding-7",
        "late signals have no limit",
        Finder::Test(
            "signals_behind_one_that_never_completes_are_bounded_and_end_with_their_context",
        ),
    ),
    (
        "finding-8",
        "attachments are kept without their exporter's number",
        Finder::Case("impostor::forgeries_stain_no_original"),
    ),
    (
        "finding-9",
        "the overflow user is treated as a known user",
        Finder::Test("users_who_are_not_mapped_are_nobody"),
    ),
    (
        "finding-10",
        "a forked child keeps its parent's sockets",
        Finder::Test("a_child_does_not_keep_a_dead_importer_attached"),
    ),
    (
        "finding-11",
        "links in directories that everyone may write to are followed",
        Finder::Test("links_of_others_are_refused"),
    ),
    (
        "finding-12",
        "32 bits of a generation are compared",
        Finder::Case("hostile::a_key_opens_one_object_alone"),
    ),
    (
        "finding-13",
        "who cannot lock its place is refused",
        Finder::Test("places_that_are_held_keep_nobody_out"),
    ),
    (
        "finding-14",
        "each receive starts the timeout anew",
        Finder::Test("one_deadline_holds_for_all_that_is_waited_for"),
    ),
    (
        "finding-15",
        "`read -o` writes in place",
        Finder::Elsewhere("the command's tests: a_full_disk_keeps_the_old_file"),
    ),
    (
        "finding-16",
        "a panic ends the liveness thread",
        Finder::Test("a_panic_on_the_thread_drops_no_lock"),
    ),
];

/// Plants one bug after the other, and prints what finds each and how soon. Only bugs whose names
/// contain `filter` are planted.
pub(crate) fn planted(workspace: &Workspace, filter: &str) -> Result<()> {
    build(workspace, "planted-bugs")?;
    let runner = tools::NEXTEST.get(workspace)?;
    let tests = |words: &[&str]| {
        let mut command = Command::new(&runner);
        workspace.prepare(&mut command);
        command.args(["nextest", "run", "--locked", "--package", "crosshandle"]);
        command.args(["--features", "planted-bugs"]).args(words);
        command
    };
    Step::new(workspace, "build the tests with bugs", tests(&["--no-run"])).run()?;
    let mut missed = Vec::new();
    println!("| bug | what it does | found by | after |\n|---|---|---|---|");
    for (bug, what, finder) in BUGS.iter().filter(|(bug, ..)| bug.contains(filter)) {
        let check = |planted: &str| {
            let command = match finder {
                Finder::Faults => harness(workspace, &["faults", "--jobs", "2", "--planted", bug]),
                Finder::Case(name) => harness(workspace, &[name]),
                Finder::Test(name) => tests(&["-E", &format!("test(/(^|::){name}$/)")]),
                Finder::Elsewhere(_) => return Ok(None),
            };
            passes(command, planted).map(Some)
        };
        let started = Instant::now();
        let (finder, found) = match finder {
            Finder::Faults => ("conformance faults".to_owned(), check("")?),
            Finder::Case(name) => (format!("case {name}"), check(bug)?.map(|passes| !passes)),
            Finder::Test(name) => (format!("test {name}"), check(bug)?.map(|passes| !passes)),
            Finder::Elsewhere(text) => ((*text).to_owned(), None),
        };
        let taken = seconds(started.elapsed());
        let is_honest = finder.starts_with("conformance") || check("")? != Some(false);
        let after = match found {
            None => "–".to_owned(),
            Some(true) if is_honest => taken,
            Some(true) => "never: the check fails without the bug, too".to_owned(),
            Some(false) => "never".to_owned(),
        };
        if after.starts_with("never") {
            missed.push(*bug);
        }
        say(&format!("| {bug} | {what} | {finder} | {after} |"));
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("not found: {}", missed.join(", "))),
    }
}

/// Returns whether a check passes with a bug. A late check does not pass.
fn passes(mut command: Command, bug: &str) -> Result<bool> {
    command.env(PLANTED_BUG, bug).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let limit = match command.get_args().any(|word| word == "--planted") {
        true => 10 * CHECK_LIMIT,
        false => CHECK_LIMIT,
    };
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot run a check: {error}"))?;
    let ended = process::wait(&mut child, limit)?;
    Ok(ended.is_some_and(|status| status.success()))
}
