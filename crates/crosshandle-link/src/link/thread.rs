//! The threads of a link. The first handles the peer's messages, and the second opens handles for
//! the peer. On the dialling side, a third thread replaces lost connections.

use super::request::Reply;
use super::session::Session;
use crate::control::handshake;
use crate::control::message::{Failure, Hello, Message, refusal};
use crate::error::{Error, Result};
use crate::tuning::{HANDSHAKE_TIMEOUT, REDIAL_INTERVAL, REDIALS_PER_KEEP_ALIVE};
use crate::wait::poll_since;
use crosshandle::adapter_support::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

/// Starts a thread for a link.
#[expect(
    clippy::disallowed_methods,
    reason = "all threads of a link start here"
)]
pub(crate) fn start(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map(drop)
        .map_err(Error::os("starting a thread"))
}

/// The main function of the link's thread. It exchanges messages with the peer until the link ends.
pub(crate) fn listen(session: &Arc<Session>) {
    let mut used = Instant::now();
    loop {
        if let Err(error) = listen_once(session, &mut used) {
            let says_bye = !matches!(error, Error::Ended { .. });
            let error = match error {
                error @ Error::Ended { .. } => error,
                other => session.ended(other.to_string()),
            };
            session.end(error, says_bye);
            return;
        }
    }
}

/// Handles what has arrived, or sleeps until something arrives. `used` is the time of the last
/// message.
fn listen_once(session: &Arc<Session>, used: &mut Instant) -> Result<()> {
    let agenda = session.agenda()?;
    if agenda.dials {
        let dialler = Arc::clone(session);
        start("xhl-dial", move || dial_again(&dialler))?;
    }
    let mut wake_at = agenda.wake_at;
    if let Some(data) = &session.data {
        let upkeep = data.look_after()?;
        if let Some(address) = upkeep.address {
            session.say_address(address)?;
        }
        if upkeep.has_connected {
            session.note_data_endpoint();
        }
        wake_at = upkeep.wake_at.map_or(wake_at, |at| wake_at.min(at));
    }
    let (socket, wants_write) = {
        let state = session.state();
        match &state.channel {
            // Duplicate the descriptor, because another thread may replace the connection during
            // the poll.
            Some(channel) => (Some(copy(channel)?), state.wants_write()),
            None => (None, false),
        }
    };
    // While no reports may be sent, do not poll the notifier. It keeps the finished signals.
    let tells = match session.has_told_enough() {
        true => PollFlags::empty(),
        false => PollFlags::IN,
    };
    let mut descriptors = vec![
        PollFd::new(session.wake_fd(), PollFlags::IN),
        PollFd::new(&session.notifier, tells),
    ];
    if let Some(socket) = &socket {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, wants_write);
        descriptors.push(PollFd::new(socket, flags));
    }
    if let Some(data) = &session.data {
        descriptors.push(PollFd::new(&**data, PollFlags::IN));
    }
    let left = wake_at.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    let polled = poll_since(*used, || {
        match poll(&mut descriptors, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => None,
            result => Some(result),
        }
    });
    match polled.unwrap_or_else(|| poll(&mut descriptors, Some(&timeout))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::os("polling")(errno)),
    }
    let is_ready = |index: usize| {
        descriptors
            .get(index)
            .is_some_and(|descriptor| !descriptor.revents().is_empty())
    };
    let (is_woken, has_signals, has_socket) =
        (is_ready(0), is_ready(1), socket.is_some() && is_ready(2));
    drop(descriptors);
    if is_woken {
        let _ = rustix::io::read(session.wake_fd(), &mut [0; 8]);
    }
    if has_socket || is_woken {
        *used = Instant::now();
        exchange(session)?;
    }
    if has_signals {
        session.tell_signals();
    }
    Ok(())
}

fn copy(channel: &impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(channel, 0).map_err(Error::os("copying a descriptor"))
}

/// Sends as many bytes as the socket accepts, and handles all received messages.
fn exchange(session: &Session) -> Result<()> {
    session.exchange()?;
    while session.handle_next(|message| handle(session, message))? {}
    Ok(())
}

