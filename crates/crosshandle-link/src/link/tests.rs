//! Tests with a hostile peer, which authenticates itself and then violates the protocol.

use super::{Link, listener::Listener, thread};
use crate::control::channel::Channel;
use crate::control::handshake::{self, Greeted};
use crate::control::message::{Hello, MAX_DATA, Message, NamedPart, SessionId, write_parts};
use crate::tuning::{MAX_ASKED, MAX_LOOKED_AT, MAX_READING, MAX_TOLD};
use crate::{Data, Error, Identity, LinkOptions, Token};
use crosshandle::adapter_support::Deadline;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::{Context, Device};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

struct Owner {
    context: Context,
    options: LinkOptions,
    listener: Listener,
}

impl Owner {
    fn new() -> Self {
        Self::with_keep_alive(Duration::from_secs(10))
    }

    fn with_keep_alive(keep_alive: Duration) -> Self {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let options = LinkOptions::new(Identity::Token(Token::generate().unwrap()))
            .data(Data::Tls)
            .keep_alive(keep_alive);
        let listener = Listener::bind("127.0.0.1:0", &context, &options).unwrap();
        Self {
            context,
            options,
            listener,
        }
    }

    /// Creates a link to a peer whose messages the test sends itself.
    fn link(&self) -> (Channel, Link) {
        self.link_and_say(&[])
    }

    /// Creates a link like [`link`](Self::link). The peer sends `frames` together with its
    /// greeting.
    fn link_and_say(&self, frames: &[u8]) -> (Channel, Link) {
        let greeted = self.greet([0; 16], 0, 0, frames).unwrap();
        let link = self.listener.accept_timeout(LIMIT).unwrap();
        (greeted.into_channel().unwrap(), link)
    }

    fn greet(
        &self,
        session: SessionId,
        received: u64,
        attempt: u32,
        frames: &[u8],
    ) -> Result<Greeted, Error> {
        let deadline = Deadline::after(LIMIT);
        let peer: Arc<str> = "the hostile one".into();
        let socket = thread::connect_to(self.listener.local_address(), deadline).unwrap();
        let hello = Hello {
            session,
            received,
            host: 1,
            keep_alive_ms: 3_600_000,
            data: 0,
            refusal: 0,
            attempt,
        };
        let tls = self.options.identity.to_tls().unwrap();
        let greeted = handshake::dial_and_say(socket, &peer, &tls, &hello, frames, deadline)?;
        assert_eq!(greeted.hello.refusal, 0);
        Ok(greeted)
    }

