//! Single trips on one GPU, for other scenarios.

use anyhow::Result;

use super::arrangements::ONE;
use super::{BATCH, Route, TripAnswerer as _, TripStarter as _, ours};
use crate::harness::link::Link;

/// Where trips start.
pub(crate) struct Leader(ours::Leader);

impl Leader {
    pub(crate) fn new(link: &Link) -> Result<Self> {
        ours::Leader::new(&ONE, link).map(Self)
    }

    /// A trip back to the stream where it starts, and to the host.
    pub(crate) fn run_trip(&mut self) -> Result<()> {
        self.0.run_trip(Route::Back)
    }
}

/// Who sends them back.
pub(crate) struct Follower(ours::Follower);

impl Follower {
    pub(crate) fn new(link: &Link) -> Result<Self> {
        ours::Follower::new(&ONE, link).map(Self)
    }

    /// Sees to the next trips.
    pub(crate) fn answer(&mut self) -> Result<()> {
        self.0.answer(Route::Back, BATCH, &mut || ())
    }
}
