//! UCX's connections fail while the link's control connection does not.

use super::{TOKEN, has_ucx, hosts::Hosts, hosts::Peer, partitions, words};
use std::time::{Duration, Instant};

/// Links the two, and returns the address of the control connection as well.
fn link(hosts: &Hosts, keep_alive_ms: u32) -> (Peer, Peer, String) {
    let (mut owner, mut user) = (hosts.start("a"), hosts.start("b"));
    let own = hosts.interface("a");
    let address = hosts.address("a");
    let address = owner.ask(&format!(
        "listen {address}:0 {TOKEN} ucx {own} {keep_alive_ms}"
    ));
    let other = hosts.interface("b");
    user.ask(&format!(
        "connect {address} {TOKEN} ucx {other} {keep_alive_ms}"
    ));
    owner.ask("accept 10000");
    let handles = owner.ask("allocate 4000000");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    let event = owner.ask("create_event");
    user.ask(&format!("open_event {event}"));
    (owner, user, address)
}

fn two_hosts(test: &str) -> Option<Hosts> {
    let hosts = has_ucx(test).then(|| Hosts::new(test)).flatten()?;
    match hosts.filter_data("10.77.0.1:1", None) {
        Ok(()) => Some(hosts),
        Err(why) => {
            eprintln!("SKIPPED {test}: packets cannot be filtered here ({why})");
            None
        }
    }
}

#[test]
fn connections_of_ucx_that_are_killed_are_replaced() {
    let Some(hosts) = two_hosts("connections_of_ucx_that_are_killed_are_replaced") else {
        return;
    };
    let (mut owner, mut user, control) = link(&hosts, 8_000);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for round in 1..=partitions() {
        // They are killed at some step of a write, a signal, or a read.
        let before = Duration::from_micros(1 + round * 7919 % 4000);
        user.begin(&format!("remote_write 0 {round} 0 4000000"));
        user.begin("remote_signal 0");
        user.begin(&format!("remote_holds 0 {round} 0 4000000"));
        std::thread::sleep(before);
        hosts
            .filter_data(&control, Some("reject with tcp reset"))
            .unwrap();
        std::thread::sleep(Duration::from_millis(round * 104_729 % 300));
        hosts.filter_data(&control, None).unwrap();
        let back = Instant::now();
        assert_eq!(user.end(), Ok(String::new()), "round {round}");
        assert_eq!(user.end(), Ok(round.to_string()), "round {round}");
        // What was signalled after the write is seen after it.
        owner.ask(&format!("wait 0 {round} 30000"));
        assert_eq!(
            owner.ask(&format!("holds 0 {round} 0 4000000")),
            "true",
            "round {round}"
        );
        assert_eq!(user.end(), Ok("true".into()), "round {round}");
        longest = longest.max(back.elapsed());
        assert_eq!(user.ask("ended"), "no");
    }
    let replaced: u64 = user.ask("replaced_endpoints").parse().unwrap();
    println!(
        "{} kills in {:?}: {replaced} endpoints replaced; all was there at most {longest:?} after the network was",
        partitions(),
        start.elapsed()
    );
    assert!(replaced > 0 && longest < Duration::from_secs(8));
    assert_eq!(owner.ask("submitted 0"), partitions().to_string());
}

/// Nothing says that the connection is dead but that nothing moves.
#[test]
fn connections_of_ucx_that_move_nothing_are_replaced() {
    let Some(hosts) = two_hosts("connections_of_ucx_that_move_nothing_are_replaced") else {
        return;
    };
    let (mut owner, mut user, control) = link(&hosts, 3_000);
    user.ask("remote_write 0 1 0 1000");
    hosts.filter_data(&control, Some("drop")).unwrap();
    user.begin("remote_write 0 2 0 4000000");
    // After the keep-alive the endpoint is given up, and those that follow it do not work yet.
    std::thread::sleep(Duration::from_millis(4_500));
    hosts.filter_data(&control, None).unwrap();
    assert_eq!(user.end(), Ok(String::new()));
    assert_eq!(owner.ask("holds 0 2 0 4000000"), "true");
    assert_ne!(user.ask("replaced_endpoints"), "0");
    assert_eq!(owner.ask("ended"), "no");
}

/// For as long as the keep-alive no endpoint works: the link ends, and says why.
#[test]
fn networks_that_ucx_never_gets_through_end_the_link() {
    let Some(hosts) = two_hosts("networks_that_ucx_never_gets_through_end_the_link") else {
        return;
    };
    let (mut owner, mut user, control) = link(&hosts, 1_000);
    user.ask("remote_write 0 1 0 1000");
    hosts
        .filter_data(&control, Some("reject with tcp reset"))
        .unwrap();
    let start = Instant::now();
    let error = user.try_ask("remote_write 0 2 0 4000000").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    owner.ask("until_ended 4000");
}