    /// Creates a link, sends frames until the link has ended, and returns the reason for the end.
    fn attack(&self, mut frames: impl Iterator<Item = Vec<u8>>) -> String {
        let (mut channel, link) = self.link();
        let start = Instant::now();
        loop {
            if let Some(error) = link.ended() {
                assert!(matches!(error, Error::Ended { .. }));
                return error.to_string();
            }
            assert!(start.elapsed() < LIMIT, "the link goes on");
            let is_full = channel.flush().unwrap_or(false);
            // Discard messages from the owner.
            channel.fill();
            while let Ok(Some(_)) = channel.next_frame() {}
            match frames.next() {
                Some(frame) if !is_full => channel.queue(&frame),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Checks that a link to an honest host still works.
    fn check(&self) {
        let address = self.listener.local_address();
        let link = Link::connect(address, &self.context, &self.options).unwrap();
        let _other = self.listener.accept_timeout(LIMIT).unwrap();
        let memory = self.context.allocate(100).unwrap();
        let remote = link.open_memory(&memory.handle().unwrap()).unwrap();
        remote.write(0, b"honest").unwrap();
    }
}

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

#[test]
fn whoever_asks_for_more_than_it_takes_is_cut_off() {
    let owner = Owner::new();
    let memory = owner.context.allocate(MAX_DATA).unwrap();
    let handle = memory.handle().unwrap();
    let open = Message::Open {
        request: 1,
        read_only: true,
        handle: handle.as_bytes(),
    };
    let reads = (2u64..).map(|request| {
        Message::Read {
            request,
            id: 1,
            offset: 0,
            len: MAX_DATA as u32,
        }
        .encode()
    });
    let (mut channel, link) = owner.link();
    channel.queue(&open.encode());
    let start = Instant::now();
    while !matches!(channel.next_frame(), Ok(Some(_))) {
        let _ = channel.flush();
        channel.fill();
        assert!(start.elapsed() < LIMIT);
    }
    for read in reads {
        if link.ended().is_some() {
            break;
        }
        assert!(start.elapsed() < LIMIT);
        channel.queue(&read);
        let _ = channel.flush();
    }
    let ended = link.ended().unwrap().to_string();
    assert!(ended.contains("more than it takes"), "{ended}");
    owner.check();
}

/// Sends pending output, and waits at most `LIMIT` for the next message from the owner.
fn next_frame(channel: &mut Channel) -> Vec<u8> {
    let start = Instant::now();
    loop {
        let _ = channel.flush();
        if let Some(frame) = channel.next_frame().unwrap() {
            return frame;
        }
        channel.fill();
        assert!(start.elapsed() < LIMIT, "nothing comes");
        std::thread::yield_now();
    }
}

fn open(handle: &[u8]) -> Vec<u8> {
    let (request, read_only) = (1, false);
    Message::Open {
        request,
        read_only,
        handle,
    }
    .encode()
}

/// Connections are replaced while the owner handles messages from the previous connection. Each
/// message must be handled exactly once. The keep-alive is an hour, so that no timer wakes the
/// link's thread.
#[test]
fn no_message_is_lost_or_handled_twice_when_connections_are_replaced() {
    const ROUNDS: u32 = 40;
    const SIGNALS: u64 = 500;
    let owner = Owner::with_keep_alive(Duration::from_secs(3600));
    let event = owner.context.create_event().unwrap();
    let (mut channel, link) = owner.link();
    let session = link.session().id;
    channel.queue(&open(event.handle().unwrap().as_bytes()));
    let frame = next_frame(&mut channel);
    let Ok(Message::Event { id, .. }) = Message::decode(&frame) else {
        panic!("not opened");
    };
    let mut received = 1;
    let mut done = 0;
    let mut count = |frame: &[u8], received: &mut u64| {
        let message = Message::decode(frame).unwrap();
        *received += u64::from(message.is_sequenced());
        if let Message::Done { request, value } = message {
            done += 1;
            // Replies arrive in order, each with the number of its request.
            assert_eq!((request, value), (done + 1, done));
        }
        done
    };
    // Messages that the peer has sent, but that the owner may not have handled yet.
    let mut unconfirmed: std::collections::VecDeque<Vec<u8>> = [Vec::new()].into();
    let mut confirmed = 0;
    for round in 1..=ROUNDS {
        for number in 1..=SIGNALS {
            let request = 1 + u64::from(round - 1) * SIGNALS + number;
            let frame = Message::Signal { request, id }.encode();
            channel.queue(&frame);
            unconfirmed.push_back(frame);
        }
        let _ = channel.flush();
        // Read up to three replies before the next replacement.
        for _ in 0..round % 4 {
            count(&next_frame(&mut channel), &mut received);
        }
        let greeted = owner.greet(session, received, round, &[]).unwrap();
        let handled = greeted.hello.received;
        drop(channel);
        channel = greeted.into_channel().unwrap();
        while confirmed < handled {
            unconfirmed.pop_front().unwrap();
            confirmed += 1;
        }
        for frame in &unconfirmed {
            channel.queue(frame);
        }
    }
    let all = u64::from(ROUNDS) * SIGNALS;
    while count(&next_frame(&mut channel), &mut received) < all {}
    assert_eq!(event.submitted(), all);
    assert!(link.ended().is_none(), "{:?}", link.ended());

    // An attempt to reconnect with an old number is rejected, and the current connection stays.
    assert!(owner.greet(session, 0, ROUNDS, &[]).is_err());
    assert!(owner.greet(session, 0, 1, &[]).is_err());
    let request = 2 + all;
    channel.queue(&Message::Signal { request, id }.encode());
    while count(&next_frame(&mut channel), &mut received) <= all {}
    assert!(link.ended().is_none(), "{:?}", link.ended());
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

/// A peer that never confirms gets only some of the reports, so it makes the owner use only a
/// limited amount of memory. When the peer confirms, it gets the remaining reports.
#[test]
fn who_never_confirms_is_kept_little_for() {
    let owner = Owner::new();
    let (mut channel, link) = owner.link();
    // With many events, the link's thread sends many reports each time it runs.
    let events: [_; 128] = std::array::from_fn(|_| owner.context.create_event().unwrap());
    let (mut received, mut told) = (0, HashMap::new());
    for event in &events {
        channel.queue(&open(event.handle().unwrap().as_bytes()));
        let id = loop {
            match Message::decode(&next_frame(&mut channel)).unwrap() {
                Message::Event { id, .. } => break id,
                Message::Ack { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        received += 1;
        told.insert(id, 0);
    }
    let start = Instant::now();
    while !link.session().has_told_enough() {
        let number = events[0].submitted() + 1;
        for event in &events {
            event.signal().unwrap();
        }
        // Wait until the signals are reported, because several signals could share one report.
        while told.values().any(|told| *told < number) && !link.session().has_told_enough() {
            assert!(start.elapsed() < 3 * LIMIT);
            channel.fill();
            while let Some(frame) = channel.next_frame().unwrap() {
                if let Message::Reached { id, number } = Message::decode(&frame).unwrap() {
                    received += 1;
                    told.insert(id, number);
                }
            }
            std::thread::yield_now();
        }
    }
    assert!(received >= MAX_TOLD as u64);
    for event in &events {
        event.signal_value(event.submitted() + 10_000).unwrap();
    }
    channel.queue(&Message::Ack { received }.encode());
    let last = events[0].submitted();
    while told.values().any(|told| *told < last) {
        let frame = next_frame(&mut channel);
        if let Message::Reached { id, number } = Message::decode(&frame).unwrap() {
            told.insert(id, number);
        }
    }
    assert!(link.ended().is_none());
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

/// Creates a link with two honest sides, and returns both sides.
fn honest(owner: &Owner) -> (Link, Link) {
    let address = owner.listener.local_address();
    let link = Link::connect(address, &owner.context, &owner.options).unwrap();
    let other = owner.listener.accept_timeout(LIMIT).unwrap();
    (link, other)
}

#[test]
fn signals_that_failed_have_failed_at_the_other_side() {
    let owner = Owner::new();
    let (link, _other) = honest(&owner);
    let event = owner.context.create_event().unwrap();
    let handle = event.handle().unwrap();
    let early = link.open_event(&handle).unwrap();
    const MANY: u64 = 3 * MAX_LOOKED_AT;
    event.fail_value(1000, "no").unwrap();
    assert!(early.mirror().wait_value_timeout(1000, LIMIT).is_err());
    event.fail_value(MANY, "no again").unwrap();
    assert!(early.mirror().wait_value_timeout(MANY, LIMIT).is_err());
    event.signal().unwrap();
    early.mirror().wait_value_timeout(MANY + 1, LIMIT).unwrap();
    let late = link.open_event(&handle).unwrap();
    late.mirror().wait_value_timeout(MANY + 1, LIMIT).unwrap();
    for number in 1..=MANY {
        for remote in [&early, &late] {
            let result = remote.mirror().try_wait_value(number);
            assert!(result.is_err(), "{number}");
        }
    }
}

#[test]
fn an_event_that_was_given_up_is_given_up_over_every_link() {
    let owner = Owner::new();
    let (first, other) = honest(&owner);
    let (second, _second) = honest(&owner);
    let event = owner.context.create_event().unwrap();
    let handle = event.handle().unwrap();
    let remote = first.open_event(&handle).unwrap();
    let relayed = second
        .open_event(&remote.mirror().handle().unwrap())
        .unwrap();
    event.signal().unwrap();
    relayed.mirror().wait_value_timeout(1, LIMIT).unwrap();
    let is_over = |event: &crosshandle::Event| {
        event.try_wait_value(1).unwrap();
        let error = event.wait_value_timeout(2, LIMIT).unwrap_err();
        assert!(error.is_peer_dead(), "{error}");
        let error = event.wait_value_timeout(1 << 28, LIMIT).unwrap_err();
        assert!(error.is_peer_dead(), "{error}");
    };
    // End the link between the first and the second host.
    drop(other);
    first.session().end(first.session().ended("a test"), true);
    is_over(remote.mirror());
    is_over(relayed.mirror());
    // The event is opened once before it is abandoned and once after.
    let late = second
        .open_event(&remote.mirror().handle().unwrap())
        .unwrap();
    is_over(late.mirror());
    let open = second.open_event(&handle).unwrap();
    event.abandon().unwrap();
    is_over(open.mirror());
}

/// While there is no connection, the link's thread sleeps even if a confirmation is due.
#[test]
fn nothing_is_due_while_there_is_no_connection() {
    let owner = Owner::with_keep_alive(Duration::from_secs(100));
    let (_channel, link) = owner.link();
    let mut state = link.session().state();
    state.channel = None;
    state.spoke_at = Instant::now().checked_sub(Duration::from_secs(50)).unwrap();
    drop(state);
    let agenda = link.session().agenda().unwrap();
    assert!(agenda.wake_at > Instant::now() + Duration::from_secs(1));
}

fn wait_until_full(link: &Link) {
    let start = Instant::now();
    while link.session().state().has_room() {
        assert!(start.elapsed() < LIMIT, "there is always room");
        std::thread::yield_now();
    }
}

/// A caller that waits to send a request continues when the greeting of a new connection confirms
/// earlier requests.
#[test]
fn a_new_connection_makes_room() {
    let owner = Owner::with_keep_alive(Duration::from_secs(3600));
    let (_channel, link) = owner.link();
    let session = link.session().id;
    let asker = link.clone();
    let asks = std::thread::spawn(move || {
        let bytes = vec![0; MAX_DATA];
        for _ in 0..2 * MAX_ASKED / MAX_DATA - 20 {
            let ask = asker.session().ask(|request| Message::Write {
                request,
                id: 1,
                offset: 0,
                bytes: &bytes,
            });
            ask.unwrap();
        }
    });
    wait_until_full(&link);
    let received = (MAX_ASKED / MAX_DATA) as u64;
    let _channel = owner.greet(session, received, 1, &[]).unwrap();
    let start = Instant::now();
    while !asks.is_finished() {
        assert!(start.elapsed() < LIMIT, "no thread has woken the waiter");
        std::thread::yield_now();
    }
    asks.join().unwrap();
}

/// Reads beyond the limit wait, so that the peer never has more unconfirmed replies than it
/// permits.
#[test]
fn reads_wait_for_their_replies() {
    const READS: usize = MAX_READING / MAX_DATA + 50;
    let owner = Owner::new();
    let (mut channel, link) = owner.link();
    let asker = link.clone();
    let asks = std::thread::spawn(move || {
        for _ in 0..READS {
            let ask = asker.session().ask(|request| Message::Read {
                request,
                id: 1,
                offset: 0,
                len: MAX_DATA as u32,
            });
            ask.unwrap();
        }
    });
    wait_until_full(&link);
    assert!(!asks.is_finished());
    let bytes = vec![0; MAX_DATA];
    let mut replied = 0;
    while replied < READS {
        let frame = next_frame(&mut channel);
        if let Message::Read { request, .. } = Message::decode(&frame).unwrap() {
            let bytes = &bytes[..];
            channel.queue(&Message::Data { request, bytes }.encode());
            replied += 1;
        }
    }
    asks.join().unwrap();
    assert!(link.ended().is_none(), "{:?}", link.ended());
}

#[test]
fn one_confirmation_waits_to_be_sent_at_most() {
    let owner = Owner::new();
    let (_channel, link) = owner.link();
    let mut state = link.session().state();
    let channel = state.channel.as_mut().unwrap();
    channel.flush().unwrap();
    let ack = Message::Ack { received: 0 }.encode();
    let other = Message::Reached { id: 9, number: 1 }.encode();
    assert!(channel.queue_ack(&ack) && !channel.queue_ack(&ack));
    channel.queue(&other);
    assert!(!channel.queue_ack(&ack));
    channel.flush().unwrap();
    assert!(channel.queue_ack(&ack));
}

/// Replies to a request to open memory, and claims the length `len`.
fn claim(channel: &mut Channel, len: u64) {
    let frame = next_frame(channel);
    let Ok(Message::Open { request, .. }) = Message::decode(&frame) else {
        panic!("it asks for something else");
    };
    claim_for(channel, request, len);
}

fn claim_for(channel: &mut Channel, request: u64, len: u64) {
    let (id, address, staging, key) = (7, 0, 0, &[][..]);
    let reply = Message::Memory {
        request,
        id,
        len,
        address,
        staging,
        key,
    };
    channel.queue(&reply.encode());
    let _ = channel.flush();
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
