//! Trips through the driver's own calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result, bail};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Arrangement, PAIRS_OFFSET, Rival, Route, WORD_STRIDE_BYTES};
use crate::harness::link::Link;
use crate::raw::counter::SpinCounter;
use crate::raw::cuda::{Event, Gpu, Page, Stream, Word};

/// The words of one route.
struct Pair {
    ping: Word,
    pong: Word,
    /// Word that the leader's stream writes at the end of a trip.
    done: Word,
    /// The words on the page, as the host accesses them.
    host_ping: &'static AtomicU64,
    host_pong: &'static AtomicU64,
    host_done: &'static AtomicU64,
    number: u64,
}

impl Pair {
    fn on(page: &Page, index: usize) -> Result<Self> {
        let start = PAIRS_OFFSET + index * 3 * WORD_STRIDE_BYTES;
        let [ping, pong, done] = [
            start,
            start + WORD_STRIDE_BYTES,
            start + 2 * WORD_STRIDE_BYTES,
        ];
        Ok(Self {
            ping: page.device_word(ping)?,
            pong: page.device_word(pong)?,
            done: page.device_word(done)?,
            host_ping: page.word(ping)?,
            host_pong: page.word(pong)?,
            host_done: page.word(done)?,
            number: 0,
        })
    }
}

/// A stream, and the counters that it waits for and writes.
struct Counters {
    arrangement: &'static Arrangement,
    stream: Stream,
    pairs: Vec<Pair>,
}

/// Either process's part of a raw technique.
pub(super) trait Technique: super::TripStarter + super::TripAnswerer {}

impl<T: super::TripStarter + super::TripAnswerer> Technique for T {}

/// Creates one process's part of an arrangement's raw technique.
pub(super) fn technique(
    arrangement: &'static Arrangement,
    gpu: &Gpu,
    page: &Page,
    link: &Link,
    is_leader: bool,
) -> Result<Box<dyn Technique>> {
    Ok(match arrangement.rival {
        Rival::Page => Box::new(Counters::new(arrangement, gpu, page)?),
        Rival::Native => Box::new(Native::new(gpu, link, is_leader)?),
    })
}

impl Counters {
    fn new(arrangement: &'static Arrangement, gpu: &Gpu, page: &Page) -> Result<Self> {
        let pairs = (0..arrangement.pairs()).map(|index| Pair::on(page, index));
        Ok(Self {
            arrangement,
            stream: Stream::create(gpu)?,
            pairs: pairs.collect::<Result<_>>()?,
        })
    }
}

impl super::TripStarter for Counters {
    #[inline]
    fn run_trip(&mut self, route: Route) -> Result<()> {
        let pair = &mut self.pairs[self.arrangement.pair(route)?];
        let stream = &self.stream;
        pair.number += 1;
        match route {
            Route::Back => {
                stream.write(pair.ping, pair.number)?;
                stream.wait(pair.pong, pair.number)?;
                stream.write(pair.done, pair.number)?;
                SpinCounter(pair.host_done).wait(pair.number);
            }
            Route::ToHost => {
                stream.write(pair.ping, pair.number)?;
                SpinCounter(pair.host_pong).wait(pair.number);
            }
            Route::Echo => {
                SpinCounter(pair.host_ping).signal(pair.number);
                SpinCounter(pair.host_pong).wait(pair.number);
            }
        }
        Ok(())
    }
}

impl super::TripAnswerer for Counters {
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()> {
        let pair = &mut self.pairs[self.arrangement.pair(route)?];
        for _ in 0..count {
            pair.number += 1;
            self.stream.wait(pair.ping, pair.number)?;
            self.stream.write(pair.pong, pair.number)?;
        }
        ready();
        Ok(())
    }
}

/// Trips through the driver's own events.
///
/// A wait applies to the latest record of an event, so each process sends a byte after its record.
struct Native {
    stream: Stream,
    own: Event,
    other: Event,
    socket: OwnedFd,
}

impl Native {
    /// Creates the part of either process. The leader creates the socket.
    fn new(gpu: &Gpu, link: &Link, is_leader: bool) -> Result<Self> {
        let own = Event::create(gpu)?;
        link.send(&own.export()?)?;
        let other = Event::open(gpu, link.receive_array()?)?;
        let socket = if is_leader {
            let (ours, theirs) = Link::pair()?;
            link.send_with(b"socket", &[theirs.as_fd()])?;
            ours.into()
        } else {
            link.receive()?.descriptor()?
        };
        Ok(Self {
            stream: Stream::create(gpu)?,
            own,
            other,
            socket,
        })
    }

    /// Sends a byte to the other process.
    fn send_byte(&self) -> Result<()> {
        send(&self.socket, &[1], SendFlags::NOSIGNAL)
            .map(drop)
            .context("cannot send to the other process")
    }

    /// Waits for a byte from the other process.
    fn receive_byte(&self) -> Result<()> {
        let mut byte = [0];
        let (received, _) = recv(&self.socket, &mut byte, RecvFlags::empty())
            .context("cannot receive from the other process")?;
        if received == 0 {
            bail!("the other process has ended");
        }
        Ok(())
    }
}

impl super::TripStarter for Native {
    fn run_trip(&mut self, _: Route) -> Result<()> {
        self.stream.record(&self.own)?;
        self.send_byte()?;
        self.receive_byte()?;
        self.stream.wait_event(&self.other)?;
        self.stream.synchronize()
    }
}

impl super::TripAnswerer for Native {
    fn answer(&mut self, _: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()> {
        ready();
        for _ in 0..count {
            self.receive_byte()?;
            self.stream.wait_event(&self.other)?;
            self.stream.record(&self.own)?;
            self.send_byte()?;
        }
        Ok(())
    }
}
