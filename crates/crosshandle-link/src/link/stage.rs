//! The owner's staging buffer: host memory through which the peer accesses device memory that the
//! host cannot access. A dedicated thread copies between the buffer and that memory.

use super::data::DataPath;
use super::serve::check_key;
use super::session::Session;
use super::thread;
use crate::control::message::MAX_DATA;
use crate::error::{Error, Result};
use crate::tuning::{STAGING_PART, STAGING_PARTS, STAGING_TIMEOUT};
use crate::ucx::worker::Registration;
use crate::wait::poll_since;
use crosshandle::handle::Bounded;
use crosshandle::{
    AllocationOptions, Command, Context, Event, Memory, MemoryKind, MemoryRange, Queue,
};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Maximum number of accesses that wait for the staging thread. Each access has up to 256 KiB. If
/// the peer requests more, the link ends.
const MAX_STAGING: usize = 512;

pub(crate) struct Stager {
    /// The parts that UCX transfers, followed by room for the bytes of one message.
    buffer: Memory,
    /// UCX's registration of the buffer. `None` without UCX.
    registration: Option<Registration>,
    jobs: SyncSender<Job>,
}

/// A copy for the staging thread.
pub(crate) enum Job {
    Read {
        request: u64,
        memory: Arc<Memory>,
        offset: u64,
        len: u32,
    },
    Write {
        request: u64,
        memory: Arc<Memory>,
        offset: u64,
        bytes: Vec<u8>,
        signal: Option<Event>,
    },
    /// Copies between memory and the staging buffer.
    Stage {
        request: u64,
        memory: Arc<Memory>,
        into_memory: bool,
        offset: u64,
        at: u32,
        len: u32,
    },
}

/// Allocates host memory for copies to and from a device.
pub(crate) fn host_memory(context: &Context, len: usize) -> Result<Memory> {
    Ok(context.allocate_with(AllocationOptions::new(len).kind(MemoryKind::Host))?)
}

impl Stager {
    fn new(context: &Context, data: Option<&DataPath>, jobs: SyncSender<Job>) -> Result<Self> {
        let staged = match data {
            Some(_) => STAGING_PART * STAGING_PARTS,
            None => 0,
        };
        let buffer = host_memory(context, staged + MAX_DATA)?;
        let registration = match data {
            Some(data) => {
                let bytes = buffer.bytes()?;
                // SAFETY: the buffer has at least `staged` bytes, and the stager keeps it alive.
                // `stop_staging` ends the registration before the session drops the stager.
                let made = unsafe { data.register(bytes.as_ptr(), staged, true)? };
                Some(check_key(data, made)?)
            }
            None => None,
        };
        Ok(Self {
            buffer,
            registration,
            jobs,
        })
    }

    /// Returns the buffer's address in this process, or 0 without UCX.
    pub(super) fn address(&self) -> u64 {
        self.registration.as_ref().map_or(0, |made| made.address)
    }

    /// Returns UCX's key for the buffer. The key is empty without UCX.
    pub(super) fn key(&self) -> &[u8] {
        self.registration.as_ref().map_or(&[], |made| &made.key)
    }

    /// Returns the size in bytes of the part of the buffer that the peer may use. Without UCX, this
    /// number only tells the peer that the memory is staged.
    pub(super) fn len(&self) -> u32 {
        (STAGING_PART * STAGING_PARTS) as u32
    }

    fn part(&self, at: u32, len: u32) -> Result<MemoryRange> {
        match (at.checked_add(len), &self.registration) {
            (Some(end), Some(_)) if end <= self.len() => {
                Ok(self.buffer.range(at as usize..end as usize)?)
            }
            _ => Err(Error::invalid(
                "the part is not inside of the staging buffer",
            )),
        }
    }
}

/// Returns the offset in the buffer at which the room for a message starts.
fn place(buffer: &Memory) -> usize {
    buffer.len() - MAX_DATA
}

impl Session {
    /// Returns the staging buffer, and creates it on first use.
    pub(super) fn stager(self: &Session) -> Result<Arc<Stager>> {
        if let Some(stager) = &self.state().stager {
            return Ok(Arc::clone(stager));
        }
        let queue = self.context.create_queue()?;
        let (sender, jobs) = sync_channel(MAX_STAGING);
        let stager = Arc::new(Stager::new(&self.context, self.data.as_deref(), sender)?);
        // The thread ends when the stager is dropped. Start it before other threads can find the
        // stager, so that no stager remains if the thread cannot start.
        let (session, copies) = (self.weak(), Arc::downgrade(&stager));
        let started = thread::start("xhl-stage", move || {
            stage_all(&session, &copies, &queue, &jobs);
        });
        if let Err(error) = started {
            self.stop_staging(&stager);
            return Err(error);
        }
        let mut state = self.state();
        if let Err(error) = state.check_alive() {
            drop(state);
            self.stop_staging(&stager);
            return Err(error);
        }
        state.stager = Some(Arc::clone(&stager));
        Ok(stager)
    }

