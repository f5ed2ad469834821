//! The command line of `conformance faults` and `conformance soak`.

use super::play::Scene;
use super::play::programs;
use super::soak;
use super::step::CaseId;
use super::sweep::{self, CaseVerdict, Next, Recording, Tried};
use super::workload::{self, Workload};
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: conformance faults [--sample | --all] [--device D] [--seed N] [--jobs N] \
     [--cases N] [--workload NAME] [--minutes N] [--list] [--case ID [--shrink]] [--log] \
     [--programs]\n\
     or: conformance soak --minutes N [--device D] [--seed N] [--jobs N]";
/// Number of cases in the fixed sample.
const SAMPLE: usize = 500;
/// Length of a soak if the command line gives none.
const DEFAULT_SOAK: Duration = Duration::from_secs(60);
/// Number of cases between two progress messages.
const PROGRESS: usize = 1_000;
/// Maximum time of the fixed sample.
const SAMPLE_LIMIT: Duration = Duration::from_secs(270);

struct Arguments {
    device: String,
    seed: u64,
    jobs: usize,
    cases: Option<usize>,
    is_sample: bool,
    limit: Option<Duration>,
    workload: String,
    case: Option<String>,
    list: bool,
    log: bool,
    shrink: bool,
    programs: bool,
}

impl Arguments {
    fn is_host(&self) -> bool {
        self.device == "host"
    }

    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            device: "host".into(),
            seed: 1,
            jobs: 1,
            cases: None,
            is_sample: true,
            limit: None,
            workload: String::new(),
            case: None,
            list: false,
            log: false,
            shrink: false,
            programs: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: String| {
                text.parse::<u64>()
                    .map_err(|_| format!("{text}: a number?"))
            };
            match word.as_str() {
                "--sample" => arguments.is_sample = true,
                "--all" => arguments.is_sample = false,
                "--device" => arguments.device = value()?,
                "--seed" => arguments.seed = number(value()?)?,
                "--jobs" => arguments.jobs = number(value()?)?.max(1) as usize,
                "--cases" => arguments.cases = Some(number(value()?)? as usize),
                "--minutes" => {
                    arguments.limit = Some(Duration::from_secs(60 * number(value()?)?));
                }
                "--workload" => arguments.workload = value()?,
                "--case" => arguments.case = Some(value()?),
                "--list" => arguments.list = true,
                "--log" => arguments.log = true,
                "--shrink" => arguments.shrink = true,
                "--programs" => arguments.programs = true,
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(arguments)
    }
}

