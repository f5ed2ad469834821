//! Commands for events.

use crate::request::{CommandError, Reply, Request, done, one, read};
use crate::state::{Object, PeerState};
use crosshandle::event::EventSet;
use crosshandle::{Event, EventHandle, EventOptions};
use crosshandle_conformance::slowdown;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "event" => create(state, request),
        "event-handle" => handle(state, request),
        "open-event" => open(state, request),
        "signal" => signal(state, request),
        "signal-value" => signal_value(state, request),
        "value" => value(state, request),
        "status" => status(state, request),
        "wait" => wait(state, request),
        "wait-value" => wait_value(state, request),
        "try-wait" => try_wait(state, request),
        "wait-all" => wait_all(state, request),
        "wait-any" => wait_any(state, request),
        "wait-any-value" => wait_any_value(state, request),
        "ping-pong" => ping_pong(state, request),
        _ => return None,
    })
}

fn options(request: &Request<'_>) -> EventOptions {
    let options = EventOptions::new()
        .profiling(request.option("profiling").is_some())
        .low_power(request.option("low-power").is_some())
        .single_signaller(request.option("single").is_some());
    let options = match request.option("isolated") {
        Some(isolated) => options.isolated(isolated == "yes"),
        None => options,
    };
    match request.option("shareable") {
        Some(shareable) => options.shareable(shareable == "yes"),
        None => options,
    }
}

/// `event NAME [profiling=yes] [low-power=yes] [shareable=yes|no] [isolated=yes] [single=yes]`
fn create(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state
        .context(request)?
        .create_event_with(options(request))?;
    state.put(request.word(0)?, Object::Event(event));
    done()
}

fn handle(state: &PeerState, request: &Request<'_>) -> Reply {
    one(state.event(request.word(0)?)?.handle()?)
}

/// `open-event NAME HANDLE [low-power=yes]`
fn open(state: &PeerState, request: &Request<'_>) -> Reply {
    let handle: EventHandle = request.word(1)?.parse()?;
    let context = state.context(request)?;
    let event = context.open_event_with(&handle, options(request))?;
    state.put(request.word(0)?, Object::Event(event));
    done()
}

/// `signal NAME [COUNT]` → the number of the last signal
fn signal(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    let count: u64 = request.parsed(1).unwrap_or(1);
    let mut number = 0;
    for _ in 0..count {
        number = event.signal()?;
    }
    one(number)
}

fn signal_value(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    event.signal_value(request.parsed(1)?)?;
    done()
}

fn value(state: &PeerState, request: &Request<'_>) -> Reply {
    one(state.event(request.word(0)?)?.submitted())
}

/// `status NAME` → submitted, completed, latest (`pending`, `ok` or an error's kind)
fn status(state: &PeerState, request: &Request<'_>) -> Reply {
    let status = state.event(request.word(0)?)?.status();
    let latest = match status.latest {
        None => "pending".to_owned(),
        Some(Ok(())) => "ok".to_owned(),
        Some(Err(error)) => CommandError::from(error).kind,
    };
    Ok(vec![
        status.submitted.to_string(),
        status.completed.to_string(),
        latest,
    ])
}

/// `wait NAME [MS]`
fn wait(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    if request.words_from(1).is_empty() {
        event.wait()?;
    } else {
        event.wait_timeout(request.timeout(1)?)?;
    }
    done()
}

/// `wait-value NAME VALUE [MS]`
fn wait_value(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    let value = request.parsed(1)?;
    if request.words_from(2).is_empty() {
        event.wait_value(value)?;
    } else {
        event.wait_value_timeout(value, request.timeout(2)?)?;
    }
    done()
}

/// `try-wait NAME [VALUE]` → whether the event is complete
fn try_wait(state: &PeerState, request: &Request<'_>) -> Reply {
    let event = state.event(request.word(0)?)?;
    if request.words_from(1).is_empty() {
        return one(event.try_wait()?);
    }
    one(event.try_wait_value(request.parsed(1)?)?)
}

/// `wait-all MS NAME…`
fn wait_all(state: &PeerState, request: &Request<'_>) -> Reply {
    let timeout = request.timeout(0)?;
    let events = named(state, request.words_from(1))?;
    EventSet::latest(&events).wait_all_timeout(timeout)?;
    done()
}

/// `wait-any MS NAME…` → the index of the event that completed first
fn wait_any(state: &PeerState, request: &Request<'_>) -> Reply {
    let timeout = request.timeout(0)?;
    let events = named(state, request.words_from(1))?;
    one(EventSet::latest(&events).wait_any_timeout(timeout)?)
}

/// `wait-any-value MS NAME:VALUE…` → the index of the event that reached its value first
fn wait_any_value(state: &PeerState, request: &Request<'_>) -> Reply {
    let timeout = request.timeout(0)?;
    let pairs = request.words_from(1).iter().map(|word| {
        let (name, value) = word
            .split_once(':')
            .ok_or_else(|| CommandError::usage("no value"))?;
        Ok((state.event(name)?, read(value)?))
    });
    let pairs = pairs.collect::<Result<Vec<_>, CommandError>>()?;
    let set = EventSet::values(pairs.iter().map(|(event, value)| (event, *value)));
    one(set.wait_any_timeout(timeout)?)
}

fn named(state: &PeerState, names: &[&str]) -> Result<Vec<Event>, CommandError> {
    names.iter().map(|name| state.event(name)).collect()
}

/// `ping-pong PING PONG ROUNDS`: replies to each signal of one event with a signal of the other.
fn ping_pong(state: &PeerState, request: &Request<'_>) -> Reply {
    let ping = state.event(request.word(0)?)?;
    let pong = state.event(request.word(1)?)?;
    for round in 1..=request.parsed(2)? {
        ping.wait_value_timeout(round, Duration::from_secs(10) * slowdown())?;
        pong.signal()?;
    }
    done()
}
