//! The command line of `conformance faults` and `conformance soak`.

use super::play::Scene;
use super::play::programs;
use super::soak;
use super::step::CaseId;
use super::sweep::{self, CaseVerdict, Next, Recording, Tried};
use super::workload::{self, Workload};
use crate::failure::Failure;
use clap::Args;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Number of cases in the fixed sample.
const SAMPLE: usize = 500;
/// Length of a soak if the command line gives none.
const DEFAULT_SOAK: Duration = Duration::from_secs(60);
/// Number of cases between two progress messages.
const PROGRESS: usize = 1_000;
/// Maximum time of the fixed sample.
const SAMPLE_LIMIT: Duration = Duration::from_secs(270);

/// Options of `conformance faults`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    plays: Plays,
    /// Plays a fixed sample of the cases, which is the default
    #[arg(long)]
    sample: bool,
    /// Plays all cases
    #[arg(long, conflicts_with = "sample")]
    all: bool,
    /// Number of cases to play
    #[arg(long, value_name = "N")]
    cases: Option<usize>,
    /// Only workloads whose name contains this text
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    workload: String,
    /// Plays one case, and prints what the processes did
    #[arg(long, value_name = "ID")]
    case: Option<String>,
    /// Removes lines from the workload as long as the case fails
    #[arg(long, requires = "case")]
    shrink: bool,
    /// Prints the names of the cases
    #[arg(long)]
    list: bool,
    /// Prints what the processes did in failed cases
    #[arg(long)]
    log: bool,
    /// Plays faults in the processes of the `crosshandle` command
    #[arg(long)]
    programs: bool,
}

/// Options of all plays: those of `conformance soak`, and of `conformance faults`.
#[derive(Args)]
pub struct Plays {
    /// Device of the workloads
    #[arg(long, default_value = "host")]
    device: String,
    /// Number that determines the order of the processes
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Number of plays at a time
    #[arg(long, value_name = "N", default_value = "1")]
    jobs: NonZeroUsize,
    /// Time limit in minutes
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
}

impl Plays {
    fn is_host(&self) -> bool {
        self.device == "host"
    }

    fn limit(&self) -> Option<Duration> {
        self.minutes
            .map(|minutes| Duration::from_secs(60) * minutes)
    }
}

/// Runs `conformance soak`. `peer` is the program of the workers. Returns `false` if a promise was
/// broken.
pub fn run_soak(plays: &Plays, peer: &Path) -> Result<bool, Failure> {
    let limit = plays.limit().unwrap_or(DEFAULT_SOAK);
    let directory = Directory::new(0)?;
    let scene = directory.scene(plays, peer);
    soak::run(&scene, plays.seed, plays.jobs.get(), limit)
}

/// Runs `conformance faults`. `peer` is the program of the workers. Returns `false` if a case
/// failed.
pub fn run(options: &Options, peer: &Path) -> Result<bool, Failure> {
    if options.programs {
        return programs::run(&programs::Request {
            peer,
            cases: options.cases,
            jobs: options.plays.jobs.get(),
            story: &options.workload,
            is_sample: !options.all,
            limit: options.plays.limit(),
            case: options.case.as_deref(),
            list: options.list,
            is_logged: options.log,
        });
    }
    match &options.case {
        Some(case) => one(options, &case.parse().map_err(Failure::new)?, peer),
        None => all(options, peer),
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

    fn scene(&self, plays: &Plays, peer: &Path) -> Scene {
        Scene {
            program: peer.to_owned(),
            device: plays.device.clone(),
            directory: self.0.clone(),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cases(options: &Options, recordings: &[Recording]) -> Vec<CaseId> {
    let is_host = options.plays.is_host();
    let recordings = recordings.iter();
    recordings
        .flat_map(|recording| recording.cases(is_host))
        .collect()
}

fn workloads(options: &Options) -> Vec<Workload> {
    let all = workload::all().into_iter();
    all.filter(|workload| workload.name.contains(&options.workload))
        .collect()
}

/// Plays one case, and prints its log.
fn one(options: &Options, case: &CaseId, peer: &Path) -> Result<bool, Failure> {
    let directory = Directory::new(0)?;
    let scene = directory.scene(&options.plays, peer);
    let script = workload::all()
        .into_iter()
        .find(|workload| workload.name == case.workload)
        .ok_or_else(|| Failure::new(format!("no workload {}", case.workload)))?;
    let recording = Recording::make(&scene, &script, case.seed)?;
    let mut bystanders = super::bystanders::Bystanders::start(&scene)?;
    let tried = sweep::try_case(&scene, &recording, case, &mut bystanders)?;
    let is_good = show(options, &tried, true);
    if !is_good && options.shrink {
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
fn show(options: &Options, tried: &Tried, is_alone: bool) -> bool {
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
            if options.log || is_alone {
                log.iter().for_each(|line| println!("      {line}"));
            }
            let device = &options.plays.device;
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

fn all(options: &Options, peer: &Path) -> Result<bool, Failure> {
    let started = Instant::now();
    let directories: Result<Vec<_>, _> =
        (0..options.plays.jobs.get()).map(Directory::new).collect();
    let directories = directories?;
    let scenes: Vec<_> = directories
        .iter()
        .map(|directory| directory.scene(&options.plays, peer))
        .collect();
    let recordings = sweep::record(&scenes, &workloads(options), options.plays.seed)?;
    let mut cases = cases(options, &recordings);
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
        options.plays.seed,
        started.elapsed()
    );
    for recording in &recordings {
        let name = recording.script.name;
        println!(
            "    {name:<12} {} steps, {} unsteady, {} cases",
            recording.steps.len(),
            recording.unsteady,
            recording.cases(options.plays.is_host()).len()
        );
    }
    if options.list {
        cases.iter().for_each(|case| println!("{case}"));
        return Ok(true);
    }
    let mut end = options.plays.limit().map(|limit| started + limit);
    if !options.all {
        end = Some(end.unwrap_or(started + SAMPLE_LIMIT));
    }
    let count = options.cases.or((!options.all).then_some(SAMPLE));
    if let Some(count) = count {
        cases = sweep::sample(cases, count, options.plays.seed);
    }
    let counts = Mutex::new(Counts::default());
    let outcome = sweep::try_all(&scenes, &recordings, &cases, end, |tried| {
        let Ok(mut counts) = counts.lock() else {
            return Next::Stop;
        };
        let is_good = show(options, &tried, false);
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
    summary(options, &counts, cases.len(), started.elapsed());
    if let Err(failure) = outcome {
        println!("{failure}");
        return Ok(false);
    }
    Ok(counts.failed == 0)
}

fn summary(options: &Options, counts: &Counts, wanted: usize, taken: Duration) {
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
        options.plays.device,
        counts.tried,
        counts.diverged,
        counts.failed,
        taken.as_secs_f64()
    );
}
