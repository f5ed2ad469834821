//! The importer's side: asks an exporter's broker.

use super::address::{self, PeerPolicy};
use super::protocol::{BadMessage, REPLY_SIZE, Refusal, Reply, Request, Serial};
use crate::error::{Error, Result};
use crate::os::socket::{self, Received};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A connection to the broker of one exporting process.
pub(crate) struct Connection {
    stream: Arc<OwnedFd>,
    /// One question at a time; the number of the last one.
    turn: Mutex<Serial>,
    /// The exporter's process id, for messages.
    pid: u32,
    timeout: Duration,
}

impl Connection {
    /// Connects to exporter `exporter`, found in one of the usual directories or in `directory`.
    pub(crate) fn open(
        exporter: u64,
        pid: u32,
        directory: Option<&Path>,
        policy: &PeerPolicy,
        timeout: Duration,
    ) -> Result<Self> {
        for directory in address::directories(directory) {
            let path = address::socket_path(&directory, exporter);
            let stream = match socket::connect(&path, timeout) {
                Ok(stream) => stream,
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => continue,
                Err(Errno::TIMEDOUT) => return Err(Error::TimedOut("connecting to the exporter")),
                Err(errno) => return Err(Error::os("connecting to the exporter")(errno)),
            };
            // The secret goes only to whom the policy trusts.
            let (uid, is_self) =
                socket::peer(&stream).map_err(Error::os("asking who the exporter is"))?;
            if is_self {
                // One process must not open an arena twice: see `os::lock`.
                return Err(Error::Unsupported(
                    "the handle was made by another copy of crosshandle in this same process; \
                     use the object itself"
                        .into(),
                ));
            }
            if !policy.admits(uid) {
                return Err(Error::NotAdmitted { uid });
            }
            return Ok(Self {
                stream: Arc::new(stream),
                turn: Mutex::default(),
                pid,
                timeout,
            });
        }
        Err(Error::ExporterGone { pid })
    }

    /// The socket, to be watched for a hang-up.
    pub(crate) fn stream(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stream)
    }

    /// Asks, and waits for the answer and its descriptor.
    pub(crate) fn ask(
        &self,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, OwnedFd)> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *turn = turn.wrapping_add(1).max(1);
        self.exchange(request, *turn, descriptor)
    }

    fn exchange(
        &self,
        request: Request,
        serial: Serial,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, OwnedFd)> {
        let gone = || Error::ExporterGone { pid: self.pid };
        let lost = |errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => gone(),
            errno => Error::os("talking to the exporter")(errno),
        };
        let deadline = Instant::now() + self.timeout;
        socket::send(&self.stream, &request.encode(serial), descriptor).map_err(lost)?;
        let mut buffer = [0; REPLY_SIZE];
        let (reply, granted) = loop {
            let late = Error::TimedOut("waiting for the exporter's answer");
            let (len, granted) = match socket::receive_within(&self.stream, &mut buffer) {
                Ok(Received::Message(len, granted)) => (len, granted),
                Ok(Received::HungUp) => return Err(gone()),
                Err(Errno::TIMEDOUT) => return Err(late),
                Err(errno) => return Err(lost(errno)),
            };
            match Reply::decode(&buffer[..len]) {
                // 0: the broker could not even read the question.
                Ok((reply, of)) if of == serial || of == 0 => break (reply, granted),
                // Late: it belongs to a question that was given up.
                Ok(_) if Instant::now() < deadline => {}
                Ok(_) => return Err(late),
                Err(BadMessage::Version) => {
                    return Err(Error::Protocol("it is of another version"));
                }
                Err(BadMessage::Malformed(what)) => return Err(Error::Protocol(what)),
            }
        };
        if let Reply::Refused(refusal) = reply {
            return Err(self.explain(refusal));
        }
        let granted = granted.ok_or(Error::Protocol("it came without a descriptor"))?;
        Ok((reply, granted))
    }

    fn explain(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::BadRequest => Error::Protocol("it did not understand the question"),
            Refusal::Version => Error::Protocol("it is of another version"),
            Refusal::UnknownContext => Error::ExporterGone { pid: self.pid },
            Refusal::NotAdmitted => Error::NotAdmitted {
                uid: rustix::process::geteuid().as_raw(),
            },
            Refusal::Stale => Error::Stale,
            Refusal::ReadOnly => Error::ReadOnly,
            Refusal::NoRoom => Error::LimitReached {
                what: "the exporter has no room for another importer".into(),
                remedy: "close some importers, or raise the exporter's RLIMIT_NOFILE".into(),
            },
        }
    }
}
