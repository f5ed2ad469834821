//! A scenario: one arrangement of processes that fills one or more rows of the table.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::link::Link;
use super::outcome::Outcome;
use super::plan::Plan;
use crate::report::row::RowSpec;

/// One arrangement of child processes: a *leader*, which steers the measurement, and *followers*.
/// All of them run the same rounds in step.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Number of followers. Their ranks start at 1; the leader has rank 0.
    pub(crate) followers: usize,
    /// Fewest cores with which the figures mean what the rows say.
    pub(crate) cores: usize,
    /// Time after which the scenario counts as stuck and its processes are killed. The limit ends a
    /// hang; it says nothing about speed.
    pub(crate) limit: Duration,
    pub(crate) rows: &'static [RowSpec],
    pub(crate) leader: fn(&Participant) -> Result<Outcome>,
    pub(crate) follower: fn(&Participant) -> Result<Outcome>,
}

/// The plan and the links of one process of a scenario.
pub(crate) struct Participant {
    pub(crate) plan: Plan,
    /// The leader's links to each follower, or a follower's one link to the leader.
    pub(crate) links: Vec<Link>,
}

impl Participant {
    /// Returns the link between the leader and the first follower.
    pub(crate) fn peer(&self) -> Result<&Link> {
        ensure!(!self.links.is_empty(), "this scenario has one process only");
        Ok(&self.links[0])
    }
}

/// Does nothing: the follower's part of a scenario that has no followers.
pub(crate) fn no_follower(_: &Participant) -> Result<Outcome> {
    Ok(Outcome::default())
}
