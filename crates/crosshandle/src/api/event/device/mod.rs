//! Events for code on devices: the addresses that a kernel needs, and the host's part of the work.
//!
//! A kernel polls and stores the words of an event (`crosshandle.cuh`). It cannot take numbers,
//! ensure that a word is written, or notice a death. A background job does this for all device
//! events of the process every [`HELP_INTERVAL`].

mod channel;
mod record;

pub use channel::{DeviceChannel, DeviceChannelAddresses};
pub(crate) use record::Recorder;

use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::event::Event;
use crate::api::memory::Memory;
use crosshandle_ipc::EventCore;
use crosshandle_os::fork::PerProcess;
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{AllocationOptions, KernelArgument, KernelArguments, MemoryKind};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval at which the host helps code on devices. A kernel learns of a death at most this much
/// later than the process. A shorter interval costs more of a core.
const HELP_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of the counts of one device event: its signals, and its calls of `wait_next`. Each is on a
/// cache line of its own.
const COUNTS_BYTES: usize = 256;
const AWAITED_OFFSET: usize = 128;

/// An event in the form that code on a device uses, as `crosshandle.cuh` declares it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceEventAddresses {
    /// The event's words, which all processes share.
    pub words: usize,
    /// The number of signals by code on the device, or 0 if the code may only wait.
    pub signalled: usize,
    /// The number of calls of `wait_next`.
    pub awaited: usize,
    /// The word that tells code on the device to stop.
    pub abort: usize,
}

impl DeviceEventAddresses {
    /// Returns the structure as the bytes of a kernel's argument.
    fn bytes(&self) -> Vec<u8> {
        let addresses = [self.words, self.signalled, self.awaited, self.abort];
        addresses.map(usize::to_ne_bytes).concat()
    }
}

/// An event for code on a device: kernels wait for it, and signal it if this process created it
/// with a [single signaller](crate::EventOptions::single_signaller).
///
/// The object is an argument of kernels ([`KernelArguments::with`]). Kernels in other languages
/// take its [addresses](Self::addresses). It must exist until all code that uses the addresses has
/// ended. A launch by this library keeps it.
#[derive(Clone)]
pub struct DeviceEvent(Arc<Inner>);

struct Inner {
    context: Arc<ContextCore>,
    event: Arc<EventCore>,
    /// Keeps the counts.
    _counts: Memory,
    abort: Arc<HostWord>,
    addresses: DeviceEventAddresses,
    /// The number at which the counts began.
    start: u64,
    /// The number up to which the words are sure to be written.
    ensured: Mutex<u64>,
    /// Whether a process has ended, so that code on the device was told.
    has_told: AtomicBool,
}

impl DeviceEvent {
    fn new(context: &Context, event: &Event) -> Result<Self> {
        let core = context.core();
        core.check_birth()?;
        event.core().check_birth()?;
        let words = core.backend().event_words(event.core());
        let words = words.ok_or_else(|| {
            Error::Unsupported(format!(
                "code on {} cannot use events",
                core.device().info().name
            ))
        })??;
        let is_signaller =
            event.core().is_single_signaller() && event.core().is_created_in(core.exporter());
        let start = event.submitted();
        let counts = counts(context, start)?;
        let abort = context.abort_word()?;
        let address = counts.as_ptr().expose_provenance();
        let addresses = DeviceEventAddresses {
            words,
            signalled: if is_signaller { address } else { 0 },
            awaited: address + AWAITED_OFFSET,
            abort: abort.address(),
        };
        let inner = Arc::new(Inner {
            context: Arc::clone(core),
            event: Arc::clone(event.core()),
            _counts: counts,
            abort,
            addresses,
            start,
            ensured: Mutex::new(0),
            has_told: AtomicBool::new(false),
        });
        inner.help();
        Ok(Self(inner))
    }

    /// Returns the addresses, which are valid on the context's device as long as `self` exists.
    pub fn addresses(&self) -> DeviceEventAddresses {
        self.0.addresses
    }

    /// Returns whether code on the device can signal the event.
    pub fn can_signal(&self) -> bool {
        self.0.addresses.signalled != 0
    }
}

impl KernelArgument for DeviceEvent {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut arguments = arguments.bytes(&self.0.addresses.bytes());
        arguments.keep(Arc::clone(&self.0) as _);
        arguments
    }
}

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvent")
            .field("addresses", &self.0.addresses)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn is_of(&self, context: &Arc<ContextCore>, event: &Event) -> bool {
        Arc::ptr_eq(&self.context, context) && Arc::ptr_eq(&self.event, event.core())
    }

    /// Does the host's part for code on the device.
    fn help(&self) {
        let has_lost_peer = self.event.help_device_code(&mut self.ensured.lock());
        let had_lost_peer = self.has_told.swap(has_lost_peer, Ordering::Relaxed);
        if has_lost_peer && !had_lost_peer {
            self.abort.set(PEER_DIED);
        }
    }
}

/// Allocates the counts of a device event, which begin at a number.
fn counts(context: &Context, number: u64) -> Result<Memory> {
    let counts = context.allocate_with(AllocationOptions::new(COUNTS_BYTES).align(COUNTS_BYTES))?;
    context.fill_now(&counts, &number.to_ne_bytes())?;
    Ok(counts)
}

