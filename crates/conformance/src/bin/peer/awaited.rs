//! Commands for awaited signals.

use crate::request::{CommandError, Reply, Request, done, one, read};
use crate::state::PeerState;
use crosshandle::{Error, Event, Notifier};
use crosshandle_conformance::{block_on, is_pending, next, slowdown};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "await" => await_value(state, request),
        "await-callback" => await_callback(state, request),
        "await-notified" => await_notified(state, request),
        "await-stream" => await_stream(state, request),
        "await-dropped" => await_dropped(state, request),
        _ => return None,
    })
}

/// Returns the time limit of commands without one.
fn limit() -> Duration {
    Duration::from_secs(30) * slowdown()
}

fn late(what: &str) -> CommandError {
    let CommandError { kind, message } = Error::TimedOut("awaiting signals").into();
    let message = format!("{what}: {message}");
    CommandError { kind, message }
}

/// `await NAME VALUE`: awaits a signal through a future
fn await_value(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    block_on(event.reached(request.parsed(1)?), limit()).ok_or_else(|| late("a future"))??;
    done()
}

/// `await-callback NAME VALUE`: awaits a signal through a function
fn await_callback(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    let (tell, told) = channel();
    let subscription = event.on_signal(request.parsed(1)?, move |result| {
        // The receiver is gone if the call is late.
        let _ = tell.send(result);
    })?;
    told.recv_timeout(limit())
        .map_err(|_| late("a function"))??;
    drop(subscription);
    done()
}

/// Parses events with values.
fn values(state: &PeerState, words: &[&str]) -> Result<Vec<(Event, u64)>, CommandError> {
    let value = |word: &&str| {
        let (name, value) = word
            .split_once(':')
            .ok_or_else(|| CommandError::usage("no value"))?;
        Ok((state.event(name)?, read(value)?))
    };
    words.iter().map(value).collect()
}

/// `await-notified MS NAME:VALUE…`: awaits signals through one notifier, until the first error →
/// indices in the order of the notifications
fn await_notified(state: &PeerState, request: &Request<'_>) -> Reply {
    let end = Instant::now() + request.timeout(0)?;
    let awaited = values(state, request.words_from(1))?;
    let notifier = Notifier::new()?;
    for (place, (event, value)) in (0..).zip(&awaited) {
        notifier.add(event, *value, place)?;
    }
    let mut places = Vec::new();
    while places.len() < awaited.len() {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| CommandError::usage("too long"))?;
        let mut files = [PollFd::new(&notifier, PollFlags::IN)];
        match poll(&mut files, Some(&left)) {
            Ok(0) => return Err(late(&format!("a notifier after {}", places.len()))),
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled.map_err(std::io::Error::from)?,
        };
        while let Some(notification) = notifier.next() {
            notification.result?;
            places.push(notification.token.to_string());
        }
    }
    Ok(places)
}

/// `await-stream NAME AFTER LAST`: awaits a stream, whose values grow → the number of values
fn await_stream(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    let (mut reached, last): (u64, u64) = (request.parsed(1)?, request.parsed(2)?);
    let mut values = event.values(reached);
    let mut items = 0;
    while reached < last {
        let item = next(&mut values, limit()).ok_or_else(|| late("a stream"))?;
        let value = item.ok_or_else(|| CommandError::usage("an end without an error"))??;
        if value <= reached {
            return Err(CommandError::usage(format!("{value} after {reached}")));
        }
        reached = value;
        items += 1;
    }
    one(items)
}

/// `await-dropped NAME LAST`: starts futures of the next value and of the one after it, and drops
/// them, until the event has reached `LAST` → the number of futures that were pending
fn await_dropped(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    let last: u64 = request.parsed(1)?;
    let end = Instant::now() + limit();
    let mut dropped = 0;
    while event.completed() < last {
        if Instant::now() > end {
            return Err(late("a last value"));
        }
        let value = event.completed() + 1;
        let [mut first, mut second] = [value, value + 1].map(|value| event.reached(value));
        dropped += u64::from(is_pending(&mut first)) + u64::from(is_pending(&mut second));
    }
    one(dropped)
}
