//! A scenario: one arrangement of processes that fills one or more rows of the table.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::link::Link;
use super::outcome::Outcome;
use super::plan::Plan;
use crate::report::row::RowSpec;

/// One arrangement of processes: a *lead*, which steers the measurement, and the *hands* that it
/// works with. Lead and hands run the same rounds in step.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) hands: usize,
    /// Number of cores without which the figures would have another meaning.
    pub(crate) cores: usize,
    /// Time after which the whole scenario is taken to hang and is killed.
    pub(crate) limit: Duration,
    pub(crate) rows: &'static [RowSpec],
    pub(crate) lead: fn(&Seat) -> Result<Outcome>,
    pub(crate) hand: fn(&Seat) -> Result<Outcome>,
}

/// The start-up state of a process of a scenario.
pub(crate) struct Seat {
    pub(crate) plan: Plan,
    /// Links of the lead to each hand, or the one link of a hand to the lead.
    pub(crate) links: Vec<Link>,
}

impl Seat {
    /// Returns the link between the lead and the only (or first) hand.
    pub(crate) fn peer(&self) -> Result<&Link> {
        ensure!(!self.links.is_empty(), "this scenario has one process only");
        Ok(&self.links[0])
    }
}

/// Fails: the hand of a scenario that has none.
pub(crate) fn no_hand(_: &Seat) -> Result<Outcome> {
    Ok(Outcome::default())
}
