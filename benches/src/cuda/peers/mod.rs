//! What Python programs have for the same purpose: torch and cuda.core, where they are installed.

mod python;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crosshandle::{Command, Context, Memory, Queue};

use super::copy::{COPIES, LENGTH as COPY, copy};
use super::trip::{BATCH, peer as trip};
use super::{ours, row};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Scenario, Seat};
use crate::harness::timing::{clock_cost, drop_once, once};
use crate::host::ours::{Waiters, open_event, open_memory};
use crate::raw::cuda::Gpu;
use crate::report::row::{RowSpec, Target};
use crate::report::unit::Unit;
use python::Peer;

/// One of them.
struct Kind {
    script: &'static str,
    rows: &'static [RowSpec],
    /// What is measured: the ability's name, the series in its answer, our own way, and the row.
    abilities: &'static [Ability],
}

struct Ability {
    name: &'static str,
    /// Times that it is measured in a round.
    count: usize,
    own: Own,
    /// Each series of the answer, and its row.
    series: &'static [(&'static str, &'static str)],
}

/// What is ours of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Memory,
    Event,
    Trip,
    /// From imported memory to memory of one's own, within a GPU or from GPU 1.
    Copy,
    PeerCopy,
}

const fn ability(
    name: &'static str,
    count: usize,
    own: Own,
    series: &'static [(&'static str, &'static str)],
) -> Ability {
    Ability {
        name,
        count,
        own,
        series,
    }
}

const fn bandwidth(mut row: RowSpec) -> RowSpec {
    row.unit = Unit::GigabytesPerSecond;
    row
}

static TORCH_KIND: Kind = Kind {
    script: concat!(include_str!("common.py"), "\n", include_str!("torch.py")),
    rows: &[
        row(
            "cuda-torch.open",
            "first open of 64 MiB, beside torch",
            "torch: rebuilding a tensor of another process",
            Target::None,
        ),
        row(
            "cuda-torch.close",
            "close 64 MiB, beside torch",
            "torch: deleting that tensor",
            Target::None,
        ),
        row(
            "cuda-torch.event",
            "open an event, beside torch",
            "torch: Event.from_ipc_handle",
            Target::None,
        ),
        row(
            "cuda-torch.trip",
            "stream → other's stream → back → host, one GPU, beside torch",
            "torch: inter-process events, a byte over a socket each way",
            Target::None,
        ),
        bandwidth(row(
            "cuda-torch.copy",
            "copy from imported memory, 1 GiB, one GPU (read + written), beside torch",
            "torch: Tensor.copy_",
            Target::None,
        )),
        bandwidth(row(
            "cuda-torch.copy2",
            "copy from imported memory of another GPU, 1 GiB, beside torch",
            "torch: Tensor.copy_",
            Target::AtLeastTimesRaw(0.98),
        )),
    ],
    abilities: &[
        ability(
            "open",
            8,
            Own::Memory,
            &[("open", "cuda-torch.open"), ("close", "cuda-torch.close")],
        ),
        ability("event", 16, Own::Event, &[("event", "cuda-torch.event")]),
        ability("trip", 32, Own::Trip, &[("trip", "cuda-torch.trip")]),
        ability("copy", 4, Own::Copy, &[("copy", "cuda-torch.copy")]),
        ability("copy2", 4, Own::PeerCopy, &[("copy", "cuda-torch.copy2")]),
    ],
};

static CORE_KIND: Kind = Kind {
    script: concat!(
        include_str!("common.py"),
        "\n",
        include_str!("cuda_core.py")
    ),
    rows: &[
        row(
            "cuda-core.open",
            "first open of 64 MiB, beside cuda.core",
            "cuda.core: Buffer.from_ipc_descriptor, its pool open",
            Target::None,
        ),
        row(
            "cuda-core.close",
            "close 64 MiB, beside cuda.core",
            "cuda.core: Buffer.close, Stream.sync",
            Target::None,
        ),
        row(
            "cuda-core.event",
            "open an event, beside cuda.core",
            "cuda.core: Event.from_ipc_descriptor",
            Target::None,
        ),
        row(
            "cuda-core.trip",
            "stream → other's stream → back → host, one GPU, beside cuda.core",
            "cuda.core: a new inter-process event each way, its handle over a socket",
            Target::None,
        ),
    ],
    abilities: &[
        ability(
            "open",
            8,
            Own::Memory,
            &[("open", "cuda-core.open"), ("close", "cuda-core.close")],
        ),
        ability("event", 16, Own::Event, &[("event", "cuda-core.event")]),
        ability("trip", 32, Own::Trip, &[("trip", "cuda-core.trip")]),
    ],
};

pub(crate) static TORCH: Scenario = Scenario {
    name: "cuda-torch",
    hands: 1,
    cores: 2,
    limit: Duration::from_secs(90),
    rows: TORCH_KIND.rows,
    lead: |seat| lead(seat, &TORCH_KIND),
    hand: |seat| hand(seat, &TORCH_KIND),
};

pub(crate) static CORE: Scenario = Scenario {
    name: "cuda-core",
    hands: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: CORE_KIND.rows,
    lead: |seat| lead(seat, &CORE_KIND),
    hand: |seat| hand(seat, &CORE_KIND),
};

/// Rounds, after one that nobody measures.
fn rounds(seat: &Seat) -> usize {
    1 + seat.plan.pick(7, 3)
}

/// What the first word of the `index`-th allocation is.
fn token(index: usize) -> u64 {
    index as u64 + 1
}

