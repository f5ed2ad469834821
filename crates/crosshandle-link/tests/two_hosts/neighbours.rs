//! Tests of shared links: one link serves several processes of its host.

use super::hosts::{Hosts, Peer};
use super::{link, words};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Starts a process on the user's host.
fn neighbour(hosts: Option<&Hosts>) -> Peer {
    match hosts {
        Some(hosts) => hosts.start("b"),
        None => Peer::local(),
    }
}

/// Uses every function of a shared link once. Two processes of the owner's host have the objects,
/// and two processes of the user's host access them.
fn neighbours_share_a_link(hosts: Option<&Hosts>, data: &str) {
    let (mut owner, mut user) = link(hosts, data, 10_000);
    let name = format!("test-{}", user.id());
    user.ask(&format!("neighbour share {name}"));
    let error = user.try_ask(&format!("neighbour share {name}"));
    assert!(error.unwrap_err().contains("already"));
    // The objects belong to another process than the listening one.
    let mut maker = match hosts {
        Some(hosts) => hosts.start("a"),
        None => Peer::local(),
    };
    let len = 20 * MIB + 1;
    let handles = maker.ask(&format!("allocate {len}"));
    let handles = words(&handles);
    let event = maker.ask("create_event");
    let (mut one, mut other) = (neighbour(hosts), neighbour(hosts));
    for process in [&mut one, &mut other] {
        process.ask(&format!("neighbour connect {name}"));
        let opened = process.ask(&format!("neighbour open_memory {}", handles[0]));
        assert_eq!(opened, format!("{len} ReadWrite"));
        process.ask(&format!("neighbour open_event {event}"));
    }
    assert_eq!(user.ask("neighbour neighbours"), "2");

    // Copy bytes of slices and of the neighbour's own memory. Both copies take more than one part.
    one.ask("neighbour write 0 5 1000 3000000");
    assert_eq!(maker.ask("holds 0 5 1000 3000000"), "true");
    assert_eq!(other.ask("neighbour holds 0 5 1000 3000000"), "true");
    other.ask(&format!("allocate {len}"));
    other.ask("fill 0 6");
    other.ask("neighbour copy_there 0 0 0");
    assert_eq!(maker.ask(&format!("holds 0 6 0 {len}")), "true");
    maker.ask("fill 0 7");
    other.ask("neighbour copy_here 0 0 0");
    assert_eq!(other.ask(&format!("holds 0 7 0 {len}")), "true");

    // Signals have the numbers of the original event. A process that sees a signal also sees the
    // bytes that were written before it.
    one.ask("neighbour write 0 8 0 100");
    assert_eq!(one.ask("neighbour signal 0"), "1");
    maker.ask("wait 0 1 10000");
    assert_eq!(maker.ask("holds 0 8 0 100"), "true");
    other.ask("neighbour wait 0 1 10000");
    other.begin("neighbour wait 0 3 10000");
    assert_eq!(maker.ask("signal 0"), "2");
    assert_eq!(one.ask("neighbour signal 0"), "3");
    other.end().unwrap();

    // Requests that are not allowed.
    one.ask(&format!("neighbour open_memory {}", handles[1]));
    let error = one.try_ask("neighbour write 1 1 0 10").unwrap_err();
    assert!(error.contains("read-only"), "{error}");
    let error = one.try_ask(&format!("neighbour write 0 1 {len} 1"));
    assert!(error.unwrap_err().contains("not inside"));
    let closed = handles[0].replace(&handles[0][20..24], "aaaa");
    assert!(
        one.try_ask(&format!("neighbour open_memory {closed}"))
            .is_err()
    );
    assert_eq!(one.ask("neighbour holds 1 8 0 100"), "true");

    // The objects of a neighbour that dies are closed, and other neighbours are not affected.
    one.kill();
    until(&mut user, "neighbour neighbours", "1");
    assert_eq!(other.ask("neighbour signal 0"), "4");

    // When the link ends, its neighbours get an error.
    other.begin("neighbour wait 0 1000 20000");
    owner.ask("close");
    let error = other.end().unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    let error = other.try_ask("neighbour signal 0").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
}

