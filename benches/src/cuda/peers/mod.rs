//! Comparison with Python programs for the same purpose: torch and cuda.core, where they are
//! installed.

mod ours;
mod python;

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Scenario, Seat};
use crate::raw::cuda::Gpu;
use crate::report::row::{RowSpec, Target};
use crate::report::unit::Unit;
use python::Peer;

/// One Python package, and what it can do.
struct Kind {
    script: &'static str,
    rows: &'static [RowSpec],
    /// The abilities to measure.
    abilities: &'static [Ability],
}

struct Ability {
    name: &'static str,
    /// Number of measurements in a round.
    count: usize,
    own: Own,
    /// Each series of the peer's answer, and its row.
    series: &'static [(&'static str, &'static str)],
}

/// The library's counterpart of an ability.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Memory,
    Event,
    Trip,
    /// Copies imported memory to this process's own, within a GPU or from GPU 1.
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
    hand: ours::hand,
};

pub(crate) static CORE: Scenario = Scenario {
    name: "cuda-core",
    hands: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: CORE_KIND.rows,
    lead: |seat| lead(seat, &CORE_KIND),
    hand: ours::hand,
};

/// Returns the number of rounds after an unmeasured one.
fn rounds(seat: &Seat) -> usize {
    1 + seat.plan.pick(7, 3)
}

/// Runs the importer, which also asks the peer.
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
    link.send(b"start")?;
    let gpus = Gpu::count()?;
    let mut ours = ours::Lead::new(link)?;
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
                match side {
                    Side::Ours => ours.measure(ability, &mut figures)?,
                    Side::Raw => ask(&mut peer, ability, &mut figures)?,
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

fn ask(peer: &mut Peer, ability: &Ability, figures: &mut Recorder) -> Result<()> {
    let mut answer = peer.ask(ability.name, ability.count)?;
    for (series, row) in ability.series {
        let samples = answer.remove(*series).context("a series is missing")?;
        let samples = samples.into_iter().map(|each| each * ability.own.passes());
        figures.extend(row, Side::Raw, samples);
    }
    Ok(())
}

impl Own {
    /// Returns how many times each byte of a copy passes the memory of one GPU.
    fn passes(self) -> f64 {
        if self == Self::Copy { 2.0 } else { 1.0 }
    }
}
