//! Single trips on one GPU, for other scenarios.

use anyhow::Result;

use super::arrangements::ONE;
use super::{Route, TRIPS_PER_BATCH, TripAnswerer as _, TripStarter as _, ours};
use crate::harness::link::Link;

/// The process in which trips start.
pub(crate) struct Leader(ours::Leader);

impl Leader {
    pub(crate) fn new(link: &Link) -> Result<Self> {
        ours::Leader::new(&ONE, link).map(Self)
    }

    /// Makes a trip from a stream, back to that stream, and to the host.
    pub(crate) fn run_trip(&mut self) -> Result<()> {
        self.0.run_trip(Route::Back)
    }
}

/// The process that signals back.
pub(crate) struct Follower(ours::Follower);

impl Follower {
    pub(crate) fn new(link: &Link) -> Result<Self> {
        ours::Follower::new(&ONE, link).map(Self)
    }

    /// Replies to the next batch of trips.
    pub(crate) fn answer(&mut self) -> Result<()> {
        self.0.answer(Route::Back, TRIPS_PER_BATCH, &mut || ())
    }
}
