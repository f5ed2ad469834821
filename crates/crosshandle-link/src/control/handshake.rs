//! The start of a connection: the TLS handshake and the greetings. The functions block until the
//! deadline at most, even if the peer sends bytes slowly.

use super::channel::Channel;
use super::identity::Tls;
use super::message::{HELLO_SIZE, Hello, NoHello, refusal};
use crate::error::{Error, Result};
use crosshandle::adapter_support::Deadline;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// A socket whose reads and writes fail after a deadline. A signal interrupts system calls on a
/// socket with a timeout, so this type restarts them.
struct Limited<'a> {
    socket: &'a TcpStream,
    deadline: Deadline,
}

impl Limited<'_> {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        match self.deadline.remaining() {
            Some(Duration::ZERO) => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            self.socket.set_read_timeout(self.left()?)?;
            match self.socket.read(into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        loop {
            self.socket.set_write_timeout(self.left()?)?;
            match self.socket.write(from) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A connection whose peer is authenticated and has sent its greeting.
pub(crate) struct Greeted {
    socket: TcpStream,
    tls: Connection,
    deadline: Deadline,
    peer: Arc<str>,
    pub(crate) hello: Hello,
}

/// Performs the handshake on the dialling side, which sends its greeting first. The result contains
/// the peer's greeting.
pub(crate) fn dial(
    socket: TcpStream,
    peer: &Arc<str>,
    tls: &Tls,
    hello: &Hello,
    deadline: Deadline,
) -> Result<Greeted> {
    dial_and_say(socket, peer, tls, hello, &[], deadline)
}

/// Performs the handshake on the dialling side. Sends `frames` together with the greeting, without
/// waiting for the peer's greeting.
pub(crate) fn dial_and_say(
    socket: TcpStream,
    peer: &Arc<str>,
    tls: &Tls,
    hello: &Hello,
    frames: &[u8],
    deadline: Deadline,
) -> Result<Greeted> {
    let connection = ClientConnection::new(Arc::clone(&tls.client), tls.name.clone())
        .map_err(|error| not_admitted(peer, &error))?;
    let mut greeted = Greeted {
        socket,
        tls: connection.into(),
        deadline,
        peer: Arc::clone(peer),
        hello: *hello,
    };
    greeted.say(&[&hello.encode(), frames].concat())?;
    greeted.hello = greeted.receive()?;
    Ok(greeted)
}

/// Performs the handshake on the listening side. The result contains the peer's greeting. The
/// caller must then send its own greeting.
pub(crate) fn accept(
    socket: TcpStream,
    peer: &Arc<str>,
    tls: &Tls,
    deadline: Deadline,
) -> Result<Greeted> {
    let connection = ServerConnection::new(Arc::clone(&tls.server))
        .map_err(|error| not_admitted(peer, &error))?;
    let mut greeted = Greeted {
        socket,
        tls: connection.into(),
        deadline,
        peer: Arc::clone(peer),
        hello: Hello {
            session: [0; 16],
            received: 0,
            host: 0,
            keep_alive_ms: 0,
            data: 0,
            refusal: 0,
            attempt: 0,
        },
    };
    let bytes = greeted.receive_bytes()?;
    match Hello::decode(&bytes) {
        Ok(hello) => greeted.hello = hello,
        Err(why) => {
            if let NoHello::Version(_) = why {
                // Send this side's version, so that the peer can report the mismatch too.
                let refusal = refusal::VERSION;
                let _ = greeted.send(&Hello {
                    refusal,
                    ..greeted.hello
                });
            }
            return Err(not_admitted(peer, &why));
        }
    }
    Ok(greeted)
}

impl Greeted {
    pub(crate) fn send(&mut self, hello: &Hello) -> Result<()> {
        self.say(&hello.encode())
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        self.try_say(bytes)
            .map_err(|error| cut_off(&self.peer, error))
    }

    fn try_say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.tls.writer().write_all(bytes)?;
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.exchange()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Hello> {
        let bytes = self.receive_bytes()?;
        Hello::decode(&bytes).map_err(|why| not_admitted(&self.peer, &why))
    }

    fn receive_bytes(&mut self) -> Result<[u8; HELLO_SIZE]> {
        self.try_receive()
            .map_err(|error| cut_off(&self.peer, error))
    }

    fn try_receive(&mut self) -> std::io::Result<[u8; HELLO_SIZE]> {
        let mut bytes = [0; HELLO_SIZE];
        let mut len = 0;
        while len < HELLO_SIZE {
            match self.tls.reader().read(&mut bytes[len..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => len += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.exchange()?,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Sends and receives the pending records of the TLS handshake.
    fn exchange(&mut self) -> std::io::Result<()> {
        let mut limited = Limited {
            socket: &self.socket,
            deadline: self.deadline,
        };
        match self.tls.complete_io(&mut limited) {
            Ok((0, 0)) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                // A socket with a timeout returns this error after the timeout.
                ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
                _ => Err(error),
            },
        }
    }

    pub(crate) fn into_channel(self) -> Result<Channel> {
        Channel::new(self.socket, self.tls).map_err(Error::os("preparing a connection"))
    }
}

const CUT_OFF: &str = "it ended the handshake";

fn cut_off(peer: &Arc<str>, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe => not_admitted(peer, &format_args!("{CUT_OFF} ({error})")),
        _ => not_admitted(peer, &error),
    }
}

/// Returns `true` if the peer closed the connection during the handshake. A listener does this if
/// it does not admit the host, or if it has too many handshakes.
pub(crate) fn was_cut_off(error: &Error) -> bool {
    matches!(error, Error::NotAdmitted { why, .. } if why.starts_with(CUT_OFF))
}

pub(crate) fn not_admitted(peer: &Arc<str>, why: &dyn std::fmt::Display) -> Error {
    Error::NotAdmitted {
        peer: Arc::clone(peer),
        why: why.to_string().into(),
    }
}
