//! Programs that send nonsense, send nothing, repeat requests, or hold more than a holder can keep.

use crate::common::{DEADLINE, Directory, Process};
use crate::{LEN, MAKER, Pair, alone, check_held, contents, make_memory, place, role};
use crosshandle::handle::AnyHandle;
use crosshandle::holder::Holder;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

/// Sends bytes to a holder's socket that no program of this crate would send.
pub(crate) fn send_raw(
    directory: &Directory,
    socket: &str,
    message: &[u8],
) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(directory.path().join(socket))?;
    rustix::net::connect(&stream, &address)?;
    rustix::net::send(&stream, message, SendFlags::NOSIGNAL)?;
    Ok(stream)
}

/// Returns the request by which a program hands memory over.
pub(crate) fn hold_text(name: &str, request: u64, writes: &str, reads: &str) -> String {
    format!(
        r#"{{"protocol":1,"request":{{"hold":{{"name":"{name}","request":{request},"parts":[{{"role":"memory","device":"host","kind":"device","bytes":{LEN},"handle":"{writes}","read_only":"{reads}"}}]}}}}}}"#
    )
}

/// Receives the reply to a request that [`send_raw`] has sent.
pub(crate) fn hear_raw(stream: &OwnedFd) -> String {
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(stream, timeout, Some(DEADLINE)).expect("a timeout");
    let mut answer = vec![0; 60 << 10];
    let flags = rustix::net::RecvFlags::empty();
    let (len, _) = rustix::net::recv(stream, &mut answer[..], flags).expect("an answer");
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

#[test]
fn a_holder_withstands_senseless_programs() {
    const TEST: &str = "strangers::a_holder_withstands_senseless_programs";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let memory = make_memory(&alone(&directory), 1);
    memory.hand_over(&pair.holder, "good").expect("handed over");
    let event = place(&directory).create_event().expect("an event");
    let event = event.handle().expect("a handle").to_string();
    let dead = {
        let context = alone(&directory);
        let memory = make_memory(&context, 9);
        (
            memory.handle().expect("a handle"),
            memory.handle_read_only().expect("a handle"),
        )
    };
    let hold = |parts: &str| {
        format!(r#"{{"protocol":1,"request":{{"hold":{{"name":"bad","parts":[{parts}]}}}}}}"#)
    };
    let part = |handle: &str, read_only: &str, bytes: usize| {
        format!(
            r#"{{"role":"x","device":"host","kind":"device","bytes":{bytes},"handle":"{handle}","read_only":"{read_only}"}}"#
        )
    };
    let own = memory.handle().expect("a handle").to_string();
    let texts = [
        String::new(),
        "{".repeat(50_000),
        "null".into(),
        r#"{"protocol":2,"request":"status"}"#.into(),
        r#"{"protocol":1,"request":{"open":{"name":"../../etc/passwd","writes":true}}}"#.into(),
        r#"{"protocol":1,"request":{"list":{"after":"\u0000"}}}"#.into(),
        hold(""),
        hold(&part(&own, &own, LEN)),
        hold(&part(&event, &event, LEN)),
        hold(&part(&dead.0.to_string(), &dead.1.to_string(), LEN)),
        hold(&part(&own, &dead.1.to_string(), LEN)),
        hold(&part("xhm3.", "xhm3.", LEN)),
    ];
    let mut kept = Vec::new();
    for text in &texts {
        kept.extend(send_raw(&directory, "holder.sock", text.as_bytes()));
        kept.extend(send_raw(&directory, "holder.importers", text.as_bytes()));
    }
    // Many connections send nothing, or wait for an event that never happens.
    for _ in 0..300 {
        kept.extend(send_raw(&directory, "holder.sock", b""));
        let wait =
            r#"{"protocol":1,"request":{"await":{"name":"good","writes":false,"version":9}}}"#;
        kept.extend(send_raw(&directory, "holder.sock", wait.as_bytes()));
    }
    let held = pair.holder.list().expect("it answers");
    let names: Vec<_> = held.iter().map(|name| &*name.name).collect();
    assert_eq!(names, ["good"]);
    let held = pair.holder.open("good").expect("it answers");
    check_held(&place(&directory), &held, 1);
    drop(kept);
    // The successor survives them too.
    Pair::kill(pair.await_safe().pid);
    let held = pair.holder.open("good").expect("it answers");
    check_held(&place(&directory), &held, 1);
    assert!(AnyHandle::from_bytes(held.parts[0].read_only.expect("one").as_bytes()).is_ok());
}

#[test]
fn a_list_without_an_end_is_an_error() {
    const TEST: &str = "strangers::a_list_without_an_end_is_an_error";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let memory = make_memory(&alone(&directory), 1);
    memory.hand_over(&pair.holder, "one").expect("handed over");
    let list = r#"{"protocol":2,"request":{"list":{"after":null}}}"#;
    let page = send_raw(&directory, "holder.sock", list.as_bytes()).map(|stream| hear_raw(&stream));
    let page = page.expect("an answer");
    let page = page.replace(r#""more":false"#, r#""more":true"#);
    assert!(page.contains(r#""more":true"#), "{page}");
    // A hostile holder that always has one more page.
    let elsewhere = Directory::new();
    let path = elsewhere.path().join("holder.sock");
    let flags = SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.expect("a socket");
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
    rustix::net::listen(&listener, 8).expect("it listens");
    std::thread::spawn(move || {
        while let Ok(stream) = rustix::net::accept(&listener) {
            let mut request = [0; 1024];
            let _ = rustix::net::recv(&stream, &mut request[..], rustix::net::RecvFlags::empty());
            let _ = rustix::net::send(&stream, page.as_bytes(), SendFlags::NOSIGNAL);
        }
    });
    let hostile = Holder::new()
        .socket_dir(elsewhere.path())
        .timeout(20 * DEADLINE);
    let error = hostile.list().expect_err("it has no end");
    assert!(!error.is_timeout(), "{error}");
}

#[test]
fn a_silent_maker_holds_up_no_other() {
    const TEST: &str = "strangers::a_silent_maker_holds_up_no_other";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut silent = Process::start(TEST, MAKER, &directory);
    let mut other = Process::start(TEST, MAKER, &directory);
    silent.say("handles 1");
    let handles = silent.hear();
    let (writes, reads) = handles.split_once(' ').expect("two handles");
    silent.stop();
    let mut kept = Vec::new();
    for number in 0..24 {
        let text = hold_text(&format!("silent-{number}"), 0, writes, reads);
        kept.push(send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"));
    }
    // The holder has read all of them, because it replies in order.
    assert_eq!(pair.holder.list().expect("names").len(), 0);
    other.say("hand-over 2 other");
    assert_eq!(other.hear(), "held 1 true");
    drop(kept);
}

#[test]
fn a_holder_takes_no_more_than_its_successor_can_have() {
    const TEST: &str = "strangers::a_holder_takes_no_more_than_its_successor_can_have";
    if role() {
        return;
    }
    let directory = Directory::new();
    let limited = ["sh", "-c", "ulimit -n 520; exec \"$0\" \"$@\""];
    let pair = Pair::start_by(&limited, TEST, &directory);
    let context = alone(&directory);
    let mut held = 0;
    let refused = loop {
        let memory = context.allocate(LEN).expect("memory");
        memory.write(0, &contents(held, LEN)).expect("written");
        match memory.hand_over(&pair.holder, &format!("name-{held}")) {
            Ok(done) => assert!(done.is_safe, "the successor lives"),
            Err(error) => break error.to_string(),
        }
        held += 1;
        assert!(held < 260, "more than both can have");
    };
    assert!(refused.contains("ulimit -n"), "{refused}");
    assert!(held > 8, "{held}");
    for _ in 0..2 {
        Pair::kill(pair.await_safe().pid);
        for seed in [0, held - 1] {
            let name = pair.holder.open(&format!("name-{seed}")).expect("held");
            check_held(&place(&directory), &name, seed);
        }
    }
}

#[test]
fn a_hand_over_is_done_once_however_often_it_is_asked_for() {
    const TEST: &str = "strangers::a_hand_over_is_done_once_however_often_it_is_asked_for";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("handles 1");
    let handles = maker.hear();
    let (writes, reads) = handles.split_once(' ').expect("two handles");
    let ask = |request| {
        let text = hold_text("one", request, writes, reads);
        hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"))
    };
    let first = ask(7);
    assert!(
        first.contains(r#""handed_over":{"version":1,"is_safe":true}"#),
        "{first}"
    );
    assert_eq!(ask(7), first);
    // The test repeats the request as if the reply had been lost with the holder.
    Pair::kill(pair.await_safe().pid);
    pair.await_safe();
    assert_eq!(ask(7), first);
    assert_eq!(pair.holder.open("one").expect("held").version, 1);
    let other = ask(8);
    assert!(other.contains("name_taken"), "{other}");
}
