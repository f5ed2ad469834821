//! Channels between code on devices, which consist of two events and of slots in memory.

use super::{DeviceEvent, DeviceEventAddresses};
use crate::api::context::Context;
use crate::api::event::Event;
use crate::api::memory::Memory;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{KernelArgument, KernelArguments};
use std::sync::Arc;

/// A channel in the form that code on a device uses, as `crosshandle.cuh` declares it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChannelAddresses {
    /// The event by which the producer publishes items.
    pub full: DeviceEventAddresses,
    /// The event by which the consumer releases slots.
    pub empty: DeviceEventAddresses,
    /// The first slot.
    pub slots: usize,
    /// Distance between two slots in bytes.
    pub stride: u64,
    /// The number of slots.
    pub depth: u64,
}

/// A channel from one kernel to another: a ring of slots, and an event for each direction.
///
/// The producer creates the event `full`, the consumer creates `empty`, each with a
/// [single signaller](crate::EventOptions::single_signaller), and either of them allocates the
/// slots. Each side opens the objects of the other side. A thread, a stream or a captured graph can
/// take the part of a kernel: it waits for one event and signals the other event, which needs
/// no single signaller then.
///
/// Create the consumer's object before the producer publishes. The object is an argument of kernels
/// ([`KernelArguments::with`]). A launch by this library keeps it.
#[derive(Clone, Debug)]
pub struct DeviceChannel {
    full: DeviceEvent,
    empty: DeviceEvent,
    slots: Arc<Memory>,
    stride: u64,
    depth: u64,
}

impl DeviceChannel {
    /// Returns a channel whose slots divide the memory into `depth` equal parts.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if `depth` is 0, or if the memory has not `depth` slots of the
    ///   same size.
    /// - The errors of [`Context::device_event`].
    pub fn new(
        context: &Context,
        full: &Event,
        empty: &Event,
        slots: Arc<Memory>,
        depth: u64,
    ) -> Result<Self> {
        let len = slots.len() as u64;
        let stride = len.checked_div(depth).unwrap_or(0);
        if stride == 0 || stride * depth != len {
            return Err(Error::invalid(format!(
                "{len} bytes cannot be divided into {depth} slots of the same size"
            )));
        }
        Ok(Self {
            full: context.device_event(full)?,
            empty: context.device_event(empty)?,
            slots,
            stride,
            depth,
        })
    }

    /// Returns the addresses, which are valid on the context's device as long as `self` exists.
    pub fn addresses(&self) -> DeviceChannelAddresses {
        DeviceChannelAddresses {
            full: self.full.addresses(),
            empty: self.empty.addresses(),
            slots: self.slots.as_ptr().expose_provenance(),
            stride: self.stride,
            depth: self.depth,
        }
    }
}

impl KernelArgument for DeviceChannel {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut bytes = Vec::with_capacity(size_of::<DeviceChannelAddresses>());
        for event in [&self.full, &self.empty] {
            bytes.extend_from_slice(&event.addresses().bytes());
        }
        let slots = self.slots.as_ptr().expose_provenance() as u64;
        for value in [slots, self.stride, self.depth] {
            bytes.extend_from_slice(&value.to_ne_bytes());
        }
        let mut arguments = arguments.bytes(&bytes);
        arguments.keep(Arc::new(self.clone()) as _);
        arguments
    }
}
