//! Lists the cases of the workloads, and plays them.

use super::bystanders::Bystanders;
use super::play::{Played, Scene, play};
use super::stage::Plan;
use super::step::{CaseId, Fault, Step};
use super::usage::Holdings;
use super::workload::Workload;
use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of times that a case is repeated if it fails or does not reach its step.
const REPETITIONS: u32 = 2;

/// The recording of a workload that ran without a fault, in the order of a seed.
pub(super) struct Recording {
    pub(super) script: Workload,
    pub(super) seed: u64,
    /// Steps that occurred in both runs.
    pub(super) steps: Vec<Step>,
    /// Number of steps of the first run that did not occur in the second one.
    pub(super) unsteady: usize,
    pub(super) holdings: BTreeMap<char, Holdings>,
}

impl Recording {
    /// Plays a workload twice without a fault, and records its steps.
    pub(super) fn make(scene: &Scene, script: &Workload, seed: u64) -> Result<Self, Failure> {
        let mut plays = Vec::new();
        for _ in 0..2 {
            let played = play(scene, script, seed, None, None, None)?;
            if !played.violations.is_empty() {
                let log = played.log.join("\n  ");
                let name = script.name;
                return Err(Failure::new(format!("{name} without a fault:\n  {log}")));
            }
            plays.push(played);
        }
        let [first, second] = &plays[..] else {
            return Err(Failure::new("two plays"));
        };
        let last_line = script.last_line();
        let of_script = |played: &Played| -> Vec<Step> {
            let steps = played.trace.iter();
            steps
                .filter(|step| (1..=last_line).contains(&step.line) && step.role != "new")
                .cloned()
                .collect()
        };
        let (one, two) = (of_script(first), of_script(second));
        let common: BTreeSet<_> = two.into_iter().collect();
        let steps: Vec<_> = one
            .iter()
            .filter(|step| common.contains(step))
            .cloned()
            .collect();
        Ok(Self {
            script: script.clone(),
            seed,
            unsteady: one.len() - steps.len(),
            steps,
            holdings: first.holdings.clone(),
        })
    }

    /// Returns every case, which is each possible fault at each step. Calls of a driver's loader
    /// only get kills and stops, because the loader permanently remembers that it could not open a
    /// file.
    pub(super) fn cases(&self, is_host: bool) -> Vec<CaseId> {
        let loads = |step: &Step| {
            let mut lines = self.script.lines.iter();
            lines.any(|line| line.number == step.line && line.text.contains(" context "))
        };
        let case = |step: &Step, fault: Fault| CaseId {
            workload: self.script.name.to_owned(),
            seed: self.seed,
            step: step.clone(),
            fault,
        };
        let steps = self.steps.iter();
        steps
            .flat_map(|step| {
                Fault::at(step.call)
                    .into_iter()
                    .map(move |fault| (step, fault))
            })
            .filter(|(step, fault)| is_host || !matches!(fault, Fault::Error(..)) || !loads(step))
            .map(|(step, fault)| case(step, fault))
            .collect()
    }
}

/// Plays workloads without a fault, several at a time, and returns their recordings.
pub(super) fn record(
    scenes: &[Scene],
    scripts: &[Workload],
    seed: u64,
) -> Result<Vec<Recording>, Failure> {
    let next = Mutex::new(0..scripts.len());
    let take = || next.lock().ok().and_then(|mut next| next.next());
    let mut recordings = std::thread::scope(|scope| {
        let record = |scene| {
            std::iter::from_fn(take)
                .map(|index| Ok((index, Recording::make(scene, &scripts[index], seed)?)))
                .collect::<Result<Vec<_>, Failure>>()
        };
        let threads: Vec<_> = scenes
            .iter()
            .map(|scene| scope.spawn(move || record(scene)))
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let recorded = thread.join();
            all.extend(recorded.map_err(|_| Failure::new("a recording panicked"))??);
        }
        Ok::<_, Failure>(all)
    })?;
    recordings.sort_by_key(|(index, _)| *index);
    Ok(recordings.into_iter().map(|(_, made)| made).collect())
}

/// The result of a case.
pub(super) struct Tried {
    pub(super) case: CaseId,
    pub(super) verdict: CaseVerdict,
    pub(super) notice: Option<Duration>,
}

pub(super) enum CaseVerdict {
    Passed,
    /// No repetition reached the step.
    Diverged,
    /// A promise was broken. Contains the violations, and how many of the plays failed.
    Failed {
        violations: Vec<String>,
        failures: u32,
        plays: u32,
        log: Vec<String>,
    },
}

