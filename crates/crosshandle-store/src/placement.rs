//! How a model is opened, and at which addresses.

use crate::Hash;
use crate::error::{Error, Result};
use crate::tuning::UPDATE_PATIENCE;
use crosshandle::{Context, VirtualRange};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Addresses are reserved in multiples of this many bytes: CUDA rounds an address that it is asked for up to one.
const RESERVED_UNIT: usize = 32 << 20;

/// At least this many bytes are reserved at an address that is asked for. CUDA puts short ranges where it has room, in a
/// process with torch up to 128 MiB at least, and those from 512 MiB on where they are asked for.
const PLACED_AT_LEAST: usize = 1 << 30;

/// Addresses that readers agree on: those that neither the system nor a driver gives a process that asks for none.
/// Programs are below or above them, libraries, heaps and stacks far above. CUDA reserves what is asked for here,
/// also in a process with torch.
const AGREED: Range<usize> = 0x1000_0000_0000..0x5000_0000_0000;

/// Chooses the address that the readers of a model of `bytes` bytes agree on, so that hardly two models have the same.
pub(crate) fn choose_agreed(bytes: usize) -> usize {
    let random = RandomState::new().hash_one(bytes) as usize;
    let places = AGREED.len().saturating_sub(bytes.max(PLACED_AT_LEAST)) / RESERVED_UNIT;
    AGREED.start + random % places.max(1) * RESERVED_UNIT
}

/// Where a model is to lie in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Wherever the system likes; it cannot sleep.
    Mapped,
    /// Wherever the system likes, at addresses that stay.
    Reserved,
    /// At the address that the name's readers have agreed on.
    Agreed,
    At(usize),
}

/// How a model is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) expected: Option<Hash>,
    pub(crate) patience: Duration,
    place: Place,
    is_elsewhere_fine: bool,
    pub(crate) is_backed_up: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Returns the usual options: any model, mapped anywhere.
    pub fn new() -> Self {
        Self {
            expected: None,
            patience: UPDATE_PATIENCE,
            place: Place::Mapped,
            is_elsewhere_fine: false,
            is_backed_up: false,
        }
    }

    /// Sets the hash that the model must have.
    pub fn expecting(mut self, hash: Hash) -> Self {
        self.expected = Some(hash);
        self
    }

    /// Sets how long to wait for other processes: the holder, and the end of an update that is under way (default:
    /// 30 s).
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Maps the model so that it can [sleep](crate::Model::sleep), at any addresses.
    pub fn sleepable(mut self) -> Self {
        self.place = Place::Reserved;
        self
    }

    /// Maps the model at addresses that its loader has chosen: the same in all processes that ask for this, and such
    /// as hardly any process has something at. It can sleep.
    pub fn agreed_address(mut self) -> Self {
        self.place = Place::Agreed;
        self
    }

    /// Maps the model at an address of the program's choice, a multiple of 32 MiB. A gibibyte is reserved there, or
    /// what the model needs if that is more. It can sleep.
    pub fn at(mut self, address: usize) -> Self {
        self.place = Place::At(address);
        self
    }

    /// Sets whether other addresses are taken if the wanted ones are not free (default: no, opening fails).
    pub fn or_elsewhere(mut self, is_fine: bool) -> Self {
        self.is_elsewhere_fine = is_fine;
        self
    }

    /// Sets whether the model comes back from this process if the holder and its successor die at the same moment
    /// (default: no): see [`Backup`](crosshandle::holder::Backup). It takes a descriptor for each part, and keeps the memory
    /// also while the model sleeps.
    pub fn back_up(mut self, back_up: bool) -> Self {
        self.is_backed_up = back_up;
        self
    }

    /// Reserves addresses for `bytes` bytes, if the options ask for that.
    pub(crate) fn reserve(
        &self,
        context: &Context,
        bytes: usize,
        agreed: usize,
    ) -> Result<Option<Arc<VirtualRange>>> {
        let wanted = match self.place {
            Place::Mapped => return Ok(None),
            Place::Reserved => None,
            Place::Agreed => Some(agreed),
            Place::At(address) => Some(address),
        };
        let at_least = if wanted.is_some() { PLACED_AT_LEAST } else { 0 };
        let len = bytes.max(at_least).checked_next_multiple_of(RESERVED_UNIT);
        let len = len.ok_or_else(|| Error::Invalid("the model is too long".into()))?;
        let range = match wanted {
            None => context.reserve(len)?,
            Some(wanted) => {
                let range = context.reserve_at(ptr::without_provenance(wanted), len)?;
                if range.as_ptr().addr() != wanted && !self.is_elsewhere_fine {
                    return Err(Error::AddressTaken { wanted });
                }
                range
            }
        };
        Ok(Some(Arc::new(range)))
    }
}
