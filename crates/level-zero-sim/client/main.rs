//! A program on the stock loader and the simulated driver. It runs the scenario that its argument
//! names, and succeeds if every result is the expected one. The tests check what the driver
//! reports.

mod basics;
mod events;
mod kernels;
mod link;
mod memory;
mod misuse;
mod physical;
mod session;
mod switches;

use crate::link::Link;
use crate::session::Session;

/// A scenario's half that runs in the process that the tests start.
type Scenario = fn(&Session);
/// A scenario's half that runs in the process that the scenario starts.
type Peer = fn(&Session, &Link);

const SCENARIOS: &[(&str, Scenario)] = &[
    ("devices", basics::devices),
    ("commands", basics::commands),
    ("queues", basics::queues),
    ("threads", basics::threads),
    ("intercepted", basics::intercepted),
    ("kernels", kernels::run),
    ("kernel-refusals", kernels::refusals),
    ("no-kernels", kernels::none),
    ("memory", memory::share),
    ("memory-rounds", memory::rounds),
    ("memory-same-number", memory::same_number),
    ("memory-external", memory::external),
    ("physical", physical::share),
    ("events", events::share),
    ("event-rounds", events::rounds),
    ("patched-event", events::patched),
    ("event-pools", events::pools),
    ("misuse", misuse::all),
    ("missing", switches::missing),
    ("older-driver", switches::older_driver),
    ("allocation-failure", switches::allocation_failure),
    ("device-lost", switches::device_lost),
    ("slow", switches::slow),
    ("refused", switches::refused),
    ("refused-calls", switches::refused_calls),
    ("other-driver", switches::other_driver),
];

const PEERS: &[(&str, Peer)] = &[
    ("memory", memory::share_peer),
    ("memory-rounds", memory::rounds_peer),
    ("physical", physical::share_peer),
    ("events", events::share_peer),
    ("event-rounds", events::rounds_peer),
    ("patched-event", events::patched_peer),
    ("event-pools", events::pools_peer),
    ("refused", switches::refused_peer),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("the name of a scenario");
    let session = Session::open();
    if arguments.next().is_some() {
        let (_, peer) = PEERS
            .iter()
            .find(|(known, _)| *known == name)
            .expect("a peer");
        peer(&session, &Link::inherited());
    } else {
        let (_, scenario) = SCENARIOS
            .iter()
            .find(|(known, _)| *known == name)
            .expect("a scenario");
        scenario(&session);
    }
    session.close();
}