fn handle(session: &Session, message: Message<'_>) -> Result<()> {
    match message {
        Message::Ack { received } => session.confirmed(received),
        Message::Open {
            request,
            read_only,
            handle,
        } => session.begin_open(request, read_only, handle),
        Message::Close { id } => session.close_served(id),
        Message::Signal { request, id } => session.signal_served(request, id),
        Message::Read {
            request,
            id,
            offset,
            len,
        } => session.read_served(request, id, offset, len),
        Message::Write {
            request,
            id,
            offset,
            bytes,
        } => session.write_served(request, id, offset, bytes),
        Message::WriteAndSignal {
            request,
            id,
            event,
            offset,
            bytes,
        } => session.write_and_signal_served(request, id, event, offset, bytes),
        Message::Memory {
            request,
            id,
            len,
            address,
            staging,
            key,
        } => {
            let key = key.to_vec();
            let reply = Reply::Memory {
                id,
                len,
                address,
                staging,
                key,
            };
            session.replied(request, Ok(reply))
        }
        Message::Event {
            request,
            id,
            completed,
            failures,
        } => {
            let failures = failures.to_vec();
            let reply = Reply::Event {
                id,
                completed,
                failures,
            };
            session.replied(request, Ok(reply))
        }
        Message::OpenName { request, name } => session.begin_open_name(request, name),
        Message::Name {
            request,
            version,
            parts,
        } => {
            let parts = parts.to_vec();
            session.replied(request, Ok(Reply::Name { version, parts }))
        }
        Message::Stage {
            request,
            id,
            into_memory,
            offset,
            at,
            len,
        } => session.stage_served(request, id, into_memory, offset, at, len),
        Message::Done { request, value } => session.replied(request, Ok(Reply::Done(value))),
        Message::Data { request, bytes } => {
            session.replied(request, Ok(Reply::Data(bytes.to_vec())))
        }
        Message::Refused { request, why } => {
            session.replied(request, Err(Error::Refused(why.into())))
        }
        Message::Reached { id, number } => {
            session.with_mirror(id, |mirror| mirror.reach(number));
            Ok(())
        }
        Message::Failed {
            id,
            first,
            count,
            why,
        } => {
            session.with_mirror(id, |mirror| mirror.fail(&Failure { first, count, why }));
            Ok(())
        }
        Message::Abandoned { id } => {
            session.with_mirror(id, |mirror| mirror.abandon());
            Ok(())
        }
        // The link's thread connects to the offered address before it sleeps again.
        Message::Address {
            generation,
            address,
        } => match &session.data {
            Some(data) => data.offer(generation, address),
            None => Err("it sends a data endpoint to a link without one"),
        },
        Message::Bye { why } => {
            return Err(session.ended(format!("the other side closed it: {why}")));
        }
    }
    .map_err(Error::Protocol)
}

/// Dials again until a new connection works or the link ends.
fn dial_again(session: &Arc<Session>) {
    let Some(dial) = &session.dial else { return };
    let hello = Hello {
        session: session.id,
        received: 0,
        host: crosshandle::report::host_identity(),
        keep_alive_ms: session.keep_alive.as_millis() as u32,
        data: session.data.is_some().into(),
        refusal: 0,
        attempt: 0,
    };
    // The timeouts grow up to this value, because the network may have become slower since the link
    // was created.
    let max_timeout = dial
        .timeout
        .max(session.keep_alive / REDIALS_PER_KEEP_ALIVE);
    let mut timeout = dial.timeout;
    loop {
        if session.state().check_alive().is_err() {
            return;
        }
        let attempt = dial.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let address = dial.addresses[attempt as usize % dial.addresses.len()];
        let deadline = Deadline::after(timeout);
        let connect = |hello: &Hello| {
            let socket = connect_to(address, deadline)?;
            let greeted = handshake::dial(socket, &session.peer, &dial.tls, hello, deadline)?;
            match greeted.hello.refusal {
                0 => Ok(greeted),
                reason => Err(refused(&session.peer, reason)),
            }
        };
        match session.resume(connect, attempt, &hello) {
            Ok(()) => break,
            Err(Error::NotAdmitted { why, .. }) if &*why == NO_SESSION => {
                session.end(session.ended(why), false);
                return;
            }
            Err(_) => {
                if deadline.is_over() {
                    timeout = (timeout * 2).min(max_timeout);
                }
                thread::sleep(REDIAL_INTERVAL);
            }
        }
    }
    session.state().is_dialling = false;
    session.wake();
}

pub(crate) fn connect_to(address: SocketAddr, deadline: Deadline) -> Result<TcpStream> {
    loop {
        let left = deadline.remaining_within(HANDSHAKE_TIMEOUT);
        if left.is_zero() {
            return Err(Error::TimedOut("connecting"));
        }
        match TcpStream::connect_timeout(&address, left) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            connected => return connected.map_err(Error::os("connecting to the remote host")),
        }
    }
}

const NO_SESSION: &str = "it has ended the link, or was restarted";

/// Returns the error for a greeting that rejects this side.
pub(crate) fn refused(peer: &Arc<str>, reason: u8) -> Error {
    let why = match reason {
        refusal::NO_SESSION => NO_SESSION,
        refusal::OTHER_DATA => {
            "it uses another transport for memory: choose the same `data` on both sides, UCX or TLS"
        }
        refusal::BUSY => "it accepts no more links at the moment",
        _ => "it refuses for a reason that this version does not know",
    };
    handshake::not_admitted(peer, &why)
}
