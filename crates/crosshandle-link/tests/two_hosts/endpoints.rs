//! Tests in which UCX's connections fail while the link's control connection works.

use super::{TOKEN, hosts::Hosts, hosts::Peer, partitions, words};
use std::time::{Duration, Instant};

/// Links the two hosts. Also returns the address of the control connection.
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

/// Whether UCX aborts the process whose memory is accessed over TCP ("unexpected error: Endpoint
/// timeout"). UCX 1.22 does so if it handles a message for a failed endpoint, and a caller cannot
/// prevent that. In this case, the link must report an error on the remote side, in time.
const IS_ABORTED_BY_UCX: bool = true;

#[test]
#[ignore = "needs UCX, network namespaces and nftables; `cargo xtask test` runs it"]
fn connections_of_ucx_that_are_killed_are_replaced() {
    let hosts = Hosts::new();
    let mut linked = link(&hosts, 4_000);
    let start = Instant::now();
    let (mut longest, mut replaced, mut aborts, mut number) = (Duration::ZERO, 0, 0, 0);
    for round in 1..=partitions() {
        let (owner, user, control) = &mut linked;
        // The connections are killed at some step of a write, a signal, or a read.
        user.begin(&format!("remote_write 0 {round} 0 4000000"));
        user.begin("remote_signal 0");
        user.begin(&format!("remote_holds 0 {round} 0 4000000"));
        std::thread::sleep(Duration::from_micros(1 + round * 7919 % 4000));
        hosts
            .filter_data(control, Some("reject with tcp reset"))
            .unwrap();
        std::thread::sleep(Duration::from_millis(round * 104_729 % 300));
        hosts.filter_data(control, None).unwrap();
        let back = Instant::now();
        let (written, signalled, held) = (user.end(), user.end(), user.end());
        longest = longest.max(back.elapsed());
        if IS_ABORTED_BY_UCX && held.is_err() {
            assert!(owner.has_aborted(), "round {round}: {held:?}");
            let error = user.ask("ended");
            assert!(error.contains("nothing was heard"), "{error}");
            // After the first request that failed because the link ended, no request can succeed.
            let answers = [written, signalled, held];
            let done = answers.iter().take_while(|answer| answer.is_ok()).count();
            for answer in &answers[done..] {
                let error = answer.as_ref().expect_err("after the link's end");
                assert!(error.contains("has ended"), "round {round}: {error}");
            }
            let error = user.try_ask("remote_write 0 0 0 1000").unwrap_err();
            assert!(error.contains("has ended"), "round {round}: {error}");
            (aborts, number) = (aborts + 1, 0);
            linked = link(&hosts, 4_000);
            continue;
        }
        number += 1;
        assert_eq!(written, Ok(String::new()), "round {round}");
        assert_eq!(signalled, Ok(number.to_string()), "round {round}");
        // The bytes of the write must be visible after the signal that followed it.
        owner.ask(&format!("wait 0 {number} 30000"));
        let holds = owner.ask(&format!("holds 0 {round} 0 4000000"));
        assert_eq!(
            (&*holds, held),
            ("true", Ok("true".into())),
            "round {round}"
        );
        assert_eq!(user.ask("ended"), "no");
        assert_eq!(owner.ask("submitted 0"), number.to_string());
        let count: u64 = user.ask("replaced_endpoints").parse().unwrap();
        replaced = replaced.max(count);
    }
    println!(
        "{} kills in {:?}: up to {replaced} endpoints replaced in a link, {aborts} processes ended by UCX; an answer \
         took at most {longest:?} after the network was there",
        partitions(),
        start.elapsed()
    );
    assert!(replaced > 0 && longest < Duration::from_secs(8));
    assert!(2 * aborts <= partitions(), "{aborts}");
}

/// A connection that silently loses all packets is replaced, although no error reports that it is
/// dead.
#[test]
#[ignore = "needs UCX, network namespaces and nftables; `cargo xtask test` runs it"]
fn connections_of_ucx_that_move_nothing_are_replaced() {
    let hosts = Hosts::new();
    let (mut owner, mut user, control) = link(&hosts, 3_000);
    user.ask("remote_write 0 1 0 1000");
    hosts.filter_data(&control, Some("drop")).unwrap();
    user.begin("remote_write 0 2 0 4000000");
    // After the keep-alive, the endpoint is replaced, and the new endpoints do not work yet.
    std::thread::sleep(Duration::from_millis(4_500));
    hosts.filter_data(&control, None).unwrap();
    assert_eq!(user.end(), Ok(String::new()));
    assert_eq!(owner.ask("holds 0 2 0 4000000"), "true");
    assert_ne!(user.ask("replaced_endpoints"), "0");
    assert_eq!(owner.ask("ended"), "no");
}

/// If no endpoint works for as long as the keep-alive, the link ends and reports the reason.
#[test]
#[ignore = "needs UCX, network namespaces and nftables; `cargo xtask test` runs it"]
fn networks_that_ucx_never_gets_through_end_the_link() {
    let hosts = Hosts::new();
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