/// Runs `conformance soak` with the given arguments. `peer` is the program of the workers.
pub fn run_soak(words: impl Iterator<Item = String>, peer: &Path) -> ExitCode {
    let outcome = Arguments::read(words).map_err(Failure::new);
    let outcome = outcome.and_then(|arguments| {
        let limit = arguments.limit.unwrap_or(DEFAULT_SOAK);
        let directory = Directory::new(0)?;
        let scene = directory.scene(&arguments, peer);
        soak::run(&scene, arguments.seed, arguments.jobs, limit)
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs `conformance faults` with the given arguments. `peer` is the program of the workers.
pub fn run(words: impl Iterator<Item = String>, peer: &Path) -> ExitCode {
    let arguments = match Arguments::read(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if arguments.programs {
        let request = programs::Request {
            peer,
            cases: arguments.cases,
            jobs: arguments.jobs,
            story: &arguments.workload,
            is_sample: arguments.is_sample,
            limit: arguments.limit,
            case: arguments.case.as_deref(),
            list: arguments.list,
            is_logged: arguments.log,
        };
        return match programs::run(&request) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let outcome = match &arguments.case {
        Some(case) => case
            .parse()
            .map_err(Failure::new)
            .and_then(|case| one(&arguments, &case, peer)),
        None => all(&arguments, peer),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// A temporary socket directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(number: usize) -> Result<Self, Failure> {
        // The name is short, because a socket's path has at most 107 characters.
        let name = format!("xhf-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700))?;
        Ok(Self(path))
    }

    fn scene(&self, arguments: &Arguments, peer: &Path) -> Scene {
        Scene {
            program: peer.to_owned(),
            device: arguments.device.clone(),
            directory: self.0.clone(),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cases(arguments: &Arguments, recordings: &[Recording]) -> Vec<CaseId> {
    let is_host = arguments.is_host();
    let recordings = recordings.iter();
    recordings
        .flat_map(|recording| recording.cases(is_host))
        .collect()
}

fn workloads(arguments: &Arguments) -> Vec<Workload> {
    let all = workload::all().into_iter();
    all.filter(|workload| workload.name.contains(&arguments.workload))
        .collect()
}

/// Plays one case, and prints its log.
fn one(arguments: &Arguments, case: &CaseId, peer: &Path) -> Result<bool, Failure> {
    let directory = Directory::new(0)?;
    let scene = directory.scene(arguments, peer);
    let script = workload::all()
        .into_iter()
        .find(|workload| workload.name == case.workload)
        .ok_or_else(|| Failure::new(format!("no workload {}", case.workload)))?;
    let recording = Recording::make(&scene, &script, case.seed)?;
    let mut bystanders = super::bystanders::Bystanders::start(&scene)?;
    let tried = sweep::try_case(&scene, &recording, case, &mut bystanders)?;
    let is_good = show(arguments, &tried, true);
    if !is_good && arguments.shrink {
        let shorter = sweep::shrink(&scene, &recording, case, &mut bystanders)?;
        let (before, after) = (script.lines.len(), shorter.lines.len());
        println!("it fails with {after} of {before} lines, too:");
        for line in &shorter.lines {
            println!("    {:>2} {}", line.number, line.text);
        }
    }
    Ok(is_good)
}

/// Prints a result unless the case passed. Returns `false` if the case failed.
fn show(arguments: &Arguments, tried: &Tried, is_alone: bool) -> bool {
    let case = &tried.case;
    match &tried.verdict {
        CaseVerdict::Passed => {
            if is_alone {
                println!("passed {case}");
            }
            true
        }
        CaseVerdict::Diverged => {
            println!("DIVERGED {case}: no play reached the step");
            true
        }
        CaseVerdict::Failed {
            violations,
            failures,
            plays,
            log,
        } => {
            println!("FAILED {case} ({failures} of {plays} plays)");
            violations.iter().for_each(|text| println!("    {text}"));
            if arguments.log || is_alone {
                log.iter().for_each(|line| println!("      {line}"));
            }
            let device = &arguments.device;
            println!("    again: conformance faults --device {device} --case {case}");
            false
        }
    }
}

#[derive(Default)]
struct Counts {
    tried: usize,
    passed: BTreeMap<(String, &'static str), u32>,
    diverged: u32,
    failed: u32,
    notices: Vec<Duration>,
}

fn all(arguments: &Arguments, peer: &Path) -> Result<bool, Failure> {
    let started = Instant::now();
    let directories: Result<Vec<_>, _> = (0..arguments.jobs).map(Directory::new).collect();
    let directories = directories?;
    let scenes: Vec<_> = directories
        .iter()
        .map(|directory| directory.scene(arguments, peer))
        .collect();
    let recordings = sweep::record(&scenes, &workloads(arguments), arguments.seed)?;
    let mut cases = cases(arguments, &recordings);
    let steps: usize = recordings
        .iter()
        .map(|recording| recording.steps.len())
        .sum();
    let unsteady: usize = recordings.iter().map(|recording| recording.unsteady).sum();
    println!(
        "{} cases at {steps} steps of {} workloads, seed {}; {unsteady} steps did not come twice; \
         recorded in {:.1?}",
        cases.len(),
        recordings.len(),
        arguments.seed,
        started.elapsed()
    );
    for recording in &recordings {
        let name = recording.script.name;
        println!(
            "    {name:<12} {} steps, {} unsteady, {} cases",
            recording.steps.len(),
            recording.unsteady,
            recording.cases(arguments.is_host()).len()
        );
    }
    if arguments.list {
        cases.iter().for_each(|case| println!("{case}"));
        return Ok(true);
    }
    let mut end = arguments.limit.map(|limit| started + limit);
    if arguments.is_sample {
        end = Some(end.unwrap_or(started + SAMPLE_LIMIT));
    }
    let count = arguments.cases.or(arguments.is_sample.then_some(SAMPLE));
    if let Some(count) = count {
        cases = sweep::sample(cases, count, arguments.seed);
    }
    let counts = Mutex::new(Counts::default());
    let outcome = sweep::try_all(&scenes, &recordings, &cases, end, |tried| {
        let Ok(mut counts) = counts.lock() else {
            return Next::Stop;
        };
        let is_good = show(arguments, &tried, false);
        counts.notices.extend(tried.notice);
        counts.tried += 1;
        if counts.tried.is_multiple_of(PROGRESS) {
            println!("… {} of {} cases", counts.tried, cases.len());
        }
        match tried.verdict {
            CaseVerdict::Passed => {
                let key = (tried.case.workload.clone(), tried.case.fault.kind());
                *counts.passed.entry(key).or_default() += 1;
            }
            CaseVerdict::Diverged => counts.diverged += 1,
            CaseVerdict::Failed { .. } => counts.failed += 1,
        }
        debug_assert!(is_good || counts.failed > 0);
        Next::Continue
    });
    let counts = counts.into_inner().unwrap_or_default();
    summary(arguments, &counts, cases.len(), started.elapsed());
    if let Err(failure) = outcome {
        println!("{failure}");
        return Ok(false);
    }
    Ok(counts.failed == 0)
}

fn summary(arguments: &Arguments, counts: &Counts, wanted: usize, taken: Duration) {
    let mut by_fault = BTreeMap::<&str, u32>::new();
    let mut by_workload = BTreeMap::<&str, u32>::new();
    for ((workload, fault), count) in &counts.passed {
        *by_fault.entry(fault).or_default() += count;
        *by_workload.entry(workload).or_default() += count;
    }
    let list = |counts: &BTreeMap<&str, u32>| {
        let parts: Vec<_> = counts
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        parts.join(", ")
    };
    let passed: u32 = counts.passed.values().sum();
    let mut notices = counts.notices.clone();
    notices.sort();
    let notice = |part: usize| {
        notices
            .get(notices.len().saturating_sub(1) * part / 100)
            .copied()
    };
    println!("passed by fault: {}", list(&by_fault));
    println!("passed by workload: {}", list(&by_workload));
    println!(
        "death known to the last waiter after: p50 {:.1?}, p99 {:.1?}, {} deaths",
        notice(50).unwrap_or_default(),
        notice(99).unwrap_or_default(),
        notices.len()
    );
    println!(
        "faults on {}: {} of {wanted} cases tried, {passed} passed, {} diverged, {} failed in {:.0} s",
        arguments.device,
        counts.tried,
        counts.diverged,
        counts.failed,
        taken.as_secs_f64()
    );
}
