//! A scenario: one arrangement of processes that fills one or more rows of the table.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::link::Link;
use super::outcome::Outcome;
use super::plan::Plan;
use crate::report::row::RowSpec;

/// One arrangement of processes: a *lead* that steers the measurement and the *hands* it works
/// with. Lead and hands run the same rounds in step.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) followers: usize,
    /// Cores without which the figures would mean something else.
    pub(crate) cores: usize,
    /// When the whole scenario counts as stuck and is killed.
    pub(crate) limit: Duration,
    pub(crate) rows: &'static [RowSpec],
    pub(crate) leader: fn(&Participant) -> Result<Outcome>,
    pub(crate) follower: fn(&Participant) -> Result<Outcome>,
}

/// What a process of a scenario holds when it starts.
pub(crate) struct Participant {
    pub(crate) plan: Plan,
    /// The lead's links to each hand, or a hand's one link to the lead.
    pub(crate) links: Vec<Link>,
}

impl Participant {
    /// The link between the lead and the only (or first) hand.
    pub(crate) fn peer(&self) -> Result<&Link> {
        ensure!(!self.links.is_empty(), "this scenario has one process only");
        Ok(&self.links[0])
    }
}

/// The hand of a scenario that has none.
pub(crate) fn no_follower(_: &Participant) -> Result<Outcome> {
    Ok(Outcome::default())
}
