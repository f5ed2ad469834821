//! A scenario: one arrangement of processes, which measures one or more rows of the table.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::link::Link;
use super::outcome::Outcome;
use super::plan::Plan;
use crate::report::row::RowSpec;

/// One arrangement of child processes: a *leader*, which controls the measurement, and *followers*.
/// All processes run the same rounds at the same time.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Number of followers. Their ranks start at 1, and the leader has rank 0.
    pub(crate) followers: usize,
    /// Minimum number of cores for meaningful results.
    pub(crate) cores: usize,
    /// Time after which the scenario is treated as hung and its processes are killed. It is no
    /// target for the speed.
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

/// Does nothing. It is the follower's part of a scenario without followers.
pub(crate) fn no_follower(_: &Participant) -> Result<Outcome> {
    Ok(Outcome::default())
}
