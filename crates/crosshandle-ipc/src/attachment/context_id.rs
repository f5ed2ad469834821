//! Identities of contexts of other processes.

use crate::broker::Route;
use crosshandle_handle::Fields;
use std::hash::{Hash, Hasher};

/// Identifies a context, and the process that serves the context's objects: the exporter or the
/// holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextId {
    pub(super) exporter: u64,
    pub(super) context: u32,
    pub(super) route: Route,
}

impl Hash for ContextId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.to_word());
    }
}

impl ContextId {
    /// Returns the ID of the context that made a handle. The context's exporter serves its objects.
    #[inline]
    pub fn of(fields: &Fields) -> Self {
        Self::by(fields, Route::Exporter)
    }

    /// Returns the ID of the context that made a handle. `route` names the process that serves the
    /// context's objects.
    #[inline]
    pub fn by(fields: &Fields, route: Route) -> Self {
        Self {
            route,
            exporter: fields.exporter,
            context: fields.context,
        }
    }

    /// Returns a word that few contexts share, because exporter numbers are random. Contexts of one
    /// exporter differ in its upper half.
    #[inline]
    pub fn to_word(self) -> u64 {
        self.exporter ^ u64::from(self.context) << 32
    }
}
