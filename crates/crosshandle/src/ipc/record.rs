//! The number of an object in its context, and what opens it.

use crate::handle::{Fields, Key};

/// The number of a shared or shareable object, and the generation that tells it from the record's
/// other uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Record {
    pub(crate) index: u32,
    pub(crate) generation: u64,
}

/// What a handle says of the object: its record, and the key that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Credential {
    pub(crate) record: Record,
    pub(crate) key: Key,
}

impl Credential {
    /// Returns the credential that a handle carries.
    pub(crate) fn of(fields: &Fields) -> Self {
        Self {
            record: Record {
                index: fields.record,
                generation: fields.generation,
            },
            key: fields.key,
        }
    }
}
