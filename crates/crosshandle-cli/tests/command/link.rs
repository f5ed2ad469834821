//! `link`, with two socket directories in place of two hosts.

use crate::common::{Sandbox, contents, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn memory_and_events_are_reached_from_another_host() {
    let (owner, user) = (Sandbox::new(), Sandbox::new());
    let token = owner.path("token");
    owner.run(["link", "token", text(&token)]).expect(0);
    owner.run(["link", "token", text(&token)]).expect(1);
    let all = contents((3 << 20) + 5);
    let file = owner.file("data", &all);
    let (_holder, memory) = owner.hold(["share", text(&file)]);
    let (_creator, event) = owner.hold(["event", "new"]);
    // The memory's exporter cannot be found in this socket directory.
    user.run(["read", &memory]).expect(4);
    let (_listener, address) =
        owner.hold(["link", "listen", "127.0.0.1:0", "--token", text(&token)]);
    let token = ["--token", text(&token)];

    // Connect by a name in a file, whose first address has no listener.
    let hosts = user.file("hosts", format!("store 127.0.0.1:1 {address}\n").as_bytes());
    let named = ["--token", token[1], "--hosts", text(&hosts)];
    let read = [&["link", "read", "store", &memory], &named[..]].concat();
    assert!(user.run(read).expect(0).stdout == all);
    let read = [&["link", "read", "nobody", &memory], &named[..]].concat();
    user.run(read).expect(1);

    let read = [&["link", "read", &address, &memory], &token[..]].concat();
    assert!(user.run(read).expect(0).stdout == all);
    let waits = ["link", "wait", &address, &event, "2", "--timeout", "20s"];
    let waiter = user.start([&waits, &token[..]].concat());
    for number in ["1\n", "2\n"] {
        let signal = [&["link", "signal", &address, &event], &token[..]].concat();
        assert_eq!(user.run(signal).expect(0).text(), number);
    }
    waiter.finish().expect(0);
    let waits = ["link", "wait", &address, &event, "3", "--timeout", "100ms"];
    user.run([&waits, &token[..]].concat()).expect(3);

    // One process has a link. Other processes use it without a token.
    let shares = [&["link", "share", &address, "--as", "store"], &token[..]].concat();
    let (sharer, name) = user.hold(shares.clone());
    assert_eq!(name, "@store");
    user.run(shares).expect(1);
    assert!(user.run(["link", "read", &name, &memory]).expect(0).stdout == all);
    let waiter = user.start(["link", "wait", &name, &event, "3", "--timeout", "20s"]);
    let signal = ["link", "signal", &name, &event];
    assert_eq!(user.run(signal).expect(0).text(), "3\n");
    waiter.finish().expect(0);
    drop(sharer);
    user.run(signal).expect(1);
    // A process cannot make a link of its own without a token.
    user.run(["link", "signal", &address, &event]).expect(1);
}

#[test]
fn tokens_that_others_can_read_or_that_differ_are_refused() {
    let sandbox = Sandbox::new();
    let (one, other) = (sandbox.path("one"), sandbox.path("other"));
    for token in [&one, &other] {
        sandbox.run(["link", "token", text(token)]).expect(0);
    }
    let (_listener, address) =
        sandbox.hold(["link", "listen", "127.0.0.1:0", "--token", text(&one)]);
    let file = sandbox.file("data", &contents(10));
    let (_holder, memory) = sandbox.hold(["share", text(&file)]);
    let read = |token| {
        let arguments = ["link", "read", &address, &memory, "--token", token];
        sandbox.run(arguments)
    };
    read(text(&one)).expect(0);
    let refused = read(text(&other)).expect(1);
    assert!(refused.stdout.is_empty());
    fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).unwrap();
    read(text(&one)).expect(1);
}

#[test]
fn certificates_link_instead_of_a_token() {
    let files = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crosshandle-link/tests/certificates/"
    );
    let identity = |who: &str, name: &str| {
        let file = |name: String| format!("{files}{name}");
        vec![
            format!("--authority={}", file("authority.pem".into())),
            format!("--certificate={}", file(format!("{who}.pem"))),
            format!("--key={}", file(format!("{who}.key.pem"))),
            format!("--server-name={name}"),
        ]
    };
    let sandbox = Sandbox::new();
    let own = identity("owner", "owner.example");
    let mut listens = vec!["link", "listen", "127.0.0.1:0"];
    listens.extend(own.iter().map(String::as_str));
    let (_listener, address) = sandbox.hold(listens);
    let file = sandbox.file("data", &contents(10));
    let (_holder, memory) = sandbox.hold(["share", text(&file)]);
    let read = |identity: &[String]| {
        let mut arguments = vec!["link", "read", &address, &memory];
        arguments.extend(identity.iter().map(String::as_str));
        sandbox.run(arguments)
    };
    assert!(read(&identity("user", "owner.example")).expect(0).stdout == contents(10));
    read(&identity("user", "another.example")).expect(1);
    read(&identity("other", "owner.example")).expect(1);
    // An incomplete set of options is wrong usage.
    read(&own[..2]).expect(2);
}