    /// Ends UCX's registration of the staging buffer.
    pub(super) fn stop_staging(&self, stager: &Stager) {
        if let (Some(data), Some(registration)) = (&self.data, &stager.registration) {
            data.unregister(registration);
        }
    }

    /// Passes a copy to the staging thread. The reply is sent later.
    pub(super) fn begin_job(&self, job: Job) -> Result<(), &'static str> {
        let stager = self.state().stager.clone();
        let stager = stager.ok_or("it stages memory that needs no staging")?;
        stager
            .jobs
            .try_send(job)
            .map_err(|_| "it asks for more copies than it waits for")
    }
}

/// The main function of the staging thread. It processes copies for the peer until the link ends.
fn stage_all(session: &Weak<Session>, stager: &Weak<Stager>, queue: &Queue, jobs: &Receiver<Job>) {
    // Whether a copy has timed out. Such a copy may still access the buffer later, so the buffer
    // and the queue must not be used again.
    let mut is_broken = false;
    let mut used = Instant::now();
    loop {
        let ahead = poll_since(used, || match jobs.try_recv() {
            Err(TryRecvError::Empty) => None,
            job => Some(job.ok()),
        });
        let Some(job) = ahead.unwrap_or_else(|| jobs.recv().ok()) else {
            return;
        };
        let (Some(session), Some(stager)) = (session.upgrade(), stager.upgrade()) else {
            return;
        };
        let copy = |command: crosshandle::Result<Command>| {
            queue.submit(command?)?;
            queue.finish_timeout(STAGING_TIMEOUT)
        };
        let mut copied = |command: crosshandle::Result<Command>| -> Result<()> {
            if is_broken {
                return Err(Error::invalid(
                    "the owner's device has not copied in time before",
                ));
            }
            copy(command)
                .inspect_err(|error| is_broken = error.is_timeout())
                .map_err(Error::from)
        };
        let buffer = &stager.buffer;
        match job {
            Job::Read {
                request,
                memory,
                offset,
                len,
            } => {
                let read = range(&memory, offset, len as usize).and_then(|from| {
                    let mut bytes = reply_bytes(len)?;
                    copied(Command::copy(from, message_part(buffer, bytes.len())?))?;
                    buffer.read(place(buffer), &mut bytes)?;
                    Ok(bytes)
                });
                session.reply_read(request, read);
            }
            Job::Write {
                request,
                memory,
                offset,
                bytes,
                signal,
            } => {
                let written = range(&memory, offset, bytes.len()).and_then(|to| {
                    buffer.write(place(buffer), &bytes)?;
                    copied(Command::copy(message_part(buffer, bytes.len())?, to))?;
                    Ok(match signal {
                        Some(event) => event.signal()?,
                        None => 0,
                    })
                });
                session.reply(request, written);
            }
            Job::Stage {
                request,
                memory,
                into_memory,
                offset,
                at,
                len,
            } => {
                let staged = range(&memory, offset, len as usize).and_then(|own| {
                    let part = stager.part(at, len)?;
                    copied(match into_memory {
                        true => Command::copy(part, own),
                        false => Command::copy(own, part),
                    })?;
                    Ok(0)
                });
                session.reply(request, staged);
            }
        }
        used = Instant::now();
    }
}

/// Allocates a zeroed buffer for the reply to a read. Fails if a message cannot carry `len` bytes.
pub(super) fn reply_bytes(len: u32) -> Result<Vec<u8>> {
    let bytes = Bounded::<MAX_DATA>::new(len).and_then(Bounded::zeros);
    bytes.ok_or_else(|| Error::invalid("one message cannot carry that many bytes"))
}

fn message_part(buffer: &Memory, len: usize) -> crosshandle::Result<MemoryRange> {
    buffer.range(place(buffer)..place(buffer) + len)
}

fn range(memory: &Memory, offset: u64, len: usize) -> Result<MemoryRange> {
    let start = usize::try_from(offset).ok();
    let end = start.and_then(|start| start.checked_add(len));
    match (start, end) {
        (Some(start), Some(end)) if end <= memory.len() => Ok(memory.range(start..end)?),
        _ => Err(Error::invalid("bytes are not inside of the memory")),
    }
}
