//! Compares the library with Python packages, torch and cuda.core, if they are installed.

mod ours;
mod python;

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::rows::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::raw::cuda::Gpu;
use crate::report::row::{RowSpec, Target};
use crate::report::unit::Unit;
use python::Peer;

/// A peer's script, its rows and its abilities.
struct PeerSpec {
    script: &'static str,
    rows: &'static [RowSpec],
    abilities: &'static [Ability],
}

/// An operation that both a peer and the library measure.
struct Ability {
    /// Name of the operation in the peer's script.
    name: &'static str,
    /// Number of samples in a round.
    count: usize,
    own: OwnOperation,
    /// The names of the series in the peer's reply, with the row of each.
    series: &'static [(&'static str, &'static str)],
}

/// The library's operation that is compared with a peer's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnOperation {
    /// Opening and closing memory.
    Memory,
    /// Opening an event.
    Event,
    /// A round trip between two streams.
    Trip,
    /// Copies from imported memory, within a GPU.
    Copy,
    /// Copies from imported memory of GPU 1.
    PeerCopy,
}

const fn ability(
    name: &'static str,
    count: usize,
    own: OwnOperation,
    series: &'static [(&'static str, &'static str)],
) -> Ability {
    Ability {
        name,
        count,
        own,
        series,
    }
}

/// Returns a row that compares bandwidth.
const fn bandwidth(mut row: RowSpec) -> RowSpec {
    row.unit = Unit::GigabytesPerSecond;
    row
}

static TORCH_SPEC: PeerSpec = PeerSpec {
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
            OwnOperation::Memory,
            &[("open", "cuda-torch.open"), ("close", "cuda-torch.close")],
        ),
        ability(
            "event",
            16,
            OwnOperation::Event,
            &[("event", "cuda-torch.event")],
        ),
        ability(
            "trip",
            32,
            OwnOperation::Trip,
            &[("trip", "cuda-torch.trip")],
        ),
        ability(
            "copy",
            4,
            OwnOperation::Copy,
            &[("copy", "cuda-torch.copy")],
        ),
        ability(
            "copy2",
            4,
            OwnOperation::PeerCopy,
            &[("copy", "cuda-torch.copy2")],
        ),
    ],
};

static CORE_SPEC: PeerSpec = PeerSpec {
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
            OwnOperation::Memory,
            &[("open", "cuda-core.open"), ("close", "cuda-core.close")],
        ),
        ability(
            "event",
            16,
            OwnOperation::Event,
            &[("event", "cuda-core.event")],
        ),
        ability(
            "trip",
            32,
            OwnOperation::Trip,
            &[("trip", "cuda-core.trip")],
        ),
    ],
};

pub(crate) static TORCH: Scenario = Scenario {
    name: "cuda-torch",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(90),
    rows: TORCH_SPEC.rows,
    leader: |participant| run_leader(participant, &TORCH_SPEC),
    follower: ours::run_follower,
};

pub(crate) static CORE: Scenario = Scenario {
    name: "cuda-core",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: CORE_SPEC.rows,
    leader: |participant| run_leader(participant, &CORE_SPEC),
    follower: ours::run_follower,
};

/// Returns the number of rounds. The first one is not recorded.
fn rounds(participant: &Participant) -> usize {
    1 + participant.plan.pick(7, 3)
}

/// Runs the library's importer, and makes the peer measure.
fn run_leader(participant: &Participant, spec: &PeerSpec) -> Result<Outcome> {
    let link = participant.peer()?;
    let mut recorder = Recorder::default();
    let mut peer = match Peer::start(spec.script)? {
        Ok(peer) => peer,
        Err(reason) => {
            for row in spec.rows {
                recorder.absent(row.id, &reason);
            }
            link.send(b"end")?;
            return Ok(recorder.finish());
        }
    };
    link.send(b"start")?;
    let gpus = Gpu::count()?;
    let mut ours = ours::Leader::new(link)?;
    for round in 0..rounds(participant) {
        let mut figures = Recorder::default();
        for ability in spec.abilities {
            if ability.own == OwnOperation::PeerCopy && gpus < 2 {
                for (_, row) in ability.series {
                    recorder.absent(row, format!("needs 2 GPUs, and there is {gpus}"));
                }
                continue;
            }
            for side in Side::order(round) {
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
    for row in spec.rows {
        recorder.note(row.id, peer.name.clone());
    }
    Ok(recorder.finish())
}

/// Makes the peer measure an ability, and records its samples.
fn ask(peer: &mut Peer, ability: &Ability, figures: &mut Recorder) -> Result<()> {
    let mut answer = peer.ask(ability.name, ability.count)?;
    for (series, row) in ability.series {
        let samples = answer.remove(*series).context("a series is missing")?;
        let samples = samples.into_iter().map(|each| each * ability.own.passes());
        figures.extend(row, Side::Raw, samples);
    }
    Ok(())
}

impl OwnOperation {
    /// Returns how often each byte of a copy crosses the memory interface of one GPU.
    fn passes(self) -> f64 {
        if self == Self::Copy { 2.0 } else { 1.0 }
    }
}
