//! Deadlines of callers.

use super::*;

/// The peer claims many parts, and replies late for each of them.
#[test]
fn one_deadline_covers_all_parts_of_a_name() {
    const PARTS: usize = 20;
    const TIMEOUT: Duration = Duration::from_millis(600);
    let owner = Owner::new();
    let memory = owner.context.allocate(4096).unwrap();
    let handle = memory.handle_read_only().unwrap();
    let (mut channel, link) = owner.link();
    let opener = link.clone();
    let opens =
        std::thread::spawn(move || opener.open_name_until("name", Deadline::after(TIMEOUT)));
    let frame = next_frame(&mut channel);
    let Ok(Message::OpenName { request, .. }) = Message::decode(&frame) else {
        panic!("it asks for something else");
    };
    let part = NamedPart {
        role: "part",
        device: "host",
        handle: handle.as_bytes(),
    };
    let parts = write_parts(vec![part; PARTS]).unwrap();
    let (version, parts) = (1, &parts[..]);
    let name = Message::Name {
        request,
        version,
        parts,
    };
    channel.queue(&name.encode());
    while !opens.is_finished() {
        let _ = channel.flush();
        channel.fill();
        let frame = channel.next_frame().unwrap();
        if let Some(Ok(Message::Open { request, .. })) = frame.as_deref().map(Message::decode) {
            std::thread::sleep(TIMEOUT / 4);
            claim_for(&mut channel, request, 4096);
        }
        std::thread::yield_now();
    }
    let error = opens.join().unwrap().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(link.ended().is_none());
}

/// No call waits longer than its timeout for a stopped peer. Each public function with a timeout
/// must have a row here.
#[test]
fn no_call_waits_longer_for_a_stopped_host() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    const LATENESS: Duration = Duration::from_secs(1);
    let measured = [
        // A host has connected and sends nothing, not even its identity.
        ("accept_timeout", {
            let owner = Owner::new();
            let address = owner.listener.local_address();
            let _silent = std::net::TcpStream::connect(address).unwrap();
            let start = Instant::now();
            let error = owner.listener.accept_timeout(TIMEOUT).unwrap_err();
            assert!(error.is_timeout(), "{error}");
            start.elapsed()
        }),
        // The peer has linked, and sends nothing after that.
        ("keep_alive", {
            let owner = Owner::with_keep_alive(TIMEOUT);
            let handle = owner.context.allocate(100).unwrap().handle().unwrap();
            let (_channel, link) = owner.link();
            let start = Instant::now();
            let error = link.open_memory(&handle).unwrap_err();
            assert!(error.is_peer_dead(), "{error}");
            start.elapsed()
        }),
    ];
    for (name, took) in measured {
        assert!(took <= TIMEOUT + LATENESS, "{name}: {took:?}");
    }
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in [
        "link/listener.rs",
        "link/mod.rs",
        "options.rs",
        "memory/mod.rs",
        "event.rs",
        "directory.rs",
    ] {
        let text = std::fs::read_to_string(sources.join(file)).unwrap();
        for function in text.split("pub fn ").skip(1) {
            let (name, rest) = function.split_once('(').unwrap();
            let signature = rest.split('{').next().unwrap_or_default();
            let arguments = signature.split("->").next().unwrap_or_default();
            let has_row = measured.iter().any(|(measured, _)| *measured == name);
            assert!(
                has_row || !arguments.contains("Duration"),
                "{name} has no row"
            );
        }
    }
}
