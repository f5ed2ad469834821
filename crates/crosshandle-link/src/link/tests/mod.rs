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

mod deadlines;
mod events;
mod limits;
mod protocol;
mod reconnect;

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

fn wait_until_full(link: &Link) {
    let start = Instant::now();
    while link.session().state().has_room() {
        assert!(start.elapsed() < LIMIT, "there is always room");
        std::thread::yield_now();
    }
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
