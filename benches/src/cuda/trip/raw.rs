//! Trips through the driver's own calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result, bail};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Arrangement, PAIRS_OFFSET, Rival, Route, WORD_STRIDE_BYTES};
use crate::harness::link::Link;
use crate::raw::counter::SpinCounter;
use crate::raw::cuda::{Event, Gpu, Mapped, Operation, Page, Physical, Stream, Word};

/// Size of the device memory for one word, in bytes. It is the driver's smallest allocation.
const DEVICE_WORD_ALLOCATION_BYTES: usize = 2 << 20;

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

    fn all(arrangement: &Arrangement, page: &Page) -> Result<Vec<Self>> {
        (0..arrangement.pairs())
            .map(|index| Self::on(page, index))
            .collect()
    }
}

/// A stream, and the counters that it waits for and writes.
struct Counters {
    arrangement: &'static Arrangement,
    stream: Stream,
    pairs: Vec<Pair>,
}

/// Creates the leader's part of an arrangement's raw technique.
pub(super) fn leader(
    arrangement: &'static Arrangement,
    gpu: &Gpu,
    page: &Page,
    link: &Link,
) -> Result<Box<dyn super::TripStarter>> {
    let stream = Stream::create(gpu)?;
    Ok(match arrangement.rival {
        Rival::Page | Rival::Batches => Box::new(Counters {
            arrangement,
            stream,
            pairs: Pair::all(arrangement, page)?,
        }),
        Rival::DeviceWords => {
            let mut pairs = Pair::all(arrangement, page)?;
            for pair in &mut pairs {
                // Both processes do these steps in the same order.
                let own = Physical::create(gpu, DEVICE_WORD_ALLOCATION_BYTES)?;
                let peers = exchange(link, &own)?;
                pair.pong = zeroed(own.map(DEVICE_WORD_ALLOCATION_BYTES)?, &stream)?;
                link.send_number(1)?;
                link.receive_number()?;
                pair.ping = import(gpu, peers)?;
            }
            Box::new(Counters {
                arrangement,
                stream,
                pairs,
            })
        }
        Rival::Native => Box::new(native(gpu, stream, link, true)?),
    })
}

/// Creates the follower's part of an arrangement's raw technique.
pub(super) fn follower(
    arrangement: &'static Arrangement,
    gpu: &Gpu,
    page: &Page,
    link: &Link,
) -> Result<Box<dyn super::TripAnswerer>> {
    let stream = Stream::create(gpu)?;
    Ok(match arrangement.rival {
        Rival::Page | Rival::Batches => Box::new(Counters {
            arrangement,
            stream,
            pairs: Pair::all(arrangement, page)?,
        }),
        Rival::DeviceWords => {
            let mut pairs = Pair::all(arrangement, page)?;
            for pair in &mut pairs {
                let own = Physical::create(gpu, DEVICE_WORD_ALLOCATION_BYTES)?;
                let peers = exchange(link, &own)?;
                pair.ping = zeroed(own.map(DEVICE_WORD_ALLOCATION_BYTES)?, &stream)?;
                link.receive_number()?;
                link.send_number(1)?;
                pair.pong = import(gpu, peers)?;
            }
            Box::new(Counters {
                arrangement,
                stream,
                pairs,
            })
        }
        Rival::Native => Box::new(native(gpu, stream, link, false)?),
    })
}

/// Sends memory to the other process, and receives that process's memory.
fn exchange(link: &Link, own: &Physical) -> Result<OwnedFd> {
    link.send_with(b"memory", &[own.export()?.as_fd()])?;
    let message = link.receive()?;
    let mut descriptors = message.descriptors.into_iter();
    descriptors.next().context("expected a descriptor")
}

/// Sets the first word of mapped memory to zero, and returns the word.
fn zeroed(memory: Mapped, stream: &Stream) -> Result<Word> {
    memory.set_first_word(stream, 0)?;
    memory.into_word(0)
}

/// Imports memory of the other process, and returns its first word.
fn import(gpu: &Gpu, descriptor: OwnedFd) -> Result<Word> {
    Physical::import(gpu, descriptor)?
        .map(DEVICE_WORD_ALLOCATION_BYTES)?
        .into_word(0)
}

impl super::TripStarter for Counters {
    #[inline]
    fn run_trip(&mut self, route: Route) -> Result<()> {
        let pair = &mut self.pairs[self.arrangement.pair(route)?];
        let stream = &self.stream;
        pair.number += 1;
        match route {
            Route::Back if self.arrangement.rival == Rival::Batches => {
                stream.batch([
                    Operation::Write(pair.ping, pair.number),
                    Operation::Wait(pair.pong, pair.number),
                    Operation::Write(pair.done, pair.number),
                ])?;
                SpinCounter(pair.host_done).wait(pair.number);
            }
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
            if self.arrangement.rival == Rival::Batches {
                self.stream.batch([
                    Operation::Wait(pair.ping, pair.number),
                    Operation::Write(pair.pong, pair.number),
                ])?;
            } else {
                self.stream.wait(pair.ping, pair.number)?;
                self.stream.write(pair.pong, pair.number)?;
            }
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

/// Creates the part of either process. The leader creates the socket.
fn native(gpu: &Gpu, stream: Stream, link: &Link, is_leader: bool) -> Result<Native> {
    let own = Event::create(gpu)?;
    link.send(&own.export()?)?;
    let other = Event::open(gpu, link.receive_array()?)?;
    let socket = if is_leader {
        let (ours, theirs) = Link::pair()?;
        link.send_with(b"socket", &[theirs.as_fd()])?;
        ours.into()
    } else {
        let mut descriptors = link.receive()?.descriptors.into_iter();
        descriptors.next().context("expected a socket")?
    };
    Ok(Native {
        stream,
        own,
        other,
        socket,
    })
}

impl Native {
    /// Sends a byte to the other process.
    fn send_byte(&self) -> Result<()> {
        send(&self.socket, &[1], SendFlags::NOSIGNAL)
            .map(drop)
            .context("cannot tell the other process")
    }

    /// Waits for a byte from the other process.
    fn receive_byte(&self) -> Result<()> {
        let mut byte = [0];
        let (received, _) = recv(&self.socket, &mut byte, RecvFlags::empty())
            .context("cannot hear of the other process")?;
        if received == 0 {
            bail!("the other process has gone");
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
