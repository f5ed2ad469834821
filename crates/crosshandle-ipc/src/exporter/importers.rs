//! The processes that are attached to an exporting context.

use crate::broker::Client;
use crate::chunks::Ledger;
use crosshandle_events::Owner;
use crosshandle_types::sync::HashMap;
use std::sync::{Arc, Weak};

/// An attached process.
pub(super) struct Importer {
    pub(super) ledger: Arc<Ledger>,
    pub(super) client: Weak<Client>,
    pub(super) uid: u32,
    /// Time at which it attached, in nanoseconds since 1970.
    pub(super) attached: u64,
}

/// The attached processes.
pub(super) struct Importers {
    pub(super) by_owner: HashMap<u16, Importer>,
    /// The latest owner number that was assigned. Numbers are reused as late as possible, because
    /// errors name the process that had one.
    pub(super) latest: u16,
}

impl Importers {
    /// Returns the next owner number that no attached process has.
    pub(super) fn next_owner(&self) -> Option<u16> {
        let first = Owner::EXPORTER.get() + 1;
        let after = self.latest.max(Owner::EXPORTER.get()) + 1;
        (after..=Owner::MAX)
            .chain(first..after)
            .find(|owner| !self.by_owner.contains_key(owner))
    }
}
