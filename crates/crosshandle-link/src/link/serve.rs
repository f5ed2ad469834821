//! The owner's half of a link. It opens local objects for the peer, and accesses them on the peer's
//! behalf.

use super::data::DataPath;
use super::past::Past;
use super::session::{Session, State};
use super::stage::{Job, reply_bytes};
use crate::control::message::{Failure, MAX_BLOB, Message, NamedPart, write_failures, write_parts};
use crate::error::{Error, Result};
use crate::tuning::MAX_OPENING;
use crate::ucx::worker::Registration;
use crosshandle::handle::AnyHandle;
use crosshandle::{Access, Event, Memory, SharedBytes};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

/// Maximum number of objects that one peer may have open.
const MAX_SERVED: usize = 1 << 16;

/// A local object that is open for the peer.
pub(crate) enum Served {
    Memory {
        memory: Arc<Memory>,
        registration: Option<Registration>,
        /// Whether the memory is device memory that the host cannot access. A queue must then copy
        /// the bytes that travel in messages.
        is_on_device: bool,
    },
    Event {
        event: Event,
        /// Number of the next signal to report, for which this side waits.
        next: u64,
        /// Whether the link's thread may still wait for another thread that is abandoning the
        /// event. It may do so only once.
        may_wait: bool,
    },
}

pub(crate) struct OpenRequest {
    request: u64,
    wanted: Wanted,
}

enum Wanted {
    Handle { read_only: bool, handle: Vec<u8> },
    Name(String),
}

/// Opens handles for the peer until the link ends. Runs on its own thread, so an open that waits
/// for another process delays only other opens.
pub(crate) fn open_all(session: &Weak<Session>, requests: &Receiver<OpenRequest>) {
    while let Ok(request) = requests.recv() {
        let Some(session) = session.upgrade() else {
            return;
        };
        if let Err(error) = session.open(&request) {
            session.refuse(request.request, &error);
        }
        session.state().opening -= 1;
    }
}

impl Session {
    pub(super) fn refuse(&self, request: u64, error: &Error) {
        let why = error.to_string();
        let _ = self.say(&Message::Refused { request, why: &why });
    }

    fn open(&self, request: &OpenRequest) -> Result<()> {
        let (read_only, handle) = match &request.wanted {
            Wanted::Handle { read_only, handle } => (*read_only, handle),
            Wanted::Name(name) => return self.open_name(request.request, name),
        };
        let handle = AnyHandle::from_bytes(handle).map_err(crosshandle::Error::from)?;
        match handle {
            AnyHandle::Memory(handle) => {
                let memory = match read_only || handle.is_read_only() {
                    true => self.context.open_memory_read_only(&handle)?,
                    false => self.context.open_memory(&handle)?,
                };
                self.serve_memory(request.request, Arc::new(memory))
            }
            AnyHandle::Event(handle) => {
                let event = self.context.open_event(&handle)?;
                self.serve_event(request.request, event)
            }
            _ => Err(Error::invalid(
                "physical memory and channels cannot be opened over a link: send a handle to memory",
            )),
        }
    }

    /// Looks up a named object for the peer, and replies with the handles of its parts.
    fn open_name(&self, request: u64, name: &str) -> Result<()> {
        let holder = self.names.as_ref().ok_or_else(|| {
            Error::invalid("this link does not allow lookups of names: see LinkOptions::names")
        })?;
        let held = holder.open(name)?;
        let parts = held.parts.iter().filter_map(|part| {
            Some(NamedPart {
                role: &part.role,
                device: &part.device,
                handle: part.read_only.as_ref()?.as_bytes(),
            })
        });
        let parts = write_parts(parts)
            .ok_or_else(|| Error::invalid("the object has more parts than a link supports"))?;
        self.say(&Message::Name {
            request,
            version: held.version,
            parts: &parts,
        })
    }