/// Plays a case, and repeats it if the first result is not certain.
pub(super) fn try_case(
    scene: &Scene,
    recording: &Recording,
    case: &CaseId,
    bystanders: &mut Bystanders,
) -> Result<Tried, Failure> {
    let plan = Plan::AtStep {
        step: case.step.clone(),
        fault: case.fault,
    };
    let mut failed: Option<Played> = None;
    let (mut failures, mut plays) = (0, 0);
    let mut notice = None;
    let mut is_reached = false;
    for _ in 0..=REPETITIONS {
        plays += 1;
        let (plan, holdings) = (Some(plan.clone()), Some(&recording.holdings));
        let played = play(
            scene,
            &recording.script,
            recording.seed,
            plan,
            holdings,
            Some(bystanders),
        )?;
        is_reached |= played.is_injected;
        notice = notice.max(played.notice);
        match played.violations.is_empty() {
            true if played.is_injected && failed.is_none() => break,
            true => {}
            false => {
                failures += 1;
                failed = Some(played);
            }
        }
    }
    let verdict = match failed {
        Some(Played {
            violations, log, ..
        }) => CaseVerdict::Failed {
            violations,
            failures,
            plays,
            log,
        },
        None if is_reached => CaseVerdict::Passed,
        None => CaseVerdict::Diverged,
    };
    Ok(Tried {
        case: case.clone(),
        verdict,
        notice,
    })
}

/// Removes lines from a failing case's workload as long as it still fails, and returns the
/// shortened workload.
pub(super) fn shrink(
    scene: &Scene,
    recording: &Recording,
    case: &CaseId,
    bystanders: &mut Bystanders,
) -> Result<Workload, Failure> {
    let mut script = recording.script.clone();
    let mut index = script.lines.len();
    while index > 0 {
        index -= 1;
        if script.lines[index].number == case.step.line {
            continue;
        }
        let shorter = script.without(index);
        // If other lines need this line, the shorter workload fails even without a fault.
        let Ok(recording) = Recording::make(scene, &shorter, recording.seed) else {
            continue;
        };
        let tried = try_case(scene, &recording, case, bystanders)?;
        if matches!(tried.verdict, CaseVerdict::Failed { .. }) {
            script = shorter;
        }
    }
    Ok(script)
}

/// Whether to play more cases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Stop,
}

/// Chooses `count` cases by a seed, evenly among all cases. If a case is added or removed, only one
/// chosen case changes.
pub(super) fn sample(mut cases: Vec<CaseId>, count: usize, seed: u64) -> Vec<CaseId> {
    cases.sort_by_cached_key(|case| {
        let mut hasher = DefaultHasher::new();
        (seed, case.to_string()).hash(&mut hasher);
        hasher.finish()
    });
    cases.truncate(count);
    cases
}

/// Plays cases on several threads, and calls `report` with each result. Returns the resources that
/// the bystanders have too many of at the end.
pub(super) fn try_all(
    scenes: &[Scene],
    recordings: &[Recording],
    cases: &[CaseId],
    end: Option<Instant>,
    report: impl Fn(Tried) -> Next + Sync,
) -> Result<(), Failure> {
    let next = Mutex::new(cases.iter());
    let is_over = AtomicBool::new(false);
    let troubles = Mutex::new(Vec::new());
    let trouble = |failure: String| {
        if let Ok(mut troubles) = troubles.lock() {
            troubles.push(failure);
        }
    };
    std::thread::scope(|scope| {
        for scene in scenes {
            scope.spawn(|| {
                let mut bystanders = match Bystanders::start(scene) {
                    Ok(bystanders) => bystanders,
                    Err(failure) => return trouble(failure.to_string()),
                };
                while end.is_none_or(|end| Instant::now() < end) && !is_over.load(Relaxed) {
                    let Some(case) = next.lock().ok().and_then(|mut next| next.next()) else {
                        break;
                    };
                    let recording = recordings.iter().find(|recording| {
                        (recording.script.name, recording.seed)
                            == (case.workload.as_str(), case.seed)
                    });
                    let Some(recording) = recording else {
                        return trouble(format!("{case}: no such workload"));
                    };
                    match try_case(scene, recording, case, &mut bystanders) {
                        Ok(tried) => {
                            if report(tried) == Next::Stop {
                                is_over.store(true, Relaxed);
                            }
                        }
                        Err(failure) => return trouble(format!("{case}: {failure}")),
                    }
                }
                if let Err(more) = bystanders.check_holdings() {
                    trouble(more);
                }
            });
        }
    });
    let troubles = troubles.into_inner().unwrap_or_default();
    match troubles.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(troubles.join("; "))),
    }
}