/// The importer, which also asks the peer.
fn lead(seat: &Seat, kind: &Kind) -> Result<Outcome> {
    let link = seat.peer()?;
    let mut recorder = Recorder::default();
    let mut peer = match Peer::start(kind.script)? {
        Ok(peer) => peer,
        Err(reason) => {
            for row in kind.rows {
                recorder.absent(row.id, &reason);
            }
            link.send(b"end")?;
            return Ok(recorder.finish());
        }
    };
    let gpus = Gpu::count()?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    link.send(b"start")?;
    let mut trips = trip::Lead::new(link)?;
    let mut local = None;
    let clock = clock_cost();
    for round in 0..rounds(seat) {
        let mut figures = Recorder::default();
        for ability in kind.abilities {
            if ability.own == Own::PeerCopy && gpus < 2 {
                for (_, row) in ability.series {
                    recorder.absent(row, format!("needs 2 GPUs, and there is {gpus}"));
                }
                continue;
            }
            for side in Side::turns(round) {
                if side == Side::Raw {
                    let passes = if ability.own == Own::Copy { 2.0 } else { 1.0 };
                    let mut answer = peer.ask(ability.name, ability.count)?;
                    for (series, row) in ability.series {
                        let samples = answer.remove(*series).context("a series is missing")?;
                        figures.extend(row, side, samples.into_iter().map(|each| each * passes));
                    }
                    continue;
                }
                for index in 0..ability.count {
                    let mut push = |series: usize, figure| {
                        figures.push(ability.series[series].1, side, figure);
                    };
                    match ability.own {
                        Own::Memory => {
                            link.send(b"memory")?;
                            let handle = link.receive()?.bytes;
                            let (memory, opened) = once(clock, || open_memory(&context, &handle))?;
                            let found = ours::first_word(&context, &queue, &memory)?;
                            ours::check(found, token(0))?;
                            push(0, opened);
                            push(1, drop_once(clock, memory));
                            link.send_number(index as u64)?;
                        }
                        Own::Event => {
                            link.send(b"event")?;
                            let handle = link.receive()?.bytes;
                            let open = || open_event(&context, &handle, Waiters::Default);
                            let (_event, opened) = once(clock, open)?;
                            push(0, opened);
                            link.send_number(index as u64)?;
                        }
                        Own::Trip => {
                            if index.is_multiple_of(BATCH) {
                                link.send(b"trip")?;
                                let ready = link.receive_number()? == 0;
                                ensure!(ready, "the other process lost count");
                            }
                            push(0, once(clock, || trips.go())?.1);
                        }
                        Own::Copy | Own::PeerCopy => {
                            let gpu = usize::from(ability.own == Own::PeerCopy);
                            if index == 0 {
                                // Not measured: opening it, and the first copy.
                                link.send(if gpu == 0 { b"copy" } else { b"far " })?;
                                let imported = open_memory(&context, &link.receive()?.bytes)?;
                                let own = context.allocate(COPY)?;
                                copy_once(&queue, &own, &imported)?;
                                local = Some((own, imported));
                            }
                            let (own, imported) = local.as_ref().context("no memory")?;
                            let ((), elapsed) = once(clock, || copy_once(&queue, own, imported))?;
                            let passes = if gpu == 0 { 2.0 } else { 1.0 };
                            push(0, (COPY * COPIES) as f64 * passes / elapsed);
                            if index + 1 == ability.count {
                                local = None;
                                link.send_number(index as u64)?;
                            }
                        }
                    }
                }
            }
        }
        if round > 0 {
            recorder.absorb(figures);
        }
    }
    link.send(b"end")?;
    for row in kind.rows {
        recorder.note(row.id, peer.name.clone());
    }
    Ok(recorder.finish())
}

fn copy_once(queue: &Queue, own: &Memory, imported: &Memory) -> Result<()> {
    copy(queue, || Ok(Command::copy(own.all(), imported.all())?))
}

/// The exporter, which does what it is told.
fn hand(seat: &Seat, _: &Kind) -> Result<Outcome> {
    let link = seat.peer()?;
    if link.receive()?.bytes == b"end" {
        return Ok(Outcome::default());
    }
    let context = ours::context(0)?;
    let unpooled = ours::unpooled_context(0)?;
    let queue = context.create_queue()?;
    let mut trips = trip::Hand::new(link)?;
    loop {
        match &link.receive()?.bytes[..] {
            b"end" => return Ok(Outcome::default()),
            b"memory" => {
                let memory = unpooled.allocate(super::opens::LENGTH)?;
                ours::set_first_word(&queue, &memory, token(0))?;
                link.send(memory.handle()?.as_bytes())?;
                link.receive_number()?;
            }
            b"event" => {
                let event = context.create_event()?;
                link.send(event.handle()?.as_bytes())?;
                link.receive_number()?;
            }
            b"trip" => {
                trips.answer()?;
                link.send_number(0)?;
            }
            b"copy" => lend(&context, seat)?,
            _ => lend(&ours::context(1)?, seat)?,
        }
    }
}

/// Lets the other process copy from memory of a context.
fn lend(context: &Context, seat: &Seat) -> Result<()> {
    let link = seat.peer()?;
    let memory = context.allocate(COPY)?;
    let queue = context.create_queue()?;
    queue.submit(Command::fill(memory.all(), &[1])?)?;
    queue.finish()?;
    link.send(memory.handle()?.as_bytes())?;
    link.receive_number().map(drop)
}
