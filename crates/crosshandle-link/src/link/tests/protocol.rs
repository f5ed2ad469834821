//! Messages that violate the protocol, or that arrive early.

use super::*;

#[test]
fn whoever_breaks_the_protocol_ends_the_link_alone() {
    let owner = Owner::new();
    let handle = [0; MEMORY_HANDLE_SIZE];
    let open = Message::Open {
        request: 1,
        read_only: false,
        handle: &handle,
    };
    let attacks = [
        (Message::Close { id: 7 }.encode(), "closes what is not open"),
        (
            Message::Signal { request: 1, id: 7 }.encode(),
            "not an open event",
        ),
        (
            Message::Read {
                request: 1,
                id: 7,
                offset: 0,
                len: 1,
            }
            .encode(),
            "not open memory",
        ),
        (
            Message::WriteAndSignal {
                request: 1,
                id: 7,
                event: 8,
                offset: 0,
                bytes: b"x",
            }
            .encode(),
            "not open memory",
        ),
        (
            Message::Done {
                request: 9,
                value: 0,
            }
            .encode(),
            "unknown request",
        ),
        (Message::Ack { received: 99 }.encode(), "what was not sent"),
        (
            Message::Address {
                generation: 1,
                address: b"x",
            }
            .encode(),
            "without one",
        ),
        (
            Message::Reached {
                id: 1,
                number: u64::MAX,
            }
            .encode(),
            "larger than any that a link reports",
        ),
        (vec![0xff; 8], "longer than any message"),
        (vec![1, 0, 0, 0, 0xee], "no known kind"),
        (vec![0; 4], "empty"),
    ];
    for (frame, why) in attacks {
        let ended = owner.attack(std::iter::once(frame));
        assert!(ended.contains(why), "{why}: {ended}");
    }
    let ended = owner.attack(std::iter::once(Message::Bye { why: "enough" }.encode()));
    assert!(ended.contains("enough"), "{ended}");
    // The owner rejects an invalid handle, and the link continues. Too many opens at once end the
    // link.
    let (mut channel, link) = owner.link();
    channel.queue(&open.encode());
    let start = Instant::now();
    let refused = loop {
        let _ = channel.flush();
        channel.fill();
        if let Ok(Some(frame)) = channel.next_frame() {
            break frame;
        }
        assert!(start.elapsed() < LIMIT);
    };
    let Ok(Message::Refused { request: 1, why }) = Message::decode(&refused) else {
        panic!("not refused");
    };
    assert!(!why.is_empty() && link.ended().is_none());
    owner.check();
}

/// A message that arrives together with the greeting is handled at once, not only when the next
/// message arrives.
#[test]
fn what_comes_with_the_greeting_is_handled() {
    let owner = Owner::with_keep_alive(Duration::from_secs(3600));
    let event = owner.context.create_event().unwrap();
    let (mut channel, link) = owner.link_and_say(&open(event.handle().unwrap().as_bytes()));
    let frame = next_frame(&mut channel);
    assert!(matches!(
        Message::decode(&frame),
        Ok(Message::Event { completed: 0, .. })
    ));
    // The same must hold when a connection is replaced.
    let session = link.session().id;
    let signal = Message::Signal { request: 2, id: 1 }.encode();
    let greeted = owner.greet(session, 1, 1, &signal).unwrap();
    assert_eq!(greeted.hello.received, 1);
    let mut channel = greeted.into_channel().unwrap();
    let frame = next_frame(&mut channel);
    assert!(matches!(
        Message::decode(&frame),
        Ok(Message::Done { value: 1, .. } | Message::Reached { number: 1, .. })
    ));
}

/// The link ends if the peer assigns the same number to two open events.
#[test]
fn two_events_with_one_number_end_the_link() {
    let owner = Owner::new();
    let event = owner.context.create_event().unwrap();
    let handle = event.handle().unwrap();
    let (mut channel, link) = owner.link();
    let opener = link.clone();
    let opens = std::thread::spawn(move || {
        let first = opener.open_event(&handle).unwrap();
        let second = opener.open_event(&handle).unwrap_err();
        (first, second)
    });
    for _ in 0..2 {
        let frame = next_frame(&mut channel);
        let Ok(Message::Open { request, .. }) = Message::decode(&frame) else {
            panic!("it asks for something else");
        };
        let (id, completed, failures) = (7, 0, &[][..]);
        channel.queue(
            &Message::Event {
                request,
                id,
                completed,
                failures,
            }
            .encode(),
        );
    }
    let _ = channel.flush();
    let (first, second) = opens.join().unwrap();
    assert!(second.to_string().contains("one number"), "{second}");
    let waited = first.mirror().wait_value_timeout(1, LIMIT).unwrap_err();
    assert!(waited.is_peer_dead(), "{waited}");
}

/// Replies to a request to open memory, and claims the length `len`.
fn claim(channel: &mut Channel, len: u64) {
    let frame = next_frame(channel);
    let Ok(Message::Open { request, .. }) = Message::decode(&frame) else {
        panic!("it asks for something else");
    };
    claim_for(channel, request, len);
}

/// A handle contains the length of its memory. If the peer claims another length, opening the
/// memory fails, and no memory is allocated for the claimed length.
#[test]
fn claimed_lengths_are_checked_against_the_handle() {
    let owner = Owner::new();
    let memory = owner.context.allocate(4096).unwrap();
    let handle = memory.handle().unwrap();
    let (mut channel, link) = owner.link();
    for len in [0, 4095, 4097, 1 << 40, 1 << 57, 1 << 62, 1 << 63, u64::MAX] {
        let opener = link.clone();
        let opens = std::thread::spawn(move || opener.open_memory(&handle));
        claim(&mut channel, len);
        let error = opens.join().expect("no panic").unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{len}: {error}");
        // The owner is told to close the memory.
        let frame = next_frame(&mut channel);
        assert_eq!(Message::decode(&frame), Ok(Message::Close { id: 7 }));
    }
    assert!(link.ended().is_none());
    let opener = link.clone();
    let opens = std::thread::spawn(move || opener.open_memory(&handle));
    claim(&mut channel, 4096);
    assert_eq!(opens.join().unwrap().unwrap().len(), 4096);
}
