//! Records of shared objects, and the credentials that open them.

use crosshandle_handle::{Fields, Key};

/// The number of a shared object in its context, with the generation that distinguishes uses of the
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub index: u32,
    pub generation: u64,
}

/// The record of an object and the key that opens it, as a handle contains them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credential {
    pub record: Record,
    pub key: Key,
}

impl Credential {
    /// Returns the credential that a handle carries.
    pub fn of(fields: &Fields) -> Self {
        Self {
            record: Record {
                index: fields.record,
                generation: fields.generation,
            },
            key: fields.key,
        }
    }
}