/// Repeats a request until its reply is `answer`.
fn until(peer: &mut Peer, question: &str, answer: &str) {
    let start = Instant::now();
    while peer.ask(question) != answer {
        assert!(start.elapsed() < Duration::from_secs(10), "{question}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn neighbours_share_a_link_on_one_host() {
    neighbours_share_a_link(None, "tls");
}

#[test]
#[ignore = "needs network namespaces; `cargo xtask test` runs it"]
fn neighbours_share_a_link_over_tls() {
    neighbours_share_a_link(Some(&Hosts::new()), "tls");
}

#[test]
#[ignore = "needs UCX and network namespaces; `cargo xtask test` runs it"]
fn neighbours_share_a_link_over_ucx() {
    neighbours_share_a_link(Some(&Hosts::new()), "ucx");
}

/// If the process that shares a link ends or is killed, another process can share a link under the
/// same name.
#[test]
fn who_shares_a_link_may_come_and_go() {
    let (mut owner, mut user) = link(None, "tls", 10_000);
    let name = format!("test-{}", user.id());
    let mut one = neighbour(None);
    let error = one.try_ask(&format!("neighbour connect {name}"));
    assert!(error.unwrap_err().contains("no process of this user"));
    let error = one.try_ask("neighbour connect ../etc").unwrap_err();
    assert!(error.contains("letters, digits"), "{error}");
    user.ask(&format!("neighbour share {name}"));
    one.ask(&format!("neighbour connect {name}"));
    let handles = owner.ask("allocate 100");
    let handles = words(&handles);
    one.ask(&format!("neighbour open_memory {}", handles[0]));
    user.ask("neighbour unshare");
    let error = one.try_ask("neighbour write 0 1 0 10").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    // After a kill, the socket and the lock file remain, but the name can be used again.
    user.ask(&format!("neighbour share {name}"));
    one.ask(&format!("neighbour connect {name}"));
    user.kill();
    let error = one.try_ask(&format!("neighbour open_memory {}", handles[0]));
    assert!(error.unwrap_err().contains("has ended"));
    let (_owner, mut user) = link(None, "tls", 10_000);
    user.ask(&format!("neighbour share {name}"));
    one.ask(&format!("neighbour connect {name}"));
}

/// Neighbours that are silent, send too much or connect too often do not lock other neighbours out.
#[test]
fn hostile_neighbours_harm_only_themselves() {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
        socket_with,
    };
    let (mut owner, mut user) = link(None, "tls", 10_000);
    let name = format!("test-{}", user.id());
    user.ask(&format!("neighbour share {name}"));
    let directory = crosshandle::report::socket_directories().swap_remove(0);
    let path = directory.join(format!("{name}.link"));
    let new = || {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        socket
    };
    assert!(UnixStream::connect(&path).is_err());
    // A process may have 16 connections. The next connection gets an error.
    let silent: Vec<_> = (0..16).map(|_| new()).collect();
    until(&mut user, "neighbour neighbours", "16");
    let (refused, mut bytes) = (new(), [0; 2048]);
    let (len, _) = recv(&refused, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..len]).contains("too many neighbours"));
    // Meanwhile, another process is served.
    let mut one = neighbour(None);
    one.ask(&format!("neighbour connect {name}"));
    let handles = owner.ask("allocate 100");
    let handle = words(&handles)[0];
    one.ask(&format!("neighbour open_memory {handle}"));
    // An invalid request ends the connection.
    for (socket, question) in
        silent
            .iter()
            .zip([&[][..], &[0], &[9; 2048], &[3], &[2; 200], &[1; 3000]])
    {
        let _ = send(socket, question, SendFlags::NOSIGNAL);
        let (len, _) =
            recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap_or_default();
        assert_eq!(len, 0, "{} bytes", question.len());
    }
    // Requests for objects that are not open are refused, and the connection continues.
    let question = [&[3][..], &7u32.to_le_bytes()].concat();
    for _ in 0..100 {
        send(&silent[10], &question, SendFlags::NOSIGNAL).unwrap();
        let (len, _) = recv(&silent[10], &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
        assert!(String::from_utf8_lossy(&bytes[..len]).contains("an event that is not open"));
    }
    // The size of a copy is limited, so that it does not block other neighbours for long.
    let theirs = handle.parse::<crosshandle::MemoryHandle>().unwrap();
    let mut ask = |question: &[u8]| {
        send(&silent[10], question, SendFlags::NOSIGNAL).unwrap();
        let (len, _) = recv(&silent[10], &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
        bytes[..len].to_vec()
    };
    let opened = ask(&[&[1, 0], &theirs.as_bytes()[..]].concat());
    assert_eq!(opened[0], 1, "{opened:?}");
    let copy = [
        &[2, 0],
        &opened[2..6],
        &0u64.to_le_bytes(),
        &theirs.as_bytes()[..],
        &0u64.to_le_bytes(),
        &(16 * MIB as u64 + 1).to_le_bytes(),
    ];
    let refused = ask(&copy.concat());
    assert!(String::from_utf8_lossy(&refused).contains("more bytes than one request may"));
    // Silent connections are closed soon.
    let (len, _) = recv(&silent[15], &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(len, 0);
    one.ask("neighbour write 0 3 0 100");
    assert_eq!(owner.ask("holds 0 3 0 100"), "true");
}