    fn serve_memory(&self, request: u64, memory: Arc<Memory>) -> Result<()> {
        let Ok(bytes) = memory.bytes() else {
            return self.serve_device_memory(request, memory);
        };
        let registration = match &self.data {
            None => None,
            Some(data) => {
                let is_writable = memory.access() == Access::ReadWrite;
                // SAFETY: `bytes` is memory of this length, and `Served` keeps it alive.
                // `stop_serving` ends the registration before it drops the memory.
                let registration =
                    unsafe { data.register(bytes.as_ptr(), bytes.len(), is_writable)? };
                Some(check_key(data, registration)?)
            }
        };
        let len = memory.len() as u64;
        let (address, key) = registration
            .as_ref()
            .map_or((0, Vec::new()), |made| (made.address, made.key.clone()));
        let served = Served::Memory {
            memory: Arc::clone(&memory),
            registration,
            is_on_device: false,
        };
        self.serve(served, |id| Message::Memory {
            request,
            id,
            len,
            address,
            staging: 0,
            key: &key,
        })
        .map(drop)
    }

    /// Opens device memory that the host cannot access for the peer. UCX accesses it directly if
    /// possible. Otherwise it is staged.
    fn serve_device_memory(&self, request: u64, memory: Arc<Memory>) -> Result<()> {
        // The stager is needed even if UCX accesses the memory directly, because small writes with
        // a signal travel in messages.
        let stager = self.stager()?;
        let len = memory.len() as u64;
        if let Some(registration) = self.register_device_memory(&memory) {
            let (address, key) = (registration.address, registration.key.clone());
            let served = Served::Memory {
                memory,
                registration: Some(registration),
                is_on_device: true,
            };
            let message = |id| Message::Memory {
                request,
                id,
                len,
                address,
                staging: 0,
                key: &key,
            };
            return self.serve(served, message).map(drop);
        }
        let served = Served::Memory {
            memory,
            registration: None,
            is_on_device: true,
        };
        self.serve(served, |id| Message::Memory {
            request,
            id,
            len,
            address: stager.address(),
            staging: stager.len(),
            key: stager.key(),
        })
        .map(drop)
    }

    /// Registers device memory that the host cannot access with UCX. Returns `None` if the memory
    /// must be staged.
    fn register_device_memory(&self, memory: &Memory) -> Option<Registration> {
        let data = self.data.as_ref()?;
        if !data.moves_memory_of(&self.context) {
            return None;
        }
        let is_writable = memory.access() == Access::ReadWrite;
        // SAFETY: as in `serve_memory`. The memory is on the context's device, which is a CUDA
        // device.
        let made = unsafe { data.register_cuda(memory.as_ptr(), memory.len(), is_writable) };
        check_key(data, made.ok()?).ok()
    }

    fn serve_event(&self, request: u64, event: Event) -> Result<()> {
        let mut may_wait = true;
        let past = Past::of(&event, 1, event.completed(), &mut may_wait);
        let next = past.reached + 1;
        let failures = write_failures(past.failures.iter().map(|(first, count, why)| Failure {
            first: *first,
            count: *count,
            why,
        }));
        let served = Served::Event {
            event: event.clone(),
            next,
            may_wait,
        };
        let id = self.serve(served, |id| Message::Event {
            request,
            id,
            completed: past.reached,
            failures: &failures,
        })?;
        // The reply was already sent, so `await_next` reports a failure in a separate message.
        self.await_next(&event, id, next, past.is_abandoned);
        if !self.state().served.contains_key(&id) {
            // The peer has closed the event already.
            self.notifier.remove(id.into());
        }
        Ok(())
    }

    /// Starts to wait for signal `next` of an event that is open for the peer. If no signal follows
    /// or the wait cannot start, reports the event as abandoned.
    fn await_next(&self, event: &Event, id: u32, next: u64, is_abandoned: bool) {
        // If this side cannot wait for the signal, it must tell the peer. Otherwise waits for the
        // mirror would never end.
        if is_abandoned || self.notifier.add(event, next, id.into()).is_err() {
            let _ = self.say(&Message::Abandoned { id });
        }
    }

