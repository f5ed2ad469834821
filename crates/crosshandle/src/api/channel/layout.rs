//! The layout of a channel's memory, and the header of an item.
//!
//! A channel consists of two or three memories:
//! - The *words*, which every member writes (`crates/crosshandle-ipc/src/channel/`).
//! - The *items*, which only producers write. They begin with a description of the channel. Then
//!   come a header for each slot, and the contents of the slots, if these are in host memory.
//! - The *slots*, if their contents are in the memory of a device.
//!
//! A producer may be hostile, so a reader copies a description or a header before it checks it.

use crosshandle_events::channel::{Delivery, Shape, WhenFull};
use crosshandle_types::SharedBytes;
use crosshandle_types::error::{ChannelFault, Error, Result};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Maximum number of dimensions of an array in a channel.
pub const MAX_DIMENSIONS: usize = 8;
/// Number of bytes in an item's header that belong to the program.
pub const USER_BYTES: usize = 64;
/// Number of bytes that the description of a channel reserves for a handle.
const HANDLE_BYTES: usize = 128;
/// Distance of the contents of slots from the start of a page, if they have a page or more.
const PAGE: usize = 4096;
/// Size of a cache line in bytes, to which the contents of slots are aligned.
const LINE: usize = 64;

const MAGIC: [u8; 8] = *b"xhchan\0\x01";

/// The element type and the dimensions of an array in an item. Its elements are dense, and the last
/// dimension varies fastest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayLayout {
    code: u8,
    bits: u8,
    dimensions: u8,
    sizes: [u64; MAX_DIMENSIONS],
}

impl ArrayLayout {
    /// Returns the layout of an array whose elements have DLPack's type code `code`, such as 0 for
    /// signed integers and 2 for floating point, and `bits` bits each.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for elements without bits, for more than [`MAX_DIMENSIONS`]
    /// dimensions, and for an array that is larger than any memory.
    pub fn new(code: u8, bits: u8, shape: &[u64]) -> Result<Self> {
        if shape.len() > MAX_DIMENSIONS {
            return Err(Error::invalid(format!(
                "an array in a channel has at most {MAX_DIMENSIONS} dimensions, and this one has {}",
                shape.len()
            )));
        }
        let mut sizes = [0; MAX_DIMENSIONS];
        sizes[..shape.len()].copy_from_slice(shape);
        let layout = Self {
            code,
            bits,
            dimensions: shape.len() as u8,
            sizes,
        };
        layout.checked().ok_or_else(|| {
            Error::invalid("an array needs elements with bits, and must fit into memory")
        })
    }

    fn checked(self) -> Option<Self> {
        let dimensions = usize::from(self.dimensions);
        let is_valid = self.bits != 0 && dimensions <= MAX_DIMENSIONS;
        let sizes = self.sizes.get(..dimensions).filter(|_| is_valid)?;
        // A size of 0 must not hide an overflow of the others.
        let bytes = sizes
            .iter()
            .try_fold(u64::from(self.bits.div_ceil(8)), |product, size| {
                product.checked_mul((*size).max(1))
            })?;
        (bytes <= isize::MAX as u64).then_some(self)
    }

    /// Returns DLPack's type code of the elements.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Returns the number of bits of an element.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the number of elements in each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.sizes[..usize::from(self.dimensions)]
    }

    /// Returns the size of the array in bytes.
    pub fn len(&self) -> usize {
        let bytes = u64::from(self.bits.div_ceil(8));
        self.shape()
            .iter()
            .fold(bytes, |product, size| product * size) as usize
    }

    /// Returns whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }
}

/// The offsets of the parts of the items, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemsLayout {
    headers: usize,
    contents: usize,
    /// Distance of the contents of two slots.
    pub(super) stride: usize,
    slots: usize,
    is_on_host: bool,
}

impl ItemsLayout {
    /// Returns the layout, or `None` if it is larger than any memory.
    pub(super) fn new(shape: &Shape, slot_size: usize, is_on_host: bool) -> Option<Self> {
        let slots = usize::from(shape.slots());
        let align = if slot_size < PAGE { LINE } else { PAGE };
        let stride = slot_size.checked_next_multiple_of(align)?;
        let headers = size_of::<Description>().next_multiple_of(LINE);
        let contents = (headers + slots * HEADER_STRIDE).next_multiple_of(PAGE);
        let layout = Self {
            headers,
            contents,
            stride,
            slots,
            is_on_host,
        };
        let most = stride.checked_mul(slots)?.checked_add(contents)?;
        isize::try_from(most).is_ok().then_some(layout)
    }

    /// Returns the size of the items in bytes.
    pub(super) fn items_len(&self) -> usize {
        match self.is_on_host {
            true => self.contents + self.slots_len(),
            false => self.contents,
        }
    }

