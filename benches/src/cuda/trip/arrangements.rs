//! The arrangements of round trips, and their rows.

use std::time::Duration;

use super::{Arrangement, Rival, Route, run_follower, run_leader};
use crate::cuda::rows::row;
use crate::harness::outcome::Outcome;
use crate::harness::scenario::{Participant, Scenario};
use crate::report::row::{RowSpec, Statistic, Target};

const PAGE: &str =
    "cuStreamWriteValue64, cuStreamWaitValue64 on words of a page registered in both";
const BATCHES: &str = "the same with cuStreamBatchMemOp";
const NATIVE: &str = "inter-process events of the driver, a byte over a socket each way";
const DEVICE: &str = "the same on words in the memory of the GPU that waits, written by the other";

const CLOSE: Target = Target::AtMostTimesRaw(1.1);
const NONE: Target = Target::None;

/// Returns a row that compares the 99th percentile.
const fn p99(mut row: RowSpec) -> RowSpec {
    row.statistic = Statistic::P99;
    row
}

/// Creates the scenario of an arrangement.
const fn scenario(
    name: &'static str,
    arrangement: &'static Arrangement,
    leader: fn(&Participant) -> anyhow::Result<Outcome>,
    follower: fn(&Participant) -> anyhow::Result<Outcome>,
) -> Scenario {
    Scenario {
        name,
        followers: 1,
        cores: 2,
        limit: Duration::from_secs(90),
        rows: arrangement.rows,
        leader,
        follower,
    }
}

pub(super) static ONE: Arrangement = Arrangement {
    gpu: 0,
    rival: Rival::Page,
    routes: &[
        (Route::Back, &["cuda-trip.back", "cuda-trip.back.p99"]),
        (Route::ToHost, &["cuda-trip.to-host"]),
        (Route::Echo, &["cuda-trip.echo", "cuda-trip.echo.p99"]),
    ],
    rows: &[
        row(
            "cuda-trip.back",
            "stream → other's stream → back → host, one GPU",
            PAGE,
            CLOSE,
        ),
        p99(row(
            "cuda-trip.back.p99",
            "stream → other's stream → back → host, one GPU",
            PAGE,
            NONE,
        )),
        row(
            "cuda-trip.to-host",
            "stream → other's stream → host, one GPU",
            PAGE,
            NONE,
        ),
        row(
            "cuda-trip.echo",
            "host signal → GPU of another process → host",
            PAGE,
            CLOSE,
        ),
        p99(row(
            "cuda-trip.echo.p99",
            "host signal → GPU of another process → host",
            PAGE,
            NONE,
        )),
    ],
};

pub(crate) static ONE_GPU: Scenario = scenario(
    "cuda-trip",
    &ONE,
    |participant| run_leader(participant, &ONE),
    |participant| run_follower(participant, &ONE),
);

pub(super) static ONE_BATCHES: Arrangement = Arrangement {
    gpu: 0,
    rival: Rival::Batches,
    routes: &[(Route::Back, &["cuda-trip-batches.back"])],
    rows: &[row(
        "cuda-trip-batches.back",
        "stream → other's stream → back → host, one GPU, beside batches",
        BATCHES,
        NONE,
    )],
};

pub(crate) static ONE_GPU_BATCHES: Scenario = scenario(
    "cuda-trip-batches",
    &ONE_BATCHES,
    |participant| run_leader(participant, &ONE_BATCHES),
    |participant| run_follower(participant, &ONE_BATCHES),
);

pub(super) static ONE_NATIVE: Arrangement = Arrangement {
    gpu: 0,
    rival: Rival::Native,
    routes: &[(Route::Back, &["cuda-trip-native.back"])],
    rows: &[row(
        "cuda-trip-native.back",
        "stream → other's stream → back → host, one GPU, beside the driver's events",
        NATIVE,
        NONE,
    )],
};

pub(crate) static ONE_GPU_NATIVE: Scenario = scenario(
    "cuda-trip-native",
    &ONE_NATIVE,
    |participant| run_leader(participant, &ONE_NATIVE),
    |participant| run_follower(participant, &ONE_NATIVE),
);

pub(super) static TWO: Arrangement = Arrangement {
    gpu: 1,
    rival: Rival::Page,
    routes: &[
        (Route::Back, &["cuda-trip2.back", "cuda-trip2.back.p99"]),
        (Route::ToHost, &["cuda-trip2.to-host"]),
        (Route::Echo, &["cuda-trip2.echo"]),
    ],
    rows: &[
        row(
            "cuda-trip2.back",
            "stream → other's stream → back → host, two GPUs",
            PAGE,
            CLOSE,
        ),
        p99(row(
            "cuda-trip2.back.p99",
            "stream → other's stream → back → host, two GPUs",
            PAGE,
            NONE,
        )),
        row(
            "cuda-trip2.to-host",
            "stream → other's stream → host, two GPUs",
            PAGE,
            NONE,
        ),
        row(
            "cuda-trip2.echo",
            "host signal → another GPU, of another process → host",
            PAGE,
            NONE,
        ),
    ],
};

pub(crate) static TWO_GPUS: Scenario = scenario(
    "cuda-trip2",
    &TWO,
    |participant| run_leader(participant, &TWO),
    |participant| run_follower(participant, &TWO),
);

pub(super) static TWO_NATIVE: Arrangement = Arrangement {
    gpu: 1,
    rival: Rival::Native,
    routes: &[(Route::Back, &["cuda-trip2-native.back"])],
    rows: &[row(
        "cuda-trip2-native.back",
        "stream → other's stream → back → host, two GPUs, beside the driver's events",
        NATIVE,
        NONE,
    )],
};

pub(crate) static TWO_GPUS_NATIVE: Scenario = scenario(
    "cuda-trip2-native",
    &TWO_NATIVE,
    |participant| run_leader(participant, &TWO_NATIVE),
    |participant| run_follower(participant, &TWO_NATIVE),
);

pub(super) static TWO_DEVICE: Arrangement = Arrangement {
    gpu: 1,
    rival: Rival::DeviceWords,
    routes: &[(Route::Back, &["cuda-trip2-device.back"])],
    rows: &[row(
        "cuda-trip2-device.back",
        "stream → other's stream → back → host, two GPUs, beside words in device memory",
        DEVICE,
        NONE,
    )],
};

pub(crate) static TWO_GPUS_DEVICE_WORDS: Scenario = scenario(
    "cuda-trip2-device",
    &TWO_DEVICE,
    |participant| run_leader(participant, &TWO_DEVICE),
    |participant| run_follower(participant, &TWO_DEVICE),
);
