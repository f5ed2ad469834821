//! Replacement of failed UCX endpoints.
//!
//! Bytes that were sent over a failed endpoint may still be in flight, in a socket or in a network
//! card. They must not arrive after the bytes that are sent again. Therefore *both* sides replace
//! the whole worker, not only the endpoint. Each side destroys the old worker with its connections
//! before it sends the address of the new one. Workers have generation numbers, and only workers of
//! the same generation connect, so a new worker never connects to an old one. After that, each move
//! repeats the pieces that have not arrived. A program notices only a delay.

use super::{DataPath, EVENT, Endpoint, Outage, Shared, flags, take_event_fd};
use crate::error::{Error, Result};
use crate::tuning::{FOLLOW_INTERVAL, REDIAL_INTERVAL};
use rustix::event::epoll;
use std::time::{Duration, Instant};

/// Maximum pause before a repeatedly failing endpoint is replaced again. The pauses start at
/// [`REDIAL_INTERVAL`] and double.
const MAX_REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// Tasks for the link's thread, after it has driven the worker.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// The generation and the address of this side's new endpoint, which the thread must send to
    /// the peer.
    pub(crate) address: Option<(u32, Vec<u8>)>,
    /// Whether this side has connected to the peer's endpoint.
    pub(crate) has_connected: bool,
    /// The latest time at which the thread must drive the worker again.
    pub(crate) wake_at: Option<Instant>,
}

impl Shared {
    /// Returns `true` if the endpoint can transfer memory contents.
    pub(super) fn is_usable(&self) -> bool {
        self.endpoint == Endpoint::Made && self.worker.failure().is_none()
    }

    /// Returns `true` if the link's thread must act although no descriptor reports it.
    pub(super) fn needs_care(&self) -> bool {
        match self.endpoint {
            Endpoint::Awaited | Endpoint::Made => self.worker.failure().is_some(),
            Endpoint::Failed => self.moves == 0,
            Endpoint::Closed => false,
        }
    }

    /// Closes a failed endpoint, so that its requests end with an error. Does nothing if the
    /// endpoint is already closed.
    pub(super) fn fail(&mut self, why: Error) {
        if !self.is_alive() {
            return;
        }
        // Replace the first failed endpoint without a pause.
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => REDIAL_INTERVAL.saturating_mul(1 << failures.min(10)),
        };
        self.failures = self.failures.saturating_add(1);
        self.give_up(why, Instant::now() + pause.min(MAX_REPLACE_PAUSE));
    }

    /// Closes the endpoint, which may be replaced from `replace_at` on.
    fn give_up(&mut self, why: Error, replace_at: Instant) {
        self.endpoint = Endpoint::Failed;
        self.worker.close_endpoint();
        let since = self.outage.as_ref().map(|outage| outage.since);
        self.outage = Some(Outage {
            since: since.unwrap_or_else(Instant::now),
            why,
            replace_at,
        });
    }

    /// Records that this endpoint has reached the peer. Only a move shows whether the endpoint can
    /// also transfer memory contents.
    fn note_reaches(&mut self) {
        if self.endpoint == Endpoint::Made {
            self.outage = None;
            self.proven_by = None;
        }
    }

    /// Records that a move over this endpoint was successful.
    pub(super) fn note_works(&mut self) {
        if self.endpoint == Endpoint::Made {
            self.note_reaches();
            self.failures = 0;
        }
    }

    /// Frees the probe of a closed endpoint. Returns `false` if a device still uses it.
    fn end_probe(&mut self) -> bool {
        // An error also ends the probe.
        let is_done = !matches!(self.worker.is_done(&mut self.probe), Ok(false));
        if !is_done {
            // A device may have started to process the probe. Only driving the worker ends it.
            self.progress();
        }
        is_done
    }

    /// Returns `true` if the peer has replaced its endpoint and this side has not.
    fn is_behind(&self) -> bool {
        let offered = self.offered.as_ref();
        offered.is_some_and(|(generation, _)| *generation > self.generation)
    }

    /// Returns the earliest time to replace a failed endpoint. `None` means at once. If the peer
    /// has replaced its endpoint, this side follows, but at a limited rate.
    fn due_at(&self) -> Option<Instant> {
        let replace_at = self.outage.as_ref()?.replace_at;
        if !self.is_behind() {
            return Some(replace_at);
        }
        Some(self.follows_at?.min(replace_at))
    }

    /// Postpones the replacement of a failed endpoint.
    fn put_off(&mut self, until: Instant) {
        self.follows_at = Some(until);
        if let Some(outage) = &mut self.outage {
            outage.replace_at = until;
        }
    }

    /// Checks whether the probe has shown that the new endpoint reaches the peer. If not by the
    /// deadline, closes the endpoint.
    fn look_at_probe(&mut self, now: Instant) {
        let mut probe = self.probe.take();
        match probe.is_some().then(|| self.worker.is_done(&mut probe)) {
            Some(Ok(true)) => self.note_reaches(),
            Some(Err(error)) => self.fail(error),
            Some(Ok(false)) => self.probe = probe,
            None => {}
        }
        if self.endpoint == Endpoint::Made && self.proven_by.is_some_and(|limit| now >= limit) {
            self.fail(Error::TimedOut("connecting by UCX"));
        }
    }

    /// Connects to the peer's endpoint of this generation, and starts the probe.
    fn connect(&mut self, address: &[u8], proven_by: Instant) {
        // SAFETY: the authenticated peer has sent the address of its worker. Links over UCX trust
        // their peer, as `docs/hosts.md` says.
        let connected = unsafe { self.worker.connect(address) }.and_then(|()| {
            self.endpoint = Endpoint::Made;
            self.moved_at = Instant::now();
            self.worker.flush()
        });
        match connected {
            Ok(Some(probe)) => {
                self.probe = Some(probe);
                self.proven_by = Some(proven_by);
            }
            Ok(None) => self.note_reaches(),
            Err(error) => self.fail(error),
        }
    }
}