    /// Returns the size of the contents of all slots in bytes.
    pub(super) fn slots_len(&self) -> usize {
        self.stride * self.slots
    }

    /// Returns the offset of a slot's contents in the memory that contains them.
    #[inline]
    pub(super) fn content(&self, slot: u16) -> usize {
        let start = if self.is_on_host { self.contents } else { 0 };
        start + self.stride * usize::from(slot)
    }

    #[inline]
    fn header(&self, slot: u16) -> usize {
        self.headers + HEADER_STRIDE * usize::from(slot)
    }
}

/// The description of a channel, at the start of the items.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Description {
    magic: [u8; 8],
    slot_size: u64,
    sizes: [u64; MAX_DIMENSIONS],
    depth: u32,
    delivery: u8,
    when_full: u8,
    producers: u8,
    reserved: u8,
    consumers: u8,
    held: u8,
    awaits_producers: u8,
    /// Whether the contents are in the memory of a device.
    is_on_device: u8,
    code: u8,
    /// 0 if the channel does not fix the type and the shape of arrays.
    bits: u8,
    dimensions: u8,
    _padding: u8,
    words: [u8; HANDLE_BYTES],
    slots: [u8; HANDLE_BYTES],
}

/// The fixed properties of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) slot_size: usize,
    pub(super) array: Option<ArrayLayout>,
    pub(super) is_on_host: bool,
    pub(super) layout: ItemsLayout,
}

impl Description {
    pub(super) fn new(plan: &Plan, words: &[u8], slots: &[u8]) -> Self {
        let padded = |handle: &[u8]| {
            let mut bytes = [0; HANDLE_BYTES];
            bytes[..handle.len()].copy_from_slice(handle);
            bytes
        };
        let shape = &plan.shape;
        let array = plan.array.as_ref();
        Self {
            magic: MAGIC,
            slot_size: plan.slot_size as u64,
            sizes: array.map_or([0; MAX_DIMENSIONS], |array| array.sizes),
            depth: shape.depth(),
            delivery: match shape.delivery() {
                Delivery::Queue => 0,
                Delivery::Broadcast => 1,
            },
            when_full: match shape.when_full() {
                WhenFull::Wait => 0,
                WhenFull::DropOldest => 1,
            },
            producers: shape.producers(),
            reserved: shape.reserved(),
            consumers: shape.consumers(),
            held: shape.held(),
            awaits_producers: shape.does_await_producers().into(),
            is_on_device: (!plan.is_on_host).into(),
            code: array.map_or(0, |array| array.code),
            bits: array.map_or(0, |array| array.bits),
            dimensions: array.map_or(0, |array| array.dimensions),
            _padding: 0,
            words: padded(words),
            slots: padded(slots),
        }
    }

    pub(super) fn store(&self, items: SharedBytes<'_>) -> Result<()> {
        items.write(0, self.as_bytes())
    }

    /// Copies the description out of the items.
    pub(super) fn load(items: SharedBytes<'_>) -> Result<Self> {
        let mut description = Self::new_zeroed();
        if items.len() < size_of::<Self>() {
            return Err(NOT_A_CHANNEL);
        }
        items.read(0, description.as_mut_bytes())?;
        Ok(description)
    }

    /// Checks the description against the size of the items.
    pub(super) fn plan(&self, items_len: usize) -> Result<Plan> {
        if self.magic != MAGIC {
            return Err(NOT_A_CHANNEL);
        }
        self.checked()
            .filter(|plan| plan.layout.items_len() <= items_len)
            .ok_or(Error::Protocol("its channel has impossible properties"))
    }

    fn checked(&self) -> Option<Plan> {
        let delivery = [Delivery::Queue, Delivery::Broadcast];
        let when_full = [WhenFull::Wait, WhenFull::DropOldest];
        let shape = Shape::new(
            *delivery.get(usize::from(self.delivery))?,
            *when_full.get(usize::from(self.when_full))?,
            self.depth,
            (self.producers, self.reserved),
            (self.consumers, self.held),
        )?
        .awaits_producers(self.awaits_producers != 0);
        let slot_size = usize::try_from(self.slot_size)
            .ok()
            .filter(|size| *size > 0)?;
        let array = match self.bits {
            0 => None,
            bits => Some(
                ArrayLayout {
                    code: self.code,
                    bits,
                    dimensions: self.dimensions,
                    sizes: self.sizes,
                }
                .checked()
                .filter(|array| array.len() <= slot_size)?,
            ),
        };
        let is_on_host = self.is_on_device == 0;
        Some(Plan {
            shape,
            slot_size,
            array,
            is_on_host,
            layout: ItemsLayout::new(&shape, slot_size, is_on_host)?,
        })
    }

