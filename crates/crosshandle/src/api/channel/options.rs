//! Options of a channel.

use super::layout::ArrayLayout;
use crosshandle_events::channel::Shape;
use crosshandle_types::error::{Error, Result};

pub use crosshandle_events::channel::{Delivery, MAX_HELD, MAX_MEMBERS, WhenFull};

/// Default number of items that a consumer may keep.
const HELD: u8 = 4;

/// The fixed properties of a new channel.
#[derive(Clone, Debug)]
#[must_use]
pub struct ChannelOptions {
    slot_size: usize,
    array: Option<ArrayLayout>,
    depth: u32,
    delivery: Delivery,
    when_full: WhenFull,
    producers: u8,
    reserved: u8,
    consumers: u8,
    held: Option<u8>,
    awaits_producers: bool,
    name: Option<String>,
}

impl ChannelOptions {
    /// Returns the options of a queue with one producer and one consumer, for items of at most
    /// `slot_size` bytes. Up to 8 items wait to be received, and the producer waits while the
    /// channel is full.
    pub fn new(slot_size: usize) -> Self {
        Self {
            slot_size,
            array: None,
            depth: 8,
            delivery: Delivery::Queue,
            when_full: WhenFull::Wait,
            producers: 1,
            reserved: 2,
            consumers: 1,
            held: None,
            awaits_producers: false,
            name: None,
        }
    }

    /// Returns the options of a channel whose items are all arrays of one type and shape. Otherwise
    /// like [`new`](Self::new).
    pub fn of_arrays(array: ArrayLayout) -> Self {
        Self {
            array: Some(array),
            ..Self::new(array.len().max(1))
        }
    }

    /// Sets how many items can wait to be received (default: 8). The number is a power of two. With
    /// 1 and [`WhenFull::DropOldest`], the channel keeps only the latest item.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Sets which consumers receive an item (default: [`Delivery::Queue`]).
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets what producers do while the channel is full (default: [`WhenFull::Wait`]).
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Sets the maximum number of producers (default: 1).
    pub fn producers(mut self, most: u8) -> Self {
        self.producers = most;
        self
    }

    /// Sets the maximum number of consumers (default: 1).
    pub fn consumers(mut self, most: u8) -> Self {
        self.consumers = most;
        self
    }

    /// Sets how many slots a producer may have reserved at the same time (default: 2).
    pub fn reserved(mut self, most: u8) -> Self {
        self.reserved = most;
        self
    }

    /// Sets how many items a consumer may keep at the same time. The default is 4 on the host. On
    /// other devices, it is the depth, but at least 4 and at most [`MAX_HELD`], because items that
    /// queues release are kept until the queues have done their work.
    pub fn held(mut self, most: u8) -> Self {
        self.held = Some(most);
        self
    }

    /// Sets whether consumers wait for the next producer when all producers have left or died
    /// (default: no). Otherwise they get an error.
    pub fn awaits_producers(mut self, awaits: bool) -> Self {
        self.awaits_producers = awaits;
        self
    }

    /// Sets a name that tools show.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub(super) fn slot_size(&self) -> usize {
        self.slot_size
    }

    pub(super) fn array(&self) -> Option<ArrayLayout> {
        self.array
    }

    pub(super) fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("channel")
    }

    pub(super) fn shape(&self, is_on_host: bool) -> Result<Shape> {
        let held = self.held.unwrap_or(match is_on_host {
            true => HELD,
            false => self.depth.clamp(HELD.into(), MAX_HELD.into()) as u8,
        });
        let shape = Shape::new(
            self.delivery,
            self.when_full,
            self.depth,
            (self.producers, self.reserved),
            (self.consumers, held),
        );
        let shape = shape.filter(|_| self.slot_size > 0).ok_or_else(|| {
            Error::invalid(format!(
                "a channel has slots of at least one byte, a depth that is a power of two, 1 to \
                 {MAX_MEMBERS} producers and consumers, 1 to {MAX_HELD} slots for each of them, and \
                 at most 65,535 slots in all"
            ))
        })?;
        Ok(shape.awaits_producers(self.awaits_producers))
    }
}