impl DataPath {
    /// Stores the address of the peer's endpoint. The link's thread connects to it when it
    /// [drives](Self::look_after) the worker.
    pub(crate) fn offer(&self, generation: u32, address: &[u8]) -> Result<(), &'static str> {
        if address.is_empty() {
            return Err("its data endpoint has no address");
        }
        let mut shared = self.shared();
        if generation <= shared.last_offered {
            return Err("it sends its data endpoint twice");
        }
        // The peer may be one generation ahead, if only the peer has detected a failure.
        if generation > shared.generation + 1 {
            return Err("it replaces an endpoint that did not exist");
        }
        shared.last_offered = generation;
        // Ignore the address of an older generation. This side has already replaced its endpoint,
        // and the peer will follow when it gets the new address.
        if generation >= shared.generation {
            shared.offered = Some((generation, address.to_vec()));
        }
        Ok(())
    }

    /// Drives the worker, and connects or replaces the endpoint. The link's thread calls this
    /// function each time before it sleeps.
    ///
    /// # Errors
    /// Returns an error if no endpoint has worked for as long as the keep-alive.
    pub(crate) fn look_after(&self) -> Result<Upkeep> {
        let mut upkeep = Upkeep::default();
        let now = Instant::now();
        let mut shared = self.shared();
        if shared.endpoint == Endpoint::Closed {
            return Ok(upkeep);
        }
        let before = (shared.endpoint, shared.generation);
        if shared.lookers == 0
            && let Err(error) = self.arm(&mut shared)
        {
            if shared.endpoint == Endpoint::Awaited {
                // The worker must not be replaced before the peer has connected to it.
                return Err(error);
            }
            shared.fail(error);
        }
        if let Some(failure) = shared.worker.failure() {
            shared.fail(failure);
        }
        shared.look_at_probe(now);
        if shared.is_behind() && shared.is_alive() {
            // A replacement by the peer says nothing about the network, so it does not increase the
            // pauses.
            let follows_at = shared.follows_at.unwrap_or(now);
            let why = Error::Protocol("the other side has replaced its endpoint");
            shared.give_up(why, follows_at);
        }
        if let Some(outage) = &shared.outage
            && now.duration_since(outage.since) >= self.limits.outage
        {
            return Err(outage.why.clone());
        }
        if shared.endpoint == Endpoint::Failed
            && shared.moves == 0
            && shared.due_at().is_none_or(|due_at| now >= due_at)
        {
            match shared.end_probe() {
                true => upkeep.address = Some(self.replace(&mut shared)?),
                false => shared.put_off(now + REDIAL_INTERVAL),
            }
        }
        if shared.endpoint == Endpoint::Awaited
            && let Some((offered, address)) = shared.offered.take()
            // Do not connect to an endpoint of an older generation, because the peer is about to
            // drop it.
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
        self.listen(&mut shared);
        upkeep.wake_at = self.wake_at(&shared);
        let has_changed = (shared.endpoint, shared.generation) != before;
        drop(shared);
        if has_changed {
            // Wake moves that wait for an endpoint, and moves whose endpoint has failed.
            self.changed.notify_all();
        }
        Ok(upkeep)
    }

    fn wake_at(&self, shared: &Shared) -> Option<Instant> {
        let outage = shared.outage.as_ref();
        let ends_at = outage.map(|outage| outage.since + self.limits.outage);
        let next = match shared.endpoint {
            // While moves still have requests, no time is needed. The last of these moves wakes the
            // link's thread.
            Endpoint::Failed if shared.moves == 0 => shared.due_at(),
            Endpoint::Made => shared.proven_by,
            _ => None,
        };
        [ends_at, next].into_iter().flatten().min()
    }

    /// Replaces the worker and starts a new generation. Returns the generation and the new address.
    /// No move may use the old worker.
    fn replace(&self, shared: &mut Shared) -> Result<(u32, Vec<u8>)> {
        shared.proven_by = None;
        shared.destroy_keys();
        let next = shared.generation.checked_add(1);
        let next = next.ok_or(Error::Protocol("endpoints keep failing"))?;
        // SAFETY: no move has requests, the probe is done, and the keys were destroyed above.
        unsafe { shared.worker.renew()? };
        let event_fd = take_event_fd(&mut shared.worker)?;
        // The duplicate of the old worker's descriptor is still open, so the kernel would keep its
        // entry in the epoll set.
        let _ = epoll::delete(&self.events, &shared.event_fd);
        shared.event_fd = event_fd;
        shared.is_heard = shared.lookers == 0;
        epoll::add(
            &self.events,
            &shared.event_fd,
            EVENT,
            flags(shared.is_heard),
        )
        .map_err(Error::os("waiting for UCX's descriptor"))?;
        shared.generation = next;
        shared.endpoint = Endpoint::Awaited;
        shared.moved_at = Instant::now();
        shared.follows_at = Some(shared.moved_at + FOLLOW_INTERVAL);
        self.arm(shared)?;
        Ok((next, shared.worker.address()?))
    }
}
