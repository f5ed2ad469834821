//! A linked host that is hostile: it has shown who it is, and then breaks the protocol.

use super::{Link, listener::Listener, thread};
use crate::control::channel::Channel;
use crate::control::handshake;
use crate::control::message::{Hello, MAX_DATA, Message};
use crate::{Data, Error, Identity, LinkOptions, Token};
use crosshandle::{Context, Device};
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
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let options = LinkOptions::new(Identity::Token(Token::generate().unwrap())).data(Data::Tls);
        let listener = Listener::bind("127.0.0.1:0", &context, &options).unwrap();
        Self {
            context,
            options,
            listener,
        }
    }

    /// Links with a host that says what the test makes it say.
    fn link(&self) -> (Channel, Link) {
        let deadline = Instant::now() + LIMIT;
        let peer: Arc<str> = "the hostile one".into();
        let socket = thread::connect_to(self.listener.local_address(), deadline).unwrap();
        let hello = Hello {
            session: [0; 16],
            received: 0,
            host: 1,
            keep_alive_ms: 60_000,
            data: 0,
            refusal: 0,
        };
        let tls = self.options.identity.to_tls().unwrap();
        let greeted = handshake::dial(socket, &peer, &tls, &hello, deadline).unwrap();
        assert_eq!(greeted.hello.refusal, 0);
        let link = self.listener.accept(Some(LIMIT)).unwrap();
        (greeted.into_channel().unwrap(), link)
    }

    /// Sends frames until the link has ended, and returns why it has.
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
            // What the other side sends is thrown away unread.
            let _ = channel.fill();
            while let Ok(Some(_)) = channel.next_frame() {}
            match frames.next() {
                Some(frame) if !is_full => channel.queue(&frame),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// A link with an honest host works.
    fn check(&self) {
        let address = self.listener.local_address();
        let link = Link::connect(address, &self.context, &self.options).unwrap();
        let _other = self.listener.accept(Some(LIMIT)).unwrap();
        let memory = self.context.allocate(100).unwrap();
        let remote = link.open_memory(&memory.handle().unwrap()).unwrap();
        remote.write(0, b"honest").unwrap();
    }
}

#[test]
fn whoever_breaks_the_protocol_ends_the_link_alone() {
    let owner = Owner::new();
    let handle = [0; crosshandle::handle::HANDLE_SIZE];
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
            "nobody asked",
        ),
        (Message::Ack { received: 99 }.encode(), "what was not sent"),
        (Message::Address { address: b"x" }.encode(), "without one"),
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
    // A handle that is none is refused without an end; too many at once are not.
    let (mut channel, link) = owner.link();
    channel.queue(&open.encode());
    let start = Instant::now();
    let refused = loop {
        let _ = channel.flush().and_then(|_| channel.fill());
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
        let _ = channel.flush().and_then(|_| channel.fill());
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