    /// Assigns a number to an object that was opened for the peer, and sends the reply that
    /// `message` creates from the number.
    fn serve<'a>(&self, served: Served, message: impl FnOnce(u32) -> Message<'a>) -> Result<u32> {
        let mut state = self.state();
        if let Err(error) = state.check_alive().and_then(|()| state.check_room()) {
            drop(state);
            self.stop_serving(0, served);
            return Err(error);
        }
        let id = state.next_served;
        // The numbers wrap around after about four billion opens. Skip numbers that are in use.
        state.next_served = id.checked_add(1).unwrap_or(1);
        while state.served.contains_key(&state.next_served) {
            state.next_served = state.next_served.checked_add(1).unwrap_or(1);
        }
        state.served.insert(id, served);
        if state.say(&message(id)) {
            drop(state);
            self.wake();
        }
        Ok(id)
    }

    /// Closes an object that was open for the peer.
    pub(crate) fn stop_serving(&self, id: u32, served: Served) {
        match served {
            Served::Memory {
                memory,
                registration,
                ..
            } => {
                if let (Some(data), Some(registration)) = (&self.data, registration) {
                    data.unregister(&registration);
                }
                drop(memory);
            }
            Served::Event { .. } => {
                self.notifier.remove(id.into());
            }
        }
    }

    /// Starts to open a handle for the peer. The reply is sent later.
    pub(crate) fn begin_open(
        &self,
        request: u64,
        read_only: bool,
        handle: &[u8],
    ) -> Result<(), &'static str> {
        let handle = handle.to_vec();
        self.begin_to(request, Wanted::Handle { read_only, handle })
    }

    /// Starts to look up a name for the peer. The reply is sent later.
    pub(crate) fn begin_open_name(&self, request: u64, name: &str) -> Result<(), &'static str> {
        self.begin_to(request, Wanted::Name(name.to_owned()))
    }

    fn begin_to(&self, request: u64, wanted: Wanted) -> Result<(), &'static str> {
        {
            let mut state = self.state();
            if state.opening >= MAX_OPENING {
                return Err("it asks for more opens than it waits for");
            }
            state.opening += 1;
        }
        // The channel's capacity equals the limit for `opening`, so sending does not fail.
        self.opening
            .try_send(OpenRequest { request, wanted })
            .map_err(|_| "too many opens")
    }

    pub(crate) fn close_served(&self, id: u32) -> Result<(), &'static str> {
        let served = self.state().served.remove(&id);
        let served = served.ok_or("it closes what is not open")?;
        self.stop_serving(id, served);
        Ok(())
    }

    /// Signals a local event on the peer's behalf, and replies with the signal's number.
    pub(crate) fn signal_served(&self, request: u64, id: u32) -> Result<(), &'static str> {
        let event = self.served_event(id)?;
        self.reply(request, event.signal().map_err(Error::from));
        Ok(())
    }

    /// Writes bytes to local memory and then signals a local event, on the peer's behalf.
    pub(crate) fn write_and_signal_served(
        &self,
        request: u64,
        id: u32,
        event: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        let (memory, event) = (self.served_memory(id)?, self.served_event(event)?);
        if let (memory, true) = memory {
            let bytes = bytes.to_vec();
            let signal = Some(event);
            return self.begin_job(Job::Write {
                request,
                memory,
                offset,
                bytes,
                signal,
            });
        }
        let written = to_bytes(&memory.0, offset).and_then(|(at, to)| Ok(to.write(at, bytes)?));
        self.reply(request, written.and_then(|()| Ok(event.signal()?)));
        Ok(())
    }

    pub(super) fn reply(&self, request: u64, result: Result<u64>) {
        match result {
            Ok(value) => drop(self.say(&Message::Done { request, value })),
            Err(error) => self.refuse(request, &error),
        }
    }

    fn served_event(&self, id: u32) -> Result<Event, &'static str> {
        match self.state().served.get(&id) {
            Some(Served::Event { event, .. }) => Ok(event.clone()),
            _ => Err("it signals what is not an open event"),
        }
    }

    /// Returns memory that is open for the peer, and whether it is device memory that the host
    /// cannot access.
    fn served_memory(&self, id: u32) -> Result<(Arc<Memory>, bool), &'static str> {
        match self.state().served.get(&id) {
            Some(Served::Memory {
                memory,
                is_on_device,
                ..
            }) => Ok((Arc::clone(memory), *is_on_device)),
            _ => Err("it accesses what is not open memory"),
        }
    }

    /// Reads local memory on the peer's behalf, and replies with the bytes.
    pub(crate) fn read_served(
        &self,
        request: u64,
        id: u32,
        offset: u64,
        len: u32,
    ) -> Result<(), &'static str> {
        let memory = match self.served_memory(id)? {
            (memory, false) => memory,
            (memory, true) => {
                return self.begin_job(Job::Read {
                    request,
                    memory,
                    offset,
                    len,
                });
            }
        };
        let read = to_bytes(&memory, offset).and_then(|(at, from)| {
            let mut bytes = reply_bytes(len)?;
            from.read(at, &mut bytes)?;
            Ok(bytes)
        });
        self.reply_read(request, read);
        Ok(())
    }

    pub(super) fn reply_read(&self, request: u64, read: Result<Vec<u8>>) {
        match read {
            Ok(bytes) => drop(self.say(&Message::Data {
                request,
                bytes: &bytes,
            })),
            Err(error) => self.refuse(request, &error),
        }
    }

    /// Writes bytes to local memory on the peer's behalf.
    pub(crate) fn write_served(
        &self,
        request: u64,
        id: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        let memory = match self.served_memory(id)? {
            (memory, false) => memory,
            (memory, true) => {
                let bytes = bytes.to_vec();
                return self.begin_job(Job::Write {
                    request,
                    memory,
                    offset,
                    bytes,
                    signal: None,
                });
            }
        };
        let written = to_bytes(&memory, offset).and_then(|(at, to)| Ok(to.write(at, bytes)?));
        self.reply(request, written.map(|()| 0));
        Ok(())
    }

    /// Starts a copy between local memory and the staging buffer, on the peer's behalf.
    pub(crate) fn stage_served(
        &self,
        request: u64,
        id: u32,
        into_memory: bool,
        offset: u64,
        at: u32,
        len: u32,
    ) -> Result<(), &'static str> {
        match self.served_memory(id)? {
            (memory, true) => self.begin_job(Job::Stage {
                request,
                memory,
                into_memory,
                offset,
                at,
                len,
            }),
            _ => Err("it stages memory that needs no staging"),
        }
    }

    /// Reports finished signals of all open events to the peer.
    pub(crate) fn tell_signals(&self) {
        while !self.has_told_enough() {
            let Some(notification) = self.notifier.next() else {
                return;
            };
            let Ok(id) = u32::try_from(notification.token) else {
                continue;
            };
            let Some((event, awaited, mut may_wait)) = self.awaited(id) else {
                continue;
            };
            if notification.result.is_err() && awaited > event.submitted() {
                let _ = self.say(&Message::Abandoned { id });
                continue;
            }
            // Report all signals that have finished by now together.
            let completed = event.completed().max(awaited);
            let past = Past::of(&event, awaited, completed, &mut may_wait);
            for (first, count, why) in &past.failures {
                let _ = self.say(&Message::Failed {
                    id,
                    first: *first,
                    count: *count,
                    why,
                });
            }
            let number = past.reached;
            if number >= awaited {
                let _ = self.say(&Message::Reached { id, number });
            }
            if let Some(Served::Event {
                next,
                may_wait: may,
                ..
            }) = self.state().served.get_mut(&id)
            {
                (*next, *may) = (number + 1, may_wait);
            }
            self.await_next(&event, id, number + 1, past.is_abandoned);
        }
    }

    /// Returns an event that is open for the peer, the number of the signal for which this side
    /// waits, and whether the link's thread may wait for an abandonment.
    fn awaited(&self, id: u32) -> Option<(Event, u64, bool)> {
        match self.state().served.get(&id) {
            Some(Served::Event {
                event,
                next,
                may_wait,
            }) => Some((event.clone(), *next, *may_wait)),
            _ => None,
        }
    }
}

impl State {
    fn check_room(&self) -> Result<()> {
        match self.served.len() < MAX_SERVED {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{MAX_SERVED} objects are open over this link: close some"
            ))),
        }
    }
}

fn to_bytes(memory: &Memory, offset: u64) -> Result<(usize, SharedBytes<'_>)> {
    let offset = usize::try_from(offset)
        .map_err(|_| Error::invalid("an offset is beyond the end of the memory"))?;
    Ok((offset, memory.bytes()?))
}

/// Checks that a registration's key fits into a message. Otherwise ends the registration and fails.
pub(super) fn check_key(data: &DataPath, registration: Registration) -> Result<Registration> {
    if registration.key.len() > MAX_BLOB {
        data.unregister(&registration);
        return Err(Error::invalid(
            "UCX's key of the memory is too long to be sent",
        ));
    }
    Ok(registration)
}
