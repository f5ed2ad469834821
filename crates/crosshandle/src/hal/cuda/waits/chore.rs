//! What is done on the thread of a context, and how long that may take.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What takes longer than this, and than its bytes explain, is taken to wait for a stream that is
/// not known here, which may in turn wait for one that is kept from waiting: so those go on. It is a
/// guess, and dear if it is wrong: the driver may then wait for those too, and lets nobody else copy
/// or call meanwhile.
pub(super) const STUCK: Duration = Duration::from_secs(1);
/// What may take a millisecond more: pages are released one by one.
const BYTES_PER_MILLISECOND: usize = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    WhenQuiet,
    AtOnce,
}

pub(super) struct Chore {
    /// How much memory is free after it.
    pub(super) bytes: usize,
    pub(super) act: Box<dyn FnOnce() + Send>,
    pub(super) is_done: Arc<AtomicBool>,
}

/// One chore, or several in turn while it is quiet.
pub(super) struct Doing {
    /// No stream waited when it began, so none begins to.
    pub(super) is_quiet: bool,
    /// When the first of them began, and the present one.
    pub(super) began: Instant,
    since: Instant,
    /// How long the present one may take.
    longest: Duration,
}

impl Doing {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            is_quiet: true,
            began: now,
            since: now,
            longest: STUCK,
        }
    }

    /// The same beside streams that wait, so that others may begin to.
    pub(super) fn begin_beside_streams() -> Self {
        Self {
            is_quiet: false,
            ..Self::begin()
        }
    }

    /// The next one releases so many bytes.
    pub(super) fn begin_next(&mut self, bytes: usize) {
        let more = Duration::from_millis((bytes / BYTES_PER_MILLISECOND) as u64);
        self.since = Instant::now();
        self.longest = STUCK + more;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.since.elapsed() > self.longest
    }
}
