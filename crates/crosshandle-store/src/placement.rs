//! Options for opening a model, and the choice of its addresses.

use crate::Hash;
use crate::error::{Error, Result};
use crate::tuning::UPDATE_PATIENCE;
use crosshandle::{Context, virtual_memory::VirtualRange};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Unit of reserved addresses in bytes. CUDA rounds a requested address up to a multiple of it.
const RESERVED_UNIT: usize = 32 << 20;

/// Minimum number of bytes to reserve at a requested address. CUDA places short ranges anywhere (in
/// a process with torch at least those up to 128 MiB), and ranges from 512 MiB on at the requested
/// address.
const PLACED_AT_LEAST: usize = 1 << 30;

/// The range from which the addresses on which readers agree are chosen. The system and the drivers
/// use these addresses only if a process requests them. Executables are mapped below or above them,
/// and libraries, heaps and stacks far above. CUDA honours such requests, even in a process that
/// uses torch.
const AGREED: Range<usize> = 0x1000_0000_0000..0x5000_0000_0000;

/// Chooses the address on which the readers of a model agree. It is random, so that two models
/// rarely get the same address.
pub(crate) fn choose_agreed(bytes: usize) -> usize {
    let random = RandomState::new().hash_one(bytes) as usize;
    let places = AGREED.len().saturating_sub(bytes.max(PLACED_AT_LEAST)) / RESERVED_UNIT;
    AGREED.start + random % places.max(1) * RESERVED_UNIT
}

/// The place at which a process maps a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At any address. The model cannot sleep.
    Mapped,
    /// At any address, which stays reserved while the model sleeps.
    Reserved,
    /// At the address that the readers of the name agree on.
    Agreed,
    At(usize),
}

/// Options for opening a model.
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
    /// Creates default options: any model, mapped at any addresses.
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

    /// Sets the maximum time to wait for other processes (default: 30 s): for the holder, and for a
    /// writer whose update is in progress.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Maps the model at any addresses, and reserves them so that the model can
    /// [sleep](crate::Model::sleep).
    pub fn sleepable(mut self) -> Self {
        self.place = Place::Reserved;
        self
    }

    /// Maps the model at addresses that its loader has chosen. These addresses are the same in all
    /// processes that use this option, and are rarely in use for other memory. The model can sleep.
    pub fn agreed_address(mut self) -> Self {
        self.place = Place::Agreed;
        self
    }

    /// Maps the model at this address, a multiple of 32 MiB. Reserves 1 GiB there, or more if the
    /// model is larger. The model can sleep.
    pub fn at(mut self, address: usize) -> Self {
        self.place = Place::At(address);
        self
    }

    /// Sets whether to use other addresses if the requested addresses are in use (default: `false`,
    /// so that opening fails).
    pub fn or_elsewhere(mut self, is_fine: bool) -> Self {
        self.is_elsewhere_fine = is_fine;
        self
    }

    /// Sets whether this process restores the model if the holder and its successor die at the same
    /// time (default: `false`). See [`Backup`](crosshandle::holder::Backup). A backup uses one
    /// descriptor per part, and keeps the memory even while the model sleeps.
    pub fn back_up(mut self, back_up: bool) -> Self {
        self.is_backed_up = back_up;
        self
    }

    /// Reserves addresses for `bytes` bytes, if the options require it.
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
            None => VirtualRange::reserve(context, len)?,
            Some(wanted) => {
                let range =
                    VirtualRange::reserve_at(context, ptr::without_provenance(wanted), len)?;
                if range.as_ptr().addr() != wanted && !self.is_elsewhere_fine {
                    return Err(Error::AddressTaken { wanted });
                }
                range
            }
        };
        Ok(Some(Arc::new(range)))
    }
}
