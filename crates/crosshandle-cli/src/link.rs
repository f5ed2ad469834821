//! Messages between two processes of this program, over pipes. Each message is one line of JSON.

use crate::failure::{ErrorContext as _, Failure, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum size of a message that a process accepts from another process, in bytes.
///
/// A message contains two handles and a few numbers. Without a limit, another program could fill
/// the memory with a long line.
const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// One end of a pair of pipes.
///
/// If the peer process dies, the kernel closes its end of the pipes, so no call waits for a dead
/// process.
pub(crate) struct Link {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes that were read but not yet returned as a message.
    received: Vec<u8>,
}

impl Link {
    pub(crate) fn new(reader: OwnedFd, writer: OwnedFd) -> Self {
        Self {
            reader,
            writer,
            received: Vec::new(),
        }
    }

    /// Creates the child process's end from its standard input and output, which are pipes.
    pub(crate) fn to_parent() -> Result<Self> {
        let reader = std::io::stdin().as_fd().try_clone_to_owned();
        let writer = std::io::stdout().as_fd().try_clone_to_owned();
        Ok(Self::new(
            reader.context("standard input")?,
            writer.context("standard output")?,
        ))
    }

    pub(crate) fn send(&self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Failure::error(format!("making a message: {error}")))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            match rustix::io::write(&self.writer, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::PIPE) => return Err(peer_ended()),
                Err(errno) => return Err(errno).context("sending a message"),
            }
        }
        Ok(())
    }

    /// Waits for a message, for at most `timeout`.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<T> {
        let line = self.receive_line(Instant::now() + timeout)?;
        serde_json::from_slice(&line).map_err(|error| {
            Failure::error(format!(
                "the other process sent data that is not a message of this program: {error}"
            ))
        })
    }

    fn receive_line(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            if self.received.len() > MESSAGE_MAX_BYTES {
                return Err(Failure::error("the other process sends no messages"));
            }
            self.wait_readable(deadline)?;
            match rustix::io::read(&self.reader, &mut buffer) {
                Ok(0) => return Err(peer_ended()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno).context("receiving a message"),
            }
        }
    }

    fn wait_readable(&self, deadline: Instant) -> Result<()> {
        // A pipe also becomes readable when its other end is closed.
        if wait_readable(&self.reader, deadline)? {
            return Ok(());
        }
        Err(Failure::timed_out(
            "timed out waiting for a message of the other process",
        ))
    }
}

/// Waits until a descriptor is readable. Returns `false` if the deadline passed first.
pub(crate) fn wait_readable(descriptor: impl AsFd, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A time that does not fit into the type is longer than any machine runs, so treat it as no
        // limit.
        let left = Timespec::try_from(left).ok();
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut descriptors, left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("waiting for the other process"),
        }
    }
}

fn peer_ended() -> Failure {
    Failure::peer_died("the other process has ended")
}
