//! Faults at every step of the programs' own processes: a holder and its successor, programs that
//! load, publish and revoke, both ends of a link, and programs that update a model in place.
//!
//! One process of a *story* is the victim. It runs under the filter, and the supervisor counts its
//! steps and those of its children. Before the chosen step the victim is killed or stopped, or the
//! step fails. The other processes run normally. After each case, the invariants are checked: no
//! command takes longer than [`world::LIMIT`], promised models exist and are whole, and the holders
//! have as many descriptors as before. A victim that was only stopped, or whose call was only
//! interrupted, must succeed.

mod holders;
mod links;
mod models;
mod updates;
mod victim;
mod world;

pub use models::run_model_program;

use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use victim::{Fault, Plan, Seen};
use world::{Programs, World};

/// Exit code of a program that has seen a broken promise.
const BROKEN_PROMISE: u8 = 3;
/// Number of cases in the fixed sample.
const SAMPLE: usize = 200;
/// Maximum time of the fixed sample, even if cases remain.
const SAMPLE_LIMIT: Duration = Duration::from_secs(40);

/// The task of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    Load,
    Publish,
    Revoke,
    Hold,
    HoldRevoke,
    Listen,
    Pull,
    Update,
    Claim,
    Follow,
}

const STORIES: [(Story, &str); 10] = [
    (Story::Load, "load"),
    (Story::Publish, "publish"),
    (Story::Revoke, "revoke"),
    (Story::Hold, "hold"),
    (Story::HoldRevoke, "hold-revoke"),
    (Story::Listen, "listen"),
    (Story::Pull, "pull"),
    (Story::Update, "update"),
    (Story::Claim, "claim"),
    (Story::Follow, "follow"),
];

/// The worlds in which one job plays its cases.
struct Stage<'a> {
    programs: &'a Programs,
    user: World<'a>,
    owner: World<'a>,
}

impl<'a> Stage<'a> {
    fn new(programs: &'a Programs) -> Result<Self, Failure> {
        let (user, owner) = (World::new(programs, true)?, World::new(programs, true)?);
        let token = owner.path("token");
        owner.run(&["link", "token", &token])?;
        let loaded = owner.run(&["load", &owner.path("one"), "--name", "m"])?;
        if !loaded.is_ok {
            return Err(Failure::new(loaded.complaints));
        }
        let stage = Self {
            programs,
            user,
            owner,
        };
        // The holders keep some resources after the first reader of another process. These are not
        // a leak.
        stage.pull(None)?;
        Ok(stage)
    }

    fn play(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        match story {
            Story::Load | Story::Publish => self.publish(story, plan),
            Story::Revoke => self.revoke(plan),
            Story::Hold | Story::HoldRevoke => self.hold(story, plan),
            Story::Listen => self.listen(plan),
            Story::Pull => self.pull(plan),
            Story::Update | Story::Claim | Story::Follow => self.update(story, plan),
        }
    }
}

/// A case: a story, and a fault at one step.
struct Case {
    story: Story,
    name: String,
    plan: Plan,
}

/// Lists all cases of the stories whose names start with `chosen`.
fn cases(programs: &Programs, chosen: &str) -> Result<Vec<Case>, Failure> {
    let stage = Stage::new(programs)?;
    let mut cases = Vec::new();
    for (story, name) in STORIES.iter().filter(|(_, name)| name.starts_with(chosen)) {
        let seen = stage.play(*story, None)?;
        let mut counts = BTreeMap::new();
        for call in seen.steps {
            let occurrence = counts.entry(call.name).or_insert(0);
            *occurrence += 1;
            let errors = call.errors.iter();
            let errors = errors.map(|(name, code)| Fault::Fail(name, *code));
            for fault in [Fault::Kill, Fault::Stop].into_iter().chain(errors) {
                let what = match fault {
                    Fault::Kill => "kill",
                    Fault::Stop => "stop",
                    Fault::Fail(error, _) => error,
                };
                cases.push(Case {
                    story: *story,
                    name: format!("{name}/{}.{occurrence}/{what}", call.name),
                    plan: Plan {
                        call: call.name,
                        occurrence: *occurrence,
                        fault,
                    },
                });
            }
        }
    }
    Ok(cases)
}

