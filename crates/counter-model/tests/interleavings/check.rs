//! Runs of a scenario under many schedules, which are the same on every run.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::fmt::Debug;
use std::sync::Arc;

/// Seed of the schedules. The environment variable `SHUTTLE_RANDOM_SEED` replaces it.
const SEED: u64 = 0x5eed_c0de;
/// Number of preemptions in a PCT schedule. Most races need no more.
const DEPTH: usize = 4;
/// Number of steps after which a scenario is treated as hanging, more than any that ends takes.
const MAX_STEPS: usize = 100_000;

/// Runs `scenario` under `schedules` random schedules and as many PCT ones. The environment
/// variable `COUNTER_MODEL_EFFORT` multiplies both numbers.
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
    // This is shown only if the scenario fails, with the schedule to replay.
    println!("seed {SEED:#x} under {scheduler:?}");
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    // Shuttle warns that it does not model orderings, which the program `orderings` does.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || scenario());
}
