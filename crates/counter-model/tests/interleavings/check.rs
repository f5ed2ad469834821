//! Runs a scenario under many schedules, the same ones every time.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::fmt::Debug;
use std::sync::Arc;

/// `SHUTTLE_RANDOM_SEED` takes its place where it is set.
const SEED: u64 = 0x5eed_c0de;
/// Preemptions that a PCT schedule is made of: most races need no more.
const DEPTH: usize = 4;
/// More steps than a terminating scenario takes: beyond it, somebody waits for ever.
const MOST_STEPS: usize = 100_000;

/// Runs `scenario` under `schedules` random schedules and as many PCT ones; the environment
/// variable `COUNTER_MODEL_EFFORT` multiplies them.
pub(crate) fn check(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let effort = std::env::var("COUNTER_MODEL_EFFORT")
        .map(|effort| effort.parse().expect("COUNTER_MODEL_EFFORT is a number"))
        .unwrap_or(1);
    let schedules = schedules * effort * crate::PERCENT / 100;
    let scenario = Arc::new(scenario);
    run(
        RandomScheduler::new_from_seed(SEED, schedules),
        scenario.clone(),
    );
    run(
        PctScheduler::new_from_seed(SEED, DEPTH, schedules),
        scenario,
    );
}

fn run<S>(scheduler: S, scenario: Arc<impl Fn() + Send + Sync + 'static>)
where
    S: Scheduler + Debug + 'static,
{
    // Printed only if the scenario fails, with the schedule to replay.
    println!("seed {SEED:#x} under {scheduler:?}");
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    // That orderings are not modelled is known: the other test program is for them.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || scenario());
}
