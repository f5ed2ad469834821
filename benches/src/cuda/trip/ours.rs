//! Trips through the library, with an event in each direction and an event for the end.

use anyhow::{Context as _, Result};
use crosshandle::{Command, Context, Event, Queue};

use super::{Arrangement, Route};
use crate::cuda::ours;
use crate::harness::link::Link;
use crate::host::ours::{Waiters, each_event, open_event};

/// The two events of one route, and the number of the latest trip.
struct Pair {
    ping: Event,
    pong: Event,
    number: u64,
}

/// The leader's part: its queue, and its events.
pub(super) struct Leader {
    arrangement: &'static Arrangement,
    queue: Queue,
    pairs: Vec<Pair>,
    done: Event,
}

impl Leader {
    pub(super) fn new(arrangement: &'static Arrangement, link: &Link) -> Result<Self> {
        let context = ours::context(0)?;
        let mut handles = Vec::new();
        let mut pairs = Vec::new();
        for _ in 0..arrangement.pairs() {
            let (ping, pong) = (context.create_event()?, context.create_event()?);
            for event in [&ping, &pong] {
                handles.extend_from_slice(event.handle()?.as_bytes());
            }
            let number = 0;
            pairs.push(Pair { ping, pong, number });
        }
        link.send(&handles)?;
        Ok(Self {
            arrangement,
            queue: context.create_queue()?,
            pairs,
            done: context.create_event()?,
        })
    }
}

impl super::TripStarter for Leader {
    #[inline]
    fn run_trip(&mut self, route: Route) -> Result<()> {
        let pair = &mut self.pairs[self.arrangement.pair(route)?];
        pair.number += 1;
        match route {
            Route::Back => {
                self.queue.signal(&pair.ping)?;
                let back = Command::barrier().after_value(&pair.pong, pair.number);
                self.queue.submit(back.signal(&self.done))?;
                self.done.wait()?;
            }
            Route::ToHost => {
                self.queue.signal(&pair.ping)?;
                pair.pong.wait_value(pair.number)?;
            }
            Route::Echo => {
                pair.ping.signal()?;
                pair.pong.wait_value(pair.number)?;
            }
        }
        Ok(())
    }
}

/// The follower's part: its queue, and the leader's events.
pub(super) struct Follower {
    arrangement: &'static Arrangement,
    queue: Queue,
    pairs: Vec<Pair>,
    _context: Context,
}

impl Follower {
    pub(super) fn new(arrangement: &'static Arrangement, link: &Link) -> Result<Self> {
        let context = ours::context(arrangement.gpu)?;
        let message = link.receive()?;
        let mut events =
            each_event(&message.bytes).map(|bytes| open_event(&context, bytes, Waiters::Default));
        let mut next = || events.next().context("expected more handles")?;
        let mut pairs = Vec::new();
        for _ in 0..arrangement.pairs() {
            let (ping, pong) = (next()?, next()?);
            let number = 0;
            pairs.push(Pair { ping, pong, number });
        }
        Ok(Self {
            arrangement,
            queue: context.create_queue()?,
            pairs,
            _context: context,
        })
    }
}

impl super::TripAnswerer for Follower {
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()> {
        let pair = &mut self.pairs[self.arrangement.pair(route)?];
        for _ in 0..count {
            pair.number += 1;
            let command = Command::barrier().after_value(&pair.ping, pair.number);
            self.queue.submit(command.signal(&pair.pong))?;
        }
        ready();
        Ok(())
    }
}
