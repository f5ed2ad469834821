//! Endpoints that have failed are replaced, as lost connections are.
//!
//! Bytes of a failed endpoint may be on their way still: in a socket, or in a network card. They must not arrive
//! after those that are sent again. So not the endpoint alone is replaced but the worker, at *both* sides: each
//! lets the old one go, with its connections, before it says where the new one is, and a new endpoint connects to
//! a new worker alone. Workers are counted for that; two of one generation belong together. Who moves memory
//! then moves again what was not done, and notices nothing but the delay.

use super::{DataPath, EVENT, Endpoint, Outage, Shared, take_event_fd};
use crate::error::{Error, Result};
use crate::tuning::{MAX_REPLACE_PAUSE, REDIAL_INTERVAL};
use rustix::event::epoll;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What the link's thread has to do after it has looked after the worker.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// The other side is to be told where this side's new endpoint is.
    pub(crate) address: Option<(u32, Vec<u8>)>,
    /// This side has connected to the other one's endpoint.
    pub(crate) has_connected: bool,
    /// The latest time to look again.
    pub(crate) wake_at: Option<Instant>,
}

impl Shared {
    /// Returns whether memory can be moved.
    pub(super) fn is_usable(&self) -> bool {
        self.endpoint == Endpoint::Made && self.worker.failure().is_none()
    }

    /// Returns whether the link's thread has something to do that no descriptor tells of.
    pub(super) fn needs_care(&self) -> bool {
        self.worker.failure().is_some() || (self.endpoint == Endpoint::Failed && self.moves == 0)
    }

    /// Gives the endpoint up: what is under way ends with an error. Does nothing if it has failed before.
    pub(super) fn fail(&mut self, why: Error) {
        if self.endpoint == Endpoint::Failed {
            return;
        }
        self.endpoint = Endpoint::Failed;
        self.worker.close_endpoint();
        let now = Instant::now();
        let outage = self.outage.get_or_insert(Outage {
            since: now,
            why: why.clone(),
            failures: 0,
            replace_at: now,
        });
        outage.why = why;
        // The first one at once.
        let pause = match outage.failures {
            0 => Duration::ZERO,
            failures => REDIAL_INTERVAL.saturating_mul(1 << failures.min(10)),
        };
        outage.failures = outage.failures.saturating_add(1);
        outage.replace_at = now + pause.min(MAX_REPLACE_PAUSE);
    }

    /// Notes that memory has moved by this endpoint.
    pub(super) fn note_works(&mut self) {
        if self.endpoint == Endpoint::Made {
            self.outage = None;
            self.proven_by = None;
        }
    }

    /// Looks whether the new endpoint works.
    fn look_at_probe(&mut self, now: Instant) {
        let mut probe = self.probe.take();
        match probe.is_some().then(|| self.worker.is_done(&mut probe)) {
            Some(Ok(true)) => self.note_works(),
            Some(Err(error)) => self.fail(error),
            Some(Ok(false)) => self.probe = probe,
            None => {}
        }
        if self.endpoint == Endpoint::Made && self.proven_by.is_some_and(|limit| now >= limit) {
            self.fail(Error::TimedOut("connecting by UCX"));
        }
    }

    /// Connects to the other side's endpoint of this generation.
    fn connect(&mut self, address: &[u8], proven_by: Instant) {
        let connected = self.worker.connect(address).and_then(|()| {
            self.endpoint = Endpoint::Made;
            self.moved_at = Instant::now();
            self.worker.flush()
        });
        match connected {
            Ok(Some(probe)) => {
                self.probe = Some(probe);
                self.proven_by = Some(proven_by);
            }
            Ok(None) => self.note_works(),
            Err(error) => self.fail(error),
        }
    }
}

