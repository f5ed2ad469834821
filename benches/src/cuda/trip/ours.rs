//! Trips through the library: one event for each direction, and one for the end of the trip.

use anyhow::{Context as _, Result};
use crosshandle::{Command, Context, Event, Queue};

use super::{Kind, Route};
use crate::cuda::ours;
use crate::harness::link::Link;
use crate::host::ours::{Waiters, each_handle, open_event};

/// The two events of one route, and the number of the latest trip.
struct Pair {
    ping: Event,
    pong: Event,
    number: u64,
}

pub(super) struct Lead {
    kind: &'static Kind,
    queue: Queue,
    pairs: Vec<Pair>,
    done: Event,
}

impl Lead {
    pub(super) fn new(kind: &'static Kind, link: &Link) -> Result<Self> {
        let context = ours::context(0)?;
        let mut handles = Vec::new();
        let mut pairs = Vec::new();
        for _ in 0..kind.pairs() {
            let (ping, pong) = (context.create_event()?, context.create_event()?);
            for event in [&ping, &pong] {
                handles.extend_from_slice(event.handle()?.as_bytes());
            }
            let number = 0;
            pairs.push(Pair { ping, pong, number });
        }
        link.send(&handles)?;
        Ok(Self {
            kind,
            queue: context.create_queue()?,
            pairs,
            done: context.create_event()?,
        })
    }
}

impl super::Lead for Lead {
    #[inline]
    fn go(&mut self, route: Route) -> Result<()> {
        let pair = &mut self.pairs[self.kind.pair(route)?];
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

pub(super) struct Hand {
    kind: &'static Kind,
    queue: Queue,
    pairs: Vec<Pair>,
    _context: Context,
}

impl Hand {
    pub(super) fn new(kind: &'static Kind, link: &Link) -> Result<Self> {
        let context = ours::context(kind.gpu)?;
        let message = link.receive()?;
        let mut events =
            each_handle(&message.bytes).map(|bytes| open_event(&context, bytes, Waiters::Default));
        let mut next = || events.next().context("expected more handles")?;
        let mut pairs = Vec::new();
        for _ in 0..kind.pairs() {
            let (ping, pong) = (next()?, next()?);
            let number = 0;
            pairs.push(Pair { ping, pong, number });
        }
        Ok(Self {
            kind,
            queue: context.create_queue()?,
            pairs,
            _context: context,
        })
    }
}

impl super::Hand for Hand {
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()> {
        let pair = &mut self.pairs[self.kind.pair(route)?];
        for _ in 0..count {
            pair.number += 1;
            let command = Command::barrier().after_value(&pair.ping, pair.number);
            self.queue.submit(command.signal(&pair.pong))?;
        }
        ready();
        Ok(())
    }
}
