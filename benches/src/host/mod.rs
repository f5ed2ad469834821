//! The host backend's memory and events between processes of one machine.

mod awaited;
mod cold;
mod events;
mod fanout;
mod first_open;
mod graphs;
mod handles;
mod newcomer;
pub(crate) mod ours;
mod recycle;
pub(crate) mod wake;

use crate::harness::scenario::Scenario;

/// The host scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &events::SCENARIO,
    &wake::SPINNING,
    &wake::SPINNING_ON_TWO_LINES,
    &wake::SLEEPING,
    &wake::SHARED_CORE,
    &fanout::SCENARIO,
    &handles::SCENARIO,
    &first_open::TWO_CORES,
    &first_open::SHARED_CORE,
    &newcomer::SCENARIO,
    &cold::SCENARIO,
    &recycle::SCENARIO,
    &awaited::SCENARIO,
    &graphs::SCENARIO,
];
