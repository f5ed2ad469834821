//! Time and count constants of the exchange between processes.

use std::time::Duration;

/// Interval at which an exporter checks which replies were read, while importers of another user
/// have no room for more. Each check costs a system call for each importer with unread replies.
pub(super) const UNDER_WAY_LOOK: Duration = Duration::from_millis(10);