    /// Returns the bytes of the handle of the words.
    pub(super) fn words(&self) -> &[u8] {
        &self.words
    }

    /// Returns the bytes of the handle of the slots.
    pub(super) fn slots(&self) -> &[u8] {
        &self.slots
    }
}

const NOT_A_CHANNEL: Error = Error::Protocol("its memory is not a channel");

/// Distance of two headers in bytes.
const HEADER_STRIDE: usize = 192;
const _: () =
    assert!(size_of::<Header>() + size_of::<[u64; MAX_DIMENSIONS]>() + USER_BYTES <= HEADER_STRIDE);

/// The part of an item's header that every item has. The sizes of the array's dimensions and the
/// program's bytes follow it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    time: u64,
    len: u64,
    /// Number of the producer's signal after which the contents are complete, or 0.
    signal: u64,
    /// Generation of the producer.
    generation: u32,
    producer: u8,
    code: u8,
    /// 0 if the item is not an array.
    bits: u8,
    dimensions: u8,
    /// Number of the program's bytes.
    user: u8,
    _padding: [u8; 7],
}

const SIZES_AT: usize = size_of::<Header>();
const USER_AT: usize = SIZES_AT + size_of::<[u64; MAX_DIMENSIONS]>();

/// The checked contents of an item's header, except the program's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemHead {
    pub(super) time: u64,
    pub(super) len: usize,
    pub(super) signal: u64,
    pub(super) producer: (u8, u32),
    pub(super) array: Option<ArrayLayout>,
    pub(super) user: u8,
}

impl ItemsLayout {
    /// Writes a header, except the program's bytes.
    #[inline]
    pub(super) fn store_head(
        &self,
        items: SharedBytes<'_>,
        slot: u16,
        head: &ItemHead,
    ) -> Result<()> {
        let (code, bits, dimensions) = match &head.array {
            None => (0, 0, 0),
            Some(array) => (array.code, array.bits, array.dimensions),
        };
        let header = Header {
            time: head.time,
            len: head.len as u64,
            signal: head.signal,
            generation: head.producer.1,
            producer: head.producer.0,
            code,
            bits,
            dimensions,
            user: head.user,
            _padding: [0; 7],
        };
        let start = self.header(slot);
        items.write(start, header.as_bytes())?;
        match &head.array {
            Some(array) => items.write(start + SIZES_AT, array.shape().as_bytes()),
            None => Ok(()),
        }
    }

    /// Copies a header and checks it.
    #[inline]
    pub(super) fn load_head(
        &self,
        items: SharedBytes<'_>,
        slot: u16,
        plan: &Plan,
    ) -> Result<ItemHead> {
        let start = self.header(slot);
        let mut header = Header::new_zeroed();
        items.read(start, header.as_mut_bytes())?;
        let array = match header.bits {
            0 => None,
            bits => {
                let mut sizes = [0; MAX_DIMENSIONS];
                let dimensions = usize::from(header.dimensions).min(MAX_DIMENSIONS);
                items.read(start + SIZES_AT, sizes[..dimensions].as_mut_bytes())?;
                let array = ArrayLayout {
                    code: header.code,
                    bits,
                    dimensions: header.dimensions,
                    sizes,
                };
                Some(array.checked().ok_or(CORRUPT)?)
            }
        };
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        let fits = array.as_ref().is_none_or(|array| array.len() == len);
        let is_expected = plan.array.is_none() || plan.array == array;
        let is_valid = len <= plan.slot_size && usize::from(header.user) <= USER_BYTES;
        if !(fits && is_expected && is_valid) {
            return Err(CORRUPT);
        }
        Ok(ItemHead {
            time: header.time,
            len,
            signal: header.signal,
            producer: (header.producer, header.generation),
            array,
            user: header.user,
        })
    }

    /// Returns the number of the signal after which an item is complete, or 0, and the index and
    /// the generation of the item's producer.
    pub(super) fn load_signal(
        &self,
        items: SharedBytes<'_>,
        slot: u16,
    ) -> Result<(u64, (u8, u32))> {
        let mut header = Header::new_zeroed();
        items.read(self.header(slot), header.as_mut_bytes())?;
        Ok((header.signal, (header.producer, header.generation)))
    }

    /// Writes the program's bytes of a slot.
    pub(super) fn store_user(&self, items: SharedBytes<'_>, slot: u16, user: &[u8]) -> Result<()> {
        items.write(self.header(slot) + USER_AT, user)
    }

    /// Returns the program's bytes of a slot.
    pub(super) fn load_user(
        &self,
        items: SharedBytes<'_>,
        slot: u16,
        into: &mut [u8],
    ) -> Result<()> {
        items.read(self.header(slot) + USER_AT, into)
    }
}

pub(super) const CORRUPT: Error = Error::Channel(ChannelFault::Corrupt);
