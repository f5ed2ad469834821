use super::super::super::message::{Envelope, Request};
use super::super::claims::tests::{Bench, record};
use super::super::{Holdings, journal};
use super::*;
use crosshandle_handle::Fields;
use crosshandle_os::memfd;
use std::os::fd::OwnedFd;

fn memory() -> OwnedFd {
    memfd::create("test", 4096).expect("memory")
}

/// Creates a record of the bench's exporter with a given number.
fn with(number: u32, file: &OwnedFd, maker: u32) -> Record {
    record(number, file.try_clone().expect("a copy"), maker)
}

#[test]
fn nothing_takes_the_place_of_what_is_lost() {
    let (file, other) = (memory(), memory());
    let (maker, stranger) = (std::process::id(), std::os::unix::process::parent_id());
    let mut bench = Bench::new("lost", &file, maker);
    let server = &mut bench.server;
    let policy = server.terms.policy.clone();
    let empty = || Holdings::new(policy.clone());
    server.journal.note("region");
    server.write_journal();
    // This is the state of a new holder after both processes of the previous one have died.
    server.holdings = empty();
    server.lost = journal::read(&server.directory, &server.holdings);
    let lost = server.lost["region"].clone();
    assert_eq!(
        lost.parts[0].maker.process,
        with(2, &file, maker).maker.process
    );

    // The exporter may hand over the same memory again, or another object.
    let check = |server: &Server, record: Record| server.check_lost(&[record]);
    check(server, with(2, &file, maker)).expect("the same");
    check(server, with(3, &other, maker)).expect("another object of the maker's");
    for (record, what) in [
        (with(2, &other, maker), "other memory under its handle"),
        (with(2, &file, stranger), "another process"),
        (with(3, &other, stranger), "another process"),
    ] {
        check(server, record).expect_err(what);
    }
    let mut elsewhere = with(3, &other, stranger);
    elsewhere.handle = MemoryHandle::new(&Fields {
        exporter: 8,
        ..elsewhere.handle.fields()
    });
    check(server, elsewhere).expect("its own");

    // If other memory is nevertheless held under the handle, the name does not come back with that
    // memory.
    let offer = Offer {
        name: "region".into(),
        version: 1,
        parts: Vec::new(),
    };
    let asker = Asker { uid: 0, pid: 0 };
    let own = |file| vec![with(2, file, maker).memory];
    server
        .holdings
        .add_record(with(2, &other, maker))
        .expect("held");
    let refused = server.restore(&offer, asker, own(&file));
    assert!(format!("{refused:?}").contains("other memory is held"));
    assert!(server.lost.contains_key("region"));
    server.holdings = empty();
    server.restore(&offer, asker, own(&file)).expect("back");
    let name = &server.holdings.names()["region"];
    assert_eq!(name.recovered, Some(Recovered::SameFiles));
    assert!(server.lost.is_empty());
    // From now on the rules for held memory apply.
    let held = server.holdings.add_record(with(3, &other, stranger));
    held.expect_err("another process");
}

#[test]
fn what_is_lost_has_its_tokens_still() {
    let file = memory();
    let mut bench = Bench::new("locked", &file, 0);
    let server = &mut bench.server;
    let mut name = server.holdings.names()["region"].clone();
    name.tokens = serde_json::from_str(r#"{"read":"r","write":"w","admin":"a"}"#).expect("tokens");
    server.holdings.set_name(name);
    server.journal.note("region");
    server.write_journal();
    server.holdings = Holdings::new(server.terms.policy.clone());
    server.lost = journal::read(&server.directory, &server.holdings);
    let ask = |server: &mut Server, token: Option<&str>| {
        let envelope = Envelope {
            protocol: 1,
            token: token.map(str::to_owned),
            request: Request::Stop,
        };
        server.answer(0, envelope)
    };
    for token in [None, Some("w")] {
        let refused = ask(server, token);
        assert!(
            format!("{refused:?}").contains("has a token"),
            "{refused:?}"
        );
    }
    assert!(matches!(ask(server, Some("a")), Some(Reply::Done)));
}

#[test]
fn a_journal_of_another_pid_namespace_tells_of_no_process() {
    let file = memory();
    let mut bench = Bench::new("pids", &file, std::process::id());
    let server = &mut bench.server;
    server.journal.note("region");
    server.write_journal();
    let (_, name) = server.directory.journals().pop().expect("a journal");
    let path = server.path.join(name);
    let written = std::fs::read_to_string(&path).expect("text");
    let other = written.replace("\"pids\":\"pid:", "\"pids\":\"pid:1");
    assert_ne!(written, other);
    std::fs::write(&path, other).expect("written");
    let empty = Holdings::new(server.terms.policy.clone());
    let lost = journal::read(&server.directory, &empty);
    assert_eq!(lost["region"].parts[0].maker.process, None);
}
