//! Tests with two linked hosts. A host is a network namespace with its own boot identity.

mod devices;
mod endpoints;
mod forwarder;
mod hosts;
mod neighbours;

use forwarder::Forwarder;
use hosts::{Hosts, Peer};
use std::path::Path;
use std::time::{Duration, Instant};

/// A token of these tests.
const TOKEN: &str = "xhlink-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER_TOKEN: &str = "xhlink-baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Links two processes. They run on `hosts`, or both on this host if it is `None`.
fn link(hosts: Option<&Hosts>, data: &str, keep_alive_ms: u32) -> (Peer, Peer) {
    let (mut owner, mut user) = match hosts {
        Some(hosts) => (hosts.start("a"), hosts.start("b")),
        None => (Peer::local(), Peer::local()),
    };
    let (address, own, other) = match hosts {
        Some(hosts) => (
            hosts.address("a"),
            hosts.interface("a"),
            hosts.interface("b"),
        ),
        None => ("127.0.0.1", "lo".into(), "lo".into()),
    };
    let listens = owner.ask(&format!(
        "listen {address}:0 {TOKEN} {data} {own} {keep_alive_ms}"
    ));
    let host = user.ask(&format!(
        "connect {listens} {TOKEN} {data} {other} {keep_alive_ms}"
    ));
    assert_eq!(host, owner.ask("host"));
    assert_eq!(owner.ask("accept 10000"), user.ask("host"));
    (owner, user)
}

fn words(answer: &str) -> Vec<&str> {
    answer.split(' ').collect()
}