/// The options of `conformance faults --programs`.
pub(crate) struct Request<'a> {
    pub(crate) peer: &'a Path,
    /// Number of cases to play. `None` plays all.
    pub(crate) cases: Option<usize>,
    pub(crate) jobs: usize,
    pub(crate) story: &'a str,
    pub(crate) is_sample: bool,
    pub(crate) limit: Option<Duration>,
    /// The name of the only case to play.
    pub(crate) case: Option<&'a str>,
    /// Whether to print the names of the cases instead of playing them.
    pub(crate) list: bool,
    /// Whether to print the time of each case.
    pub(crate) is_logged: bool,
}

/// Chooses `count` cases: if possible, the same number from each story, and evenly among the
/// story's cases.
fn choose(cases: &[Case], count: usize) -> Vec<&Case> {
    let mut stories: Vec<Vec<&Case>> = STORIES
        .iter()
        .map(|(story, _)| cases.iter().filter(|case| case.story == *story).collect())
        .collect();
    stories.sort_by_key(Vec::len);
    let mut left = count;
    let mut shares: Vec<_> = stories
        .iter()
        .enumerate()
        .map(|(index, all)| {
            let share = (left / (stories.len() - index)).min(all.len());
            left -= share;
            (0..share).map(move |place| all[place * all.len() / share])
        })
        .collect();
    // Takes cases from the stories in rotation, so that a run that ends early has played cases of
    // each.
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let before = chosen.len();
        chosen.extend(shares.iter_mut().filter_map(Iterator::next));
        if chosen.len() == before {
            break;
        }
    }
    chosen
}

/// Plays cases, and prints the failed ones. Returns whether all passed.
pub(crate) fn run(request: &Request<'_>) -> Result<bool, Failure> {
    let programs = Programs {
        command: request.peer.with_file_name("crosshandle"),
        peer: request.peer.to_owned(),
    };
    if !programs.command.exists() {
        let why = format!(
            "there is no {}: build the command",
            programs.command.display()
        );
        return Err(Failure::new(why));
    }
    let all = cases(&programs, request.story)?;
    let total = all.len();
    let most = request.cases.or(request.is_sample.then_some(SAMPLE));
    let chosen: Vec<_> = match request.case {
        Some(name) => all.iter().filter(|case| case.name == name).collect(),
        None => choose(&all, most.unwrap_or(total)),
    };
    if chosen.is_empty() {
        return Err(Failure::new("there is no such case"));
    }
    if request.list {
        chosen.iter().for_each(|case| println!("{}", case.name));
        return Ok(true);
    }
    let (began, next) = (Instant::now(), AtomicUsize::new(0));
    let (failed, missed) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let is_broken = AtomicBool::new(false);
    let limit = request.limit;
    let limit = limit.or(request.is_sample.then_some(SAMPLE_LIMIT));
    let is_over = || limit.is_some_and(|limit| began.elapsed() > limit);
    thread::scope(|scope| {
        for _ in 0..request.jobs {
            scope.spawn(|| {
                let mut stage = None;
                while !is_over() {
                    let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    if stage.is_none() {
                        stage = Stage::new(&programs).ok();
                    }
                    let Some(worlds) = &stage else {
                        is_broken.store(true, Ordering::Relaxed);
                        return;
                    };
                    let case_began = Instant::now();
                    let result = worlds.play(case.story, Some(case.plan));
                    if request.is_logged {
                        println!("{:.2} s {}", case_began.elapsed().as_secs_f64(), case.name);
                    }
                    match result {
                        Ok(seen) if seen.has_hit => {}
                        Ok(_) => drop(missed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            println!("FAILED {}: {error}", case.name);
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            failed.push(case.name.clone());
                            // The state of this job's worlds is unknown after a failure.
                            stage = None;
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let played = next.into_inner().min(chosen.len());
    println!(
        "programs: {played} of {total} cases in {:.0} s, {} failed, {} did not reach their step",
        began.elapsed().as_secs_f64(),
        failed.len(),
        missed.into_inner(),
    );
    Ok(failed.is_empty() && !is_broken.into_inner())
}
