//! Single trips on one GPU, for other scenarios.

use anyhow::Result;

use super::kinds::ONE;
use super::{BATCH, Hand as _, Lead as _, Route, ours};
use crate::harness::link::Link;

/// The side where trips start.
pub(in crate::cuda) struct Lead(ours::Lead);

impl Lead {
    pub(in crate::cuda) fn new(link: &Link) -> Result<Self> {
        ours::Lead::new(&ONE, link).map(Self)
    }

    /// Makes a trip back to the stream where it starts, and to the host.
    pub(in crate::cuda) fn go(&mut self) -> Result<()> {
        self.0.go(Route::Back)
    }
}

/// The side that sends signals back.
pub(in crate::cuda) struct Hand(ours::Hand);

impl Hand {
    pub(in crate::cuda) fn new(link: &Link) -> Result<Self> {
        ours::Hand::new(&ONE, link).map(Self)
    }

    /// Answers the next trips.
    pub(in crate::cuda) fn answer(&mut self) -> Result<()> {
        self.0.answer(Route::Back, BATCH, &mut || ())
    }
}
