//! A TLS connection over a socket that never blocks: what is to be sent, and frames of what has come.

use super::message::Message;
use crosshandle::handle::Bounded;
use rustls::Connection;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes that are taken from the socket before the messages in them are handled.
const MAX_INPUT: usize = 1 << 20;

/// Bytes that wait for the socket at most, but for one frame: the others wait where they are kept.
const MAX_OUTPUT: usize = 1 << 20;

/// An authenticated connection.
pub(crate) struct Channel {
    socket: TcpStream,
    tls: Connection,
    /// What is to be sent, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    /// What follows the last confirmation in the output, as long as that waits there.
    behind_ack: Option<usize>,
    /// What has come, from `taken` on.
    input: Vec<u8>,
    taken: usize,
    /// Nothing more comes or goes; what has come may still be taken.
    is_over: bool,
}

impl Channel {
    /// Makes a channel of a connection that has shaken hands. What came behind the greeting is in its TLS, and
    /// no descriptor tells of it: [`fill`](Self::fill) must be called before the socket is waited for.
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

    /// Adds a frame to what is to be sent.
    pub(crate) fn queue(&mut self, frame: &[u8]) {
        if self.is_over {
            return;
        }
        self.output.extend_from_slice(frame);
        if let Some(behind) = &mut self.behind_ack {
            *behind += frame.len();
        }
    }

    /// Adds a confirmation, unless the last one still waits to be sent: a side that takes nothing has one at
    /// most. Returns whether it did.
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

    /// Sends what the socket takes. Returns whether something is left. An error ends the channel.
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
            // What was sent goes as soon as it is most of the queue, which may never be empty.
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

    /// Returns whether more is to be [queued](Self::queue) at the moment.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_over && self.output.len() - self.sent < MAX_OUTPUT
    }

    /// Returns whether something waits for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        !self.is_over && (self.tls.wants_write() || self.sent < self.output.len())
    }

    /// Takes what has come, whether or not the socket tells of it. Returns whether anything has. The channel
    /// [is over](Self::is_over) if the other side has hung up, or after an error.
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

    /// Returns whether nothing more comes or goes. What has come can still be taken.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the next frame out of what has come, without its length.
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
