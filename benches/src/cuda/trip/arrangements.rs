//! The arrangements of round trips, and their rows.

use std::time::Duration;

use super::{Arrangement, Rival, Route, run_follower, run_leader};
use crate::harness::scenario::Scenario;
use crate::report::row::{Target, rows};

const PAGE: &str =
    "cuStreamWriteValue64, cuStreamWaitValue64 on words of a page registered in both";
const NATIVE: &str = "inter-process events of the driver, a byte over a socket each way";

const CLOSE: Target = Target::AtMostTimesRaw(1.1);
const NONE: Target = Target::None;

/// Creates the scenario of an arrangement.
macro_rules! trips {
    (
        $scenario:ident, $name:literal, gpu: $gpu:literal, $rival:expr,
        [$($route:expr),*], $rows:expr $(,)?
    ) => {
        pub(crate) static $scenario: Scenario = {
            static TRIPS: Arrangement = Arrangement {
                gpu: $gpu,
                rival: $rival,
                routes: &[$($route),*],
                rows: $rows,
            };
            Scenario {
                name: $name,
                followers: 1,
                cores: 2,
                limit: Duration::from_secs(90),
                rows: TRIPS.rows,
                leader: |participant| run_leader(participant, &TRIPS),
                follower: |participant| run_follower(participant, &TRIPS),
            }
        };
    };
}

trips!(
    ONE_GPU, "cuda-trip", gpu: 0, Rival::Page,
    [Route::Back, Route::ToHost, Route::Echo],
    rows! {
        "cuda-trip.back" => "stream → other's stream → back → host, one GPU", PAGE, CLOSE;
        "cuda-trip.back.p99" => "stream → other's stream → back → host, one GPU", PAGE, NONE, p99;
        "cuda-trip.to-host" => "stream → other's stream → host, one GPU", PAGE, NONE;
        "cuda-trip.echo" => "host signal → GPU of another process → host", PAGE, CLOSE;
        "cuda-trip.echo.p99" => "host signal → GPU of another process → host", PAGE, NONE, p99;
    }
);

trips!(
    ONE_GPU_NATIVE, "cuda-trip-native", gpu: 0, Rival::Native,
    [Route::Back],
    rows! {
        "cuda-trip-native.back" =>
            "stream → other's stream → back → host, one GPU, compared with the driver's events",
            NATIVE, NONE;
    }
);

trips!(
    TWO_GPUS, "cuda-trip2", gpu: 1, Rival::Page,
    [Route::Back, Route::ToHost, Route::Echo],
    rows! {
        "cuda-trip2.back" => "stream → other's stream → back → host, two GPUs", PAGE, CLOSE;
        "cuda-trip2.back.p99" => "stream → other's stream → back → host, two GPUs", PAGE, NONE, p99;
        "cuda-trip2.to-host" => "stream → other's stream → host, two GPUs", PAGE, NONE;
        "cuda-trip2.echo" => "host signal → another GPU, of another process → host", PAGE, NONE;
    }
);

trips!(
    TWO_GPUS_NATIVE, "cuda-trip2-native", gpu: 1, Rival::Native,
    [Route::Back],
    rows! {
        "cuda-trip2-native.back" =>
            "stream → other's stream → back → host, two GPUs, compared with the driver's events",
            NATIVE, NONE;
    }
);