/// Bits of the abort word: the program asked code on the device to stop, which ends its waits. Or a
/// process that shares an event with the code has ended.
const STOP: u64 = 1;
const PEER_DIED: u64 = 2;

/// A word of the host's memory that code on a context's device reads.
pub(crate) struct HostWord(Memory);

impl HostWord {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let options = AllocationOptions::new(size_of::<u64>()).kind(MemoryKind::Host);
        let word = Self(context.allocate_with(options)?);
        word.word()?.store(0, Ordering::Relaxed);
        Ok(word)
    }

    fn word(&self) -> Result<&AtomicU64> {
        let words = self.0.bytes()?.atomics()?;
        words.first().ok_or(Error::invalid("no word"))
    }

    /// Returns the word's address on the device, and on the host.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub(crate) fn set(&self, bit: u64) {
        // `new` has found the word.
        if let Ok(word) = self.word() {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Clears one bit, and leaves the others.
    pub(crate) fn clear(&self, bit: u64) {
        if let Ok(word) = self.word() {
            word.fetch_and(!bit, Ordering::Release);
        }
    }
}

impl Context {
    /// Returns an event for code on this context's device. Results for the same event share their
    /// counts while one of them exists.
    ///
    /// From now on the host's signals of the event write its words, which makes them slower.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if code on the device cannot use events
    ///   ([`device_signals`](crate::device::Capabilities::device_signals)).
    /// - The errors of [`allocate`](Self::allocate).
    pub fn device_event(&self, event: &Event) -> Result<DeviceEvent> {
        let find = |events: &[Weak<Inner>]| {
            let mut events = events.iter().filter_map(Weak::upgrade);
            events.find(|inner| inner.is_of(self.core(), event))
        };
        let found = find(&HELPED.lock().events);
        if let Some(inner) = found {
            return Ok(DeviceEvent(inner));
        }
        // No lock is held here, because this waits for the device.
        let mut new = DeviceEvent::new(self, event)?;
        let mut helped = loop {
            let helped = HELPED.lock();
            if let Some(inner) = find(&helped.events) {
                // Another thread was faster. The lock is released before `new` is dropped.
                drop(helped);
                return Ok(DeviceEvent(inner));
            }
            if !new.can_signal() || event.submitted() == new.0.start {
                break helped;
            }
            // Another thread has created one, and code on the device has signalled since.
            drop(helped);
            new = DeviceEvent::new(self, event)?;
        };
        if let Some(place) = &event.counted
            && new.can_signal()
        {
            let _ = place.set(new.clone());
        }
        helped.events.push(Arc::downgrade(&new.0));
        if !std::mem::replace(&mut helped.has_job, true) {
            drop(helped);
            background::repeat(HELP_INTERVAL, help_all);
        }
        Ok(new)
    }

    /// Tells code on this context's device to stop: from now on `is_aborted` of `crosshandle.cuh`
    /// returns true, and waits return `aborted`.
    ///
    /// If a process that shares a [device event](Self::device_event) ends, `is_aborted` returns
    /// true too. Waits for other processes continue then.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    pub fn abort_device_code(&self) -> Result<()> {
        self.abort_word()?.set(STOP);
        Ok(())
    }

    /// Takes back [`abort_device_code`](Self::abort_device_code), for code that is launched later.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    pub fn clear_device_abort(&self) -> Result<()> {
        self.abort_word()?.clear(STOP);
        Ok(())
    }
}

/// The device events of this process.
#[derive(Default)]
struct Helped {
    events: Vec<Weak<Inner>>,
    /// Whether the background job exists.
    has_job: bool,
}

static HELPED: PerProcess<Mutex<Helped>> = PerProcess::new(Mutex::default);

/// Helps all code on devices. Returns whether any is left.
fn help_all() -> bool {
    let mut helped = HELPED.lock();
    helped.events.retain(|event| event.strong_count() > 0);
    helped.has_job = !helped.events.is_empty();
    let events = helped.events.clone();
    let has_job = helped.has_job;
    drop(helped);
    // The last reference may be dropped here, which may call a driver.
    for event in events {
        if let Some(inner) = event.upgrade() {
            inner.help();
        }
    }
    has_job
}

#[cfg(test)]
mod tests {
    use super::{HostWord, PEER_DIED, STOP};
    use crate::{Context, Device, EventOptions};
    use std::sync::Barrier;
    use std::sync::atomic::Ordering;
    use std::thread;

    /// Threads that create the device event of one event at the same time share its counts.
    #[test]
    fn threads_share_the_counts_of_an_event() {
        const THREADS: usize = 4;
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        for _ in 0..200 {
            let options = EventOptions::new().single_signaller(true);
            let event = context.create_event_with(options).unwrap();
            let barrier = Barrier::new(THREADS);
            let create = || {
                barrier.wait();
                context.device_event(&event).unwrap()
            };
            let events: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(create)).collect();
                let created = threads.into_iter().map(|thread| thread.join().unwrap());
                created.collect()
            });
            let first = events[0].addresses();
            assert!(events.iter().all(|event| event.addresses() == first));
        }
    }

    /// A program that takes back its own request to stop still sees the death of a peer.
    #[test]
    fn clearing_a_bit_leaves_the_others() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let word = HostWord::new(&context).unwrap();
        word.set(STOP);
        word.set(PEER_DIED);
        word.clear(STOP);
        assert_eq!(word.word().unwrap().load(Ordering::Relaxed), PEER_DIED);
    }
}