/// Uses every function of a link once.
fn everything_works(hosts: Option<&Hosts>, data: &str) {
    let (mut owner, mut user) = link(hosts, data, 10_000);
    let len = 3_000_000;
    let handles = owner.ask(&format!("allocate {len}"));
    let handles = words(&handles);
    let event = owner.ask("create_event");
    if hosts.is_some() {
        let error = user.try_ask(&format!("open_memory_here {}", handles[0]));
        assert!(error.unwrap_err().contains("another host"));
    }
    assert_eq!(
        user.ask(&format!("open_memory {}", handles[0])),
        format!("{len} ReadWrite")
    );
    assert_eq!(
        user.ask(&format!("open_memory {}", handles[1])),
        format!("{len} ReadOnly")
    );
    assert_eq!(user.ask(&format!("open_event {event}")), "0");

    // Bytes in both directions, in parts.
    user.ask("remote_write 0 5 1000 2000000");
    assert_eq!(owner.ask("holds 0 5 1000 2000000"), "true");
    assert_eq!(owner.ask("holds 0 5 1001 2000000"), "false");
    assert_eq!(user.ask("remote_holds 1 5 1000 2000000"), "true");
    owner.ask("fill 0 9");
    assert_eq!(user.ask("remote_holds 1 9 0 3000000"), "true");
    assert_eq!(user.ask("remote_read_many 1 9 1000 64"), "true");

    // Requests that are not allowed.
    let error = user.try_ask("remote_write 1 5 0 10").unwrap_err();
    assert!(error.contains("read-only"), "{error}");
    for request in [
        "remote_write 0 5 2999999 2",
        "remote_holds 1 5 18446744073709551615 2",
    ] {
        let error = user.try_ask(request).unwrap_err();
        assert!(error.contains("not inside"), "{error}");
    }
    assert_eq!(user.ask("remote_holds 1 9 0 3000000"), "true");

    // Signals in both directions, with the owner's numbers.
    user.ask("remote_write 0 6 0 100");
    assert_eq!(user.ask("remote_signal 0"), "1");
    owner.ask("wait 0 1 10000");
    assert_eq!(owner.ask("holds 0 6 0 100"), "true");
    assert_eq!(owner.ask("signal 0"), "2");
    assert!(user.ask("mirror_wait 0 2 10000").starts_with("reached"));
    assert_eq!(user.ask("remote_signal 0"), "3");
    assert!(user.ask("mirror_wait 0 3 10000").starts_with("reached"));
    user.begin("mirror_wait 0 5 10000");
    assert_eq!(owner.ask("signal 0"), "4");
    assert_eq!(owner.ask("signal 0"), "5");
    assert!(user.end().unwrap().starts_with("reached"));

    // A failed signal does not affect other signals.
    owner.ask("fail 0");
    let failed = user.ask("mirror_wait 0 6 10000");
    assert!(failed.starts_with("CommandFailed"), "{failed}");
    assert_eq!(owner.ask("signal 0"), "7");
    assert!(user.ask("mirror_wait 0 7 10000").starts_with("reached"));

    // Commands of a queue.
    assert_eq!(user.ask("queue_copies 0 0 77"), "true");
    assert_eq!(owner.ask(&format!("holds 0 77 0 {len}")), "true");
    owner.ask("wait 0 8 10000");

    // A write and its signal in one, small and large.
    for (number, len) in [(9, 1000), (10, 2_000_000)] {
        let answer = user.ask(&format!("remote_write_and_signal 0 {number} 5 {len}"));
        assert_eq!(answer, number.to_string());
        owner.ask(&format!("wait 0 {number} 10000"));
        assert_eq!(owner.ask(&format!("holds 0 {number} 5 {len}")), "true");
    }
    assert!(
        user.try_ask("remote_write_and_signal 1 1 0 10")
            .unwrap_err()
            .contains("read-only")
    );
    owner.ask("fill 0 77");

    // The remote side refuses a handle that it cannot open, and the link continues.
    if hosts.is_some() {
        let error = owner
            .try_ask(&format!("open_memory {}", handles[0]))
            .unwrap_err();
        assert!(
            error.contains("rejected") && error.contains("another host"),
            "{error}"
        );
        assert_eq!(user.ask("remote_holds 0 77 0 3000000"), "true");
    }

    // Another process of the user's host waits for the mirror too.
    let mut neighbour = match hosts {
        Some(hosts) => hosts.start("b"),
        None => Peer::local(),
    };
    let mirror = user.ask("mirror_handle 0");
    neighbour.ask(&format!("open_event_here {mirror}"));
    neighbour.begin("wait 0 11 10000");
    assert_eq!(owner.ask("signal 0"), "11");
    neighbour.end().unwrap();

    // The link ends.
    user.begin("mirror_wait 0 1000 10000");
    neighbour.begin("wait 0 2000 10000");
    owner.ask("close");
    let error = neighbour.end().unwrap_err();
    assert!(
        error.contains("the process that was to signal has ended"),
        "{error}"
    );
    assert!(user.end().unwrap().starts_with("peer_dead"));
    assert!(user.ask("ended").contains("the other side closed it"));
    let error = user.try_ask("remote_write 0 5 0 10").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn memory_and_events_cross_over_tls_on_one_host() {
    everything_works(None, "tls");
}

#[test]
#[ignore = "needs network namespaces; `cargo xtask test` runs it"]
fn memory_and_events_cross_over_tls() {
    everything_works(Some(&Hosts::new()), "tls");
}

#[test]
#[ignore = "needs UCX and network namespaces; `cargo xtask test` runs it"]
fn memory_and_events_cross_over_ucx() {
    everything_works(Some(&Hosts::new()), "ucx");
}

#[test]
fn strangers_are_not_admitted() {
    let (mut owner, mut user) = (Peer::local(), Peer::local());
    let address = owner.ask(&format!("listen 127.0.0.1:0 {TOKEN} tls lo 1000"));
    let error = user.try_ask(&format!("connect {address} {OTHER_TOKEN} tls lo 1000"));
    assert!(error.unwrap_err().starts_with("no link to 127.0.0.1"));
    let error = owner.try_ask("accept 200").unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    user.ask(&format!("connect {address} {TOKEN} tls lo 1000"));
    owner.ask("accept 10000");
}

/// Checks how a wait for the mirror ended, and returns its duration in milliseconds.
fn waited(answer: &str, kind: &str) -> u64 {
    let (was, millis) = answer.rsplit_once(' ').unwrap();
    assert_eq!(was, kind);
    millis.parse().unwrap()
}

/// A link survives failures of the network that are shorter than the keep-alive.
fn short_partitions_are_survived(data: &str) {
    let hosts = Hosts::new();
    let (mut owner, mut user) = link(Some(&hosts), data, 8_000);
    let handles = owner.ask("allocate 4000000");
    let event = owner.ask("create_event");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    user.ask(&format!("open_event {event}"));
    for round in 1..=partitions() {
        // The network fails at some step of a write, a signal, or a wait.
        let before = Duration::from_micros(1 + round * 7919 % 4000);
        user.begin(&format!("remote_write 0 {round} 0 4000000"));
        user.begin("remote_signal 0");
        user.begin(&format!("mirror_wait 0 {} 30000", 2 * round));
        std::thread::sleep(before);
        hosts.connect(false);
        std::thread::sleep(Duration::from_millis(50 + round * 104_729 % 500));
        owner.begin(&format!("wait 0 {} 30000", 2 * round - 1));
        hosts.connect(true);
        assert_eq!(user.end(), Ok(String::new()), "round {round}");
        assert_eq!(user.end(), Ok((2 * round - 1).to_string()), "round {round}");
        owner.end().unwrap();
        // The bytes of the write must be visible after the signal that followed it.
        assert_eq!(owner.ask(&format!("holds 0 {round} 0 4000000")), "true");
        assert_eq!(owner.ask("signal 0"), (2 * round).to_string());
        waited(&user.end().unwrap(), "reached");
        assert_eq!(user.ask("ended"), "no");
    }
    assert_eq!(owner.ask("submitted 0"), (2 * partitions()).to_string());
}

/// Number of network failures in one test. `CROSSHANDLE_LINK_PARTITIONS` sets it.
fn partitions() -> u64 {
    let wanted = std::env::var("CROSSHANDLE_LINK_PARTITIONS");
    wanted.ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

#[test]
#[ignore = "needs network namespaces; `cargo xtask test` runs it"]
fn short_partitions_are_survived_over_tls() {
    short_partitions_are_survived("tls");
}

#[test]
#[ignore = "needs UCX and network namespaces; `cargo xtask test` runs it"]
fn short_partitions_are_survived_over_ucx() {
    short_partitions_are_survived("ucx");
}

/// If the network fails for longer than the keep-alive, all waits on both sides fail in time.
fn long_partitions_end_the_link(data: &str) {
    let hosts = Hosts::new();
    const KEEP_ALIVE_MS: u64 = 1000;
    // Maximum delay of the error in milliseconds. A machine with two CPUs needs more, because other
    // tests run at the same time.
    const LATENESS_MS: u64 = 250;
    let (mut owner, mut user) = link(Some(&hosts), data, KEEP_ALIVE_MS as u32);
    let handles = owner.ask("allocate 50000000");
    let event = owner.ask("create_event");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    user.ask(&format!("open_event {event}"));
    user.ask("remote_write 0 1 0 1000");
    user.begin("mirror_wait 0 5 20000");
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    hosts.connect(false);
    owner.begin("until_ended 20000");
    waited(&user.end().unwrap(), "peer_dead");
    let lateness = start.elapsed();
    assert!(
        lateness.as_millis() as u64 <= KEEP_ALIVE_MS + LATENESS_MS,
        "{lateness:?}"
    );
    println!("{data}: waiters were told {lateness:?} after the network failed");
    owner.end().unwrap();
    assert!(start.elapsed().as_millis() as u64 <= KEEP_ALIVE_MS + LATENESS_MS);
    for request in [
        "remote_write 0 1 0 1000",
        "remote_holds 0 1 0 1000",
        "remote_signal 0",
    ] {
        assert!(
            user.try_ask(request).unwrap_err().contains("has ended"),
            "{request}"
        );
    }
    // When the network works again, the old link stays ended, and a new link works.
    hosts.connect(true);
    assert!(user.ask("ended").contains("nothing was heard for 1s"));
    assert!(owner.ask("ended").contains("nothing was heard for 1s"));
    let (mut owner, mut user) = link(Some(&hosts), data, 5000);
    let handles = owner.ask("allocate 1000");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    user.ask("remote_write 0 3 0 1000");
    assert_eq!(owner.ask("holds 0 3 0 1000"), "true");
}

#[test]
#[ignore = "needs network namespaces; `cargo xtask test` runs it"]
fn long_partitions_end_the_link_over_tls() {
    long_partitions_end_the_link("tls");
}

#[test]
#[ignore = "needs UCX and network namespaces; `cargo xtask test` runs it"]
fn long_partitions_end_the_link_over_ucx() {
    long_partitions_end_the_link("ucx");
}

/// A large transfer ends with an error if the remote side dies.
/// A transfer fails in time if the process on the other side is killed.
fn transfers_end_when_the_other_side_dies(hosts: Option<&Hosts>, data: &str) {
    let (mut owner, mut user) = link(hosts, data, 1000);
    let handles = owner.ask("allocate 400000000");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    user.begin("remote_write_zeros 0 400000000");
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    owner.kill();
    let error = user.end().unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
}

#[test]
fn transfers_end_when_the_other_side_dies_over_tls_on_one_host() {
    transfers_end_when_the_other_side_dies(None, "tls");
}

#[test]
#[ignore = "needs network namespaces; `cargo xtask test` runs it"]
fn transfers_end_when_the_other_side_dies_over_tls() {
    transfers_end_when_the_other_side_dies(Some(&Hosts::new()), "tls");
}

#[test]
#[ignore = "needs UCX and network namespaces; `cargo xtask test` runs it"]
fn transfers_end_when_the_other_side_dies_over_ucx() {
    transfers_end_when_the_other_side_dies(Some(&Hosts::new()), "ucx");
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// Hosts that cannot authenticate themselves cost little memory and do not lock other hosts out,
/// whatever they send.
#[test]
fn strangers_cost_little_and_keep_nobody_out() {
    use std::io::Write;
    use std::net::TcpStream;
    let (mut owner, mut user) = (Peer::local(), Peer::local());
    let address = owner.ask(&format!("listen 127.0.0.1:0 {TOKEN} tls lo 3000"));
    let before = resident(owner.id());
    // The unknown hosts send the start of a TLS record, a greeting without TLS, a web request, or
    // nothing.
    let mut record = vec![0x16, 3, 1, 0x40, 0];
    record.resize(3000, 0xff);
    let beginnings: [&[u8]; 5] = [
        &record,
        b"xhlink\0\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        b"",
    ];
    let mut silent = Vec::new();
    for round in 0..400 {
        let mut stranger = TcpStream::connect(&address).unwrap();
        let _ = stranger.write_all(beginnings[round % beginnings.len()]);
        silent.push(stranger);
    }
    let start = Instant::now();
    user.ask(&format!("connect {address} {TOKEN} tls lo 3000"));
    owner.ask("accept 10000");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    let handle = owner.ask("allocate 1000");
    user.ask(&format!("open_memory {}", words(&handle)[0]));
    // At any time, 32 handshakes may have a thread and an initial TLS state.
    let grown = resident(owner.id()).saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes for 400 strangers");
    println!("400 strangers: {grown} bytes more");
    drop(silent);
}

/// Signals that failed before an event was opened are reported as failed, and no other signals are.
#[test]
fn signals_that_failed_before_the_open_are_failures() {
    let (mut owner, mut user) = link(None, "tls", 10_000);
    let event = owner.ask("create_event");
    for is_failed in [false, true, true, false, false] {
        owner.ask(if is_failed { "fail 0" } else { "signal 0" });
    }
    assert_eq!(user.ask(&format!("open_event {event}")), "5");
    for (number, is_failed) in [(1, false), (2, true), (3, true), (4, false), (5, false)] {
        let waited = user.ask(&format!("mirror_wait 0 {number} 10000"));
        assert_eq!(
            waited.starts_with("CommandFailed"),
            is_failed,
            "{number}: {waited}"
        );
        assert_eq!(
            waited.starts_with("reached"),
            !is_failed,
            "{number}: {waited}"
        );
    }
    assert_eq!(user.ask("remote_signal 0"), "6");
    assert!(user.ask("mirror_wait 0 6 10000").starts_with("reached"));
}

/// Links two processes of this host over a slow network.
fn link_slowly(
    delay: Duration,
    bytes_per_second: u64,
    keep_alive_ms: u32,
) -> (Peer, Peer, Forwarder) {
    let (mut owner, mut user) = (Peer::local(), Peer::local());
    let address = owner.ask(&format!(
        "listen 127.0.0.1:0 {TOKEN} tls lo {keep_alive_ms}"
    ));
    let forwarder = Forwarder::new(&address, delay, bytes_per_second);
    let address = forwarder.address();
    user.ask(&format!("connect {address} {TOKEN} tls lo {keep_alive_ms}"));
    owner.ask("accept 10000");
    let handles = owner.ask("allocate 1000000");
    user.ask(&format!("open_memory {}", words(&handles)[0]));
    let event = owner.ask("create_event");
    user.ask(&format!("open_event {event}"));
    (owner, user, forwarder)
}

/// Lost connections are replaced even if a handshake takes longer than the default timeout of a
/// reconnection. Here it takes four times the delay.
#[test]
fn connections_of_slow_networks_are_replaced() {
    let (mut owner, mut user, forwarder) =
        link_slowly(Duration::from_millis(200), u64::MAX, 15_000);
    for number in 1..=3 {
        forwarder.cut();
        user.begin("remote_write 0 7 0 1000000");
        assert_eq!(user.end(), Ok(String::new()));
        assert_eq!(user.ask("remote_signal 0"), number.to_string());
        assert_eq!(owner.ask("holds 0 7 0 1000000"), "true");
    }
    assert_eq!(user.ask("ended"), "no");
    assert!(forwarder.connections() >= 4);
}

/// A connection is not replaced while parts of a long message arrive, even if the whole message
/// takes longer than the silence after which a connection is replaced.
#[test]
fn transfers_over_narrow_networks_are_not_begun_anew() {
    let (mut owner, mut user, forwarder) = link_slowly(Duration::ZERO, 200_000, 2_000);
    user.ask("remote_write 0 7 0 1000000");
    assert_eq!(owner.ask("holds 0 7 0 1000000"), "true");
    assert_eq!(user.ask("remote_holds 0 7 0 1000000"), "true");
    assert_eq!(forwarder.connections(), 1);
}

/// Hosts whose certificates the authority has signed can link. The dialling side also checks the
/// name.
#[test]
fn certificates_admit_whom_the_authority_has_signed() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates");
    let identity = |authority: &str, own: &str, name: &str| {
        let file = |name: &str| directory.join(name).display().to_string();
        format!("{},{},{name}", file(authority), file(own))
    };
    let (mut owner, mut user) = (Peer::local(), Peer::local());
    let own = identity("authority.pem", "owner", "owner.example");
    let address = owner.ask(&format!("listen 127.0.0.1:0 {own} tls lo 5000"));
    let mut connect =
        |identity: &str| user.try_ask(&format!("connect {address} {identity} tls lo 5000"));
    // These identities are refused: a certificate that the owner's authority did not sign, trust in
    // another authority, a wrong name, and a token.
    for refused in [
        identity("authority.pem", "other", "owner.example"),
        identity("stranger.pem", "user", "owner.example"),
        identity("authority.pem", "user", "another.example"),
        TOKEN.to_owned(),
    ] {
        let error = connect(&refused).unwrap_err();
        assert!(error.starts_with("no link to 127.0.0.1"), "{error}");
    }
    let error = owner.try_ask("accept 100").unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    connect(&identity("authority.pem", "user", "owner.example")).unwrap();
    owner.ask("accept 10000");
    let handle = owner.ask("allocate 1000");
    user.ask(&format!("open_memory {}", words(&handle)[0]));
    user.ask("remote_write 0 3 0 1000");
    assert_eq!(owner.ask("holds 0 3 0 1000"), "true");
    // If a file is missing, the error names it.
    let error = user
        .try_ask(&format!(
            "connect {address} {} tls lo 5000",
            identity("nothing.pem", "user", "owner.example")
        ))
        .unwrap_err();
    assert!(error.contains("nothing.pem"), "{error}");
}