impl DataPath {
    /// Notes where the other side's endpoint is. The link's thread connects to it when it
    /// [looks after](Self::look_after) the worker.
    pub(crate) fn offer(&self, generation: u32, address: &[u8]) -> Result<(), &'static str> {
        if address.is_empty() {
            return Err("its data endpoint has no address");
        }
        let mut shared = self.shared();
        if generation <= shared.last_offered {
            return Err("it gives its data endpoint twice");
        }
        // It is ahead by the one that has failed there and not here.
        if generation > shared.generation + 1 {
            return Err("it replaces an endpoint that there was not");
        }
        shared.last_offered = generation;
        // Of an older generation: it will learn that this one has failed.
        if generation >= shared.generation {
            shared.offered = Some((generation, address.to_vec()));
        }
        Ok(())
    }

    /// Looks after the worker and the endpoint, as the link's thread does before it sleeps.
    ///
    /// # Errors
    /// For as long as the keep-alive no endpoint has worked.
    pub(crate) fn look_after(&self) -> Result<Upkeep> {
        let mut upkeep = Upkeep::default();
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(upkeep);
        }
        let now = Instant::now();
        let mut shared = self.shared();
        let before = (shared.endpoint, shared.generation);
        if shared.lookers == 0
            && let Err(error) = self.arm(&mut shared)
        {
            shared.fail(error);
        }
        if let Some(failure) = shared.worker.failure() {
            shared.fail(failure);
        }
        shared.look_at_probe(now);
        let generation = shared.generation;
        let is_behind = shared.offered.as_ref().is_some_and(|it| it.0 > generation);
        if is_behind {
            shared.fail(Error::Protocol("the other side has replaced its endpoint"));
        }
        if let Some(outage) = &shared.outage
            && now.duration_since(outage.since) >= self.limits.outage
        {
            return Err(outage.why.clone());
        }
        if shared.endpoint == Endpoint::Failed {
            let is_due = is_behind || shared.outage.as_ref().is_none_or(|it| now >= it.replace_at);
            if is_due && shared.moves == 0 {
                upkeep.address = Some(self.replace(&mut shared)?);
            }
        }
        if shared.endpoint == Endpoint::Awaited
            && let Some((offered, address)) = shared.offered.take()
            // Of an older generation: the other side lets that one go.
            && offered == shared.generation
        {
            shared.connect(&address, now + self.limits.proof);
            upkeep.has_connected = shared.endpoint == Endpoint::Made;
            if shared.lookers == 0
                && let Err(error) = self.arm(&mut shared)
            {
                shared.fail(error);
            }
        }
        upkeep.wake_at = self.wake_at(&shared);
        let has_changed = (shared.endpoint, shared.generation) != before;
        drop(shared);
        if has_changed {
            // Moves that wait for an endpoint, and those that wait for one that has failed.
            self.changed.notify_all();
        }
        Ok(upkeep)
    }

    fn wake_at(&self, shared: &Shared) -> Option<Instant> {
        let outage = shared.outage.as_ref();
        let ends_at = outage.map(|outage| outage.since + self.limits.outage);
        let next = match shared.endpoint {
            // Who moves last wakes the link's thread.
            Endpoint::Failed if shared.moves == 0 => outage.map(|outage| outage.replace_at),
            Endpoint::Made => shared.proven_by,
            _ => None,
        };
        [ends_at, next].into_iter().flatten().min()
    }

    /// Begins a new generation. Nothing of the old worker is in use.
    fn replace(&self, shared: &mut Shared) -> Result<(u32, Vec<u8>)> {
        if let Some(probe) = shared.probe.take() {
            // Its endpoint is closed, so it is done: it is let go of here.
            let _ = shared.worker.is_done(&mut Some(probe));
        }
        shared.proven_by = None;
        shared.destroy_keys();
        let next = shared.generation.checked_add(1);
        let next = next.ok_or(Error::Protocol("endpoints fail again and again"))?;
        shared.worker.renew()?;
        let event_fd = take_event_fd(&mut shared.worker)?;
        // The old one's copy would stay in the epoll with what it refers to.
        let _ = epoll::delete(&self.events, &shared.event_fd);
        shared.event_fd = event_fd;
        let flags = match shared.lookers {
            0 => epoll::EventFlags::IN,
            _ => epoll::EventFlags::empty(),
        };
        epoll::add(&self.events, &shared.event_fd, EVENT, flags)
            .map_err(Error::os("waiting for UCX's descriptor"))?;
        shared.generation = next;
        shared.endpoint = Endpoint::Awaited;
        shared.moved_at = Instant::now();
        self.arm(shared)?;
        Ok((next, shared.worker.address()?))
    }
}
