//! Commands that only wait and signal: whether they take the short way.

use super::Lanes;
use crate::error::Result;
use crate::hal::cuda::lane::profile_of;
use crate::hal::{Submission, Work};
use crate::types::QueueOrder;

impl Lanes {
    /// Takes what has to be kept of a command that only waits and signals, if it can go to the only
    /// stream at once. `false`: it is as it was.
    #[inline]
    pub(crate) fn submit_bare(&mut self, submission: &mut Submission) -> Result<bool> {
        if !self.is_bare(submission) {
            return Ok(false);
        }
        if submission.waits.is_empty() && submission.signal.is_none() {
            // Nobody can see whether it was there.
            return Ok(true);
        }
        let lane = &mut self.lanes[0];
        lane.prune();
        lane.submit_bare(submission)
    }

    /// Whether a command goes to the only stream, and only waits and signals there.
    #[inline]
    fn is_bare(&self, submission: &Submission) -> bool {
        let is_next = self.order == QueueOrder::InOrder && self.held.is_empty();
        is_next
            && !self.is_shared
            && matches!(submission.work, Work::Marker)
            && !submission.may_fail
            && profile_of(&submission.signal).is_none()
    }
}
