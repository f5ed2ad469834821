//! The library's operations that are compared with a peer's.

use anyhow::{Result, ensure};
use crosshandle::{Command, Context, Queue};

use super::{Ability, OwnOperation};
use crate::cuda::copy::{COPIES, COPY_BYTES, copy};
use crate::cuda::opens::MEMORY_BYTES;
use crate::cuda::ours;
use crate::cuda::trip::{TRIPS_PER_BATCH, peer as trip};
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::Participant;
use crate::harness::timing::{clock_cost, drop_once, once};
use crate::host::ours::{Waiters, open_event, open_memory};

/// The first word of exported memory.
const TOKEN: u64 = 0x5_0000_0005;

/// The importer, which measures the library.
pub(super) struct Leader<'a> {
    link: &'a Link,
    context: Context,
    queue: Queue,
    trips: trip::Leader,
    clock: f64,
}

impl<'a> Leader<'a> {
    pub(super) fn new(link: &'a Link) -> Result<Self> {
        let context = ours::context(0)?;
        Ok(Self {
            link,
            queue: context.create_queue()?,
            context,
            trips: trip::Leader::new(link)?,
            clock: clock_cost(),
        })
    }

    /// Takes as many samples of an ability as the peer takes in a round.
    pub(super) fn measure(&mut self, ability: &Ability, figures: &mut Recorder) -> Result<()> {
        let mut push = |series: usize, figure| {
            figures.push(ability.series[series].1, Side::Ours, figure);
        };
        match ability.own {
            OwnOperation::Memory => {
                for _ in 0..ability.count {
                    let (opened, closed) = self.open_memory()?;
                    push(0, opened);
                    push(1, closed);
                }
            }
            OwnOperation::Event => {
                for _ in 0..ability.count {
                    let handle = self.request(b"event")?;
                    let open = || open_event(&self.context, &handle, Waiters::Default);
                    let (_event, opened) = once(self.clock, open)?;
                    push(0, opened);
                    self.link.send_number(0)?;
                }
            }
            OwnOperation::Trip => {
                for index in 0..ability.count {
                    if index.is_multiple_of(TRIPS_PER_BATCH) {
                        self.link.send(b"trips")?;
                        let ready = self.link.receive_number()? == 0;
                        ensure!(ready, "the other process lost count");
                    }
                    push(0, once(self.clock, || self.trips.run_trip())?.1);
                }
            }
            OwnOperation::Copy | OwnOperation::PeerCopy => {
                let handle = self.request(match ability.own {
                    OwnOperation::Copy => b"copy from GPU 0",
                    _ => b"copy from GPU 1",
                })?;
                let imported = open_memory(&self.context, &handle)?;
                let own = self.context.allocate(COPY_BYTES)?;
                let copies = || {
                    copy(&self.queue, |_| {
                        Ok(Command::copy(imported.all(), own.all())?)
                    })
                };
                copies()?;
                let bytes = (COPY_BYTES * COPIES) as f64 * ability.own.passes();
                for _ in 0..ability.count {
                    let ((), elapsed) = once(self.clock, copies)?;
                    push(0, bytes / elapsed);
                }
                self.link.send_number(0)?;
            }
        }
        Ok(())
    }

    /// Opens and closes memory that this process has not opened before. Returns the nanoseconds of
    /// both calls.
    fn open_memory(&self) -> Result<(f64, f64)> {
        let handle = self.request(b"memory")?;
        let open = || open_memory(&self.context, &handle);
        let (memory, opened) = once(self.clock, open)?;
        let found = ours::first_word(&self.context, &self.queue, &memory)?;
        ours::check(found, TOKEN)?;
        let closed = drop_once(self.clock, memory);
        self.link.send_number(0)?;
        Ok((opened, closed))
    }

    /// Requests an object of the exporter, and returns its handle.
    fn request(&self, what: &[u8]) -> Result<Vec<u8>> {
        self.link.send(what)?;
        Ok(self.link.receive()?.bytes)
    }
}

/// Runs the exporter, which serves the importer's requests.
pub(super) fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    if link.receive()?.bytes == b"end" {
        return Ok(Outcome::default());
    }
    let context = ours::context(0)?;
    let unpooled = ours::unpooled_context(0)?;
    let queue = context.create_queue()?;
    let mut trips = trip::Follower::new(link)?;
    loop {
        match &link.receive()?.bytes[..] {
            b"memory" => {
                let memory = unpooled.allocate(MEMORY_BYTES)?;
                ours::set_first_word(&queue, &memory, TOKEN)?;
                link.send(memory.handle()?.as_bytes())?;
                link.receive_number()?;
            }
            b"event" => {
                let event = context.create_event()?;
                link.send(event.handle()?.as_bytes())?;
                link.receive_number()?;
            }
            b"trips" => {
                trips.answer()?;
                link.send_number(0)?;
            }
            b"copy from GPU 0" => export_for_copy(&context, link)?,
            b"copy from GPU 1" => export_for_copy(&ours::context(1)?, link)?,
            _ => return Ok(Outcome::default()),
        }
    }
}

/// Exports memory of a context until the importer has copied from it.
fn export_for_copy(context: &Context, link: &Link) -> Result<()> {
    let memory = context.allocate(COPY_BYTES)?;
    let queue = context.create_queue()?;
    queue.submit(Command::fill(memory.all(), &[1])?)?;
    queue.finish()?;
    link.send(memory.handle()?.as_bytes())?;
    link.receive_number().map(drop)
}
