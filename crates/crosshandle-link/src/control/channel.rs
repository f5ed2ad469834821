//! A TLS connection over a nonblocking socket. It queues output, and splits input into frames.

use super::message::Message;
use crosshandle::handle::Bounded;
use rustls::Connection;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Maximum number of bytes that are read from the socket before the messages in them are handled.
const MAX_INPUT: usize = 1 << 20;

/// Number of unsent bytes at which the channel accepts no further frames. They stay in the outbox.
const MAX_OUTPUT: usize = 1 << 20;

/// A connection after the TLS handshake, whose peer is authenticated.
pub(crate) struct Channel {
    socket: TcpStream,
    tls: Connection,
    /// Frames to send. The first `sent` bytes were sent already.
    output: Vec<u8>,
    sent: usize,
    /// If `output` contains an unsent confirmation, the number of bytes that follow it.
    behind_ack: Option<usize>,
    /// Received bytes. The first `taken` bytes were taken as frames already.
    input: Vec<u8>,
    taken: usize,
    /// Whether sending and receiving have ended. Frames that were received earlier can still be
    /// taken.
    is_over: bool,
}

impl Channel {
    /// Creates a channel from a connection after its handshake. The caller must call
    /// [`fill`](Self::fill) before it waits for the socket. Bytes that arrived together with the
    /// greeting are already in the TLS state, so the socket does not become readable because of
    /// them.
    pub(crate) fn new(socket: TcpStream, mut tls: Connection) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        tls.set_buffer_limit(Some(256 << 10));
        Ok(Self {
            socket,
            tls,
            output: Vec::new(),
            sent: 0,
            behind_ack: None,
            input: Vec::new(),
            taken: 0,
            is_over: false,
        })
    }

    /// Adds a frame to the output.
    pub(crate) fn queue(&mut self, frame: &[u8]) {
        if self.is_over {
            return;
        }
        self.output.extend_from_slice(frame);
        if let Some(behind) = &mut self.behind_ack {
            *behind += frame.len();
        }
    }

    /// Adds a confirmation, unless an earlier confirmation is still unsent. Therefore at most one
    /// confirmation is queued if the peer does not read. Returns `true` if the confirmation was
    /// added.
    pub(crate) fn queue_ack(&mut self, frame: &[u8]) -> bool {
        if self.is_over || self.behind_ack.is_some() {
            return false;
        }
        self.queue(frame);
        self.behind_ack = Some(0);
        true
    }

    fn note_taken(&mut self) {
        let left = self.output.len() - self.sent;
        self.behind_ack = self.behind_ack.filter(|behind| left > *behind);
    }

    /// Sends as many queued bytes as the socket accepts. Returns `true` if unsent bytes remain.
    /// After an error, the channel [is over](Self::is_over).
    pub(crate) fn flush(&mut self) -> std::io::Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        let flushed = self.try_flush();
        self.is_over |= flushed.is_err();
        flushed
    }

    fn try_flush(&mut self) -> std::io::Result<bool> {
        loop {
            if self.sent < self.output.len() {
                self.sent += self.tls.writer().write(&self.output[self.sent..])?;
                self.note_taken();
            }
            // Remove sent bytes when they are at least half of the output. The output may never
            // become empty, so do not wait for that.
            if 2 * self.sent >= self.output.len() {
                self.output.drain(..std::mem::take(&mut self.sent));
            }
            if !self.tls.wants_write() {
                return Ok(false);
            }
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns `true` if more frames may be [queued](Self::queue) now.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_over && self.output.len() - self.sent < MAX_OUTPUT
    }

    /// Returns `true` if unsent bytes remain.
    pub(crate) fn wants_write(&self) -> bool {
        !self.is_over && (self.tls.wants_write() || self.sent < self.output.len())
    }

    /// Receives all bytes that have arrived, and returns `true` if there were any. If the peer has
    /// closed the connection or an error occurs, the channel [is over](Self::is_over).
    pub(crate) fn fill(&mut self) -> bool {
        self.input.drain(..std::mem::take(&mut self.taken));
        let before = self.input.len();
        self.is_over |= self.try_fill().is_err();
        self.input.len() > before
    }

    fn try_fill(&mut self) -> std::io::Result<()> {
        self.take_decrypted()?;
        while !self.is_over && self.input.len() < MAX_INPUT {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => self.is_over = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.take_decrypted()?;
        }
        Ok(())
    }

    fn take_decrypted(&mut self) -> std::io::Result<()> {
        let state = self
            .tls
            .process_new_packets()
            .map_err(std::io::Error::other)?;
        let more = Bounded::<MAX_INPUT>::new(state.plaintext_bytes_to_read());
        let more = more.and_then(Bounded::zeros);
        let mut more = more.ok_or(ErrorKind::InvalidData)?;
        self.tls.reader().read_exact(&mut more)?;
        self.input.append(&mut more);
        Ok(())
    }

    /// Returns `true` if sending and receiving have ended. Frames that were received earlier can
    /// still be taken.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the next received frame, without its length field. Returns `None` if no complete frame
    /// has arrived.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Vec<u8>>, &'static str> {
        let rest = &self.input[self.taken..];
        let Some(len) = Message::frame_len(rest)? else {
            return Ok(None);
        };
        let Some(frame) = rest.get(super::message::PREFIX..len) else {
            return Ok(None);
        };
        let frame = frame.to_vec();
        self.taken += len;
        Ok(Some(frame))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
