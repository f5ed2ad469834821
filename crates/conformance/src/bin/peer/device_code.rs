//! Commands for kernels that signal events and wait for them.

use crate::request::{Reply, Request, done};
use crate::state::{Object, PeerState};
use crosshandle_conformance::DeviceCode;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "load-device-code" => load(state, request),
        "start-turns" => start_turns(state, request),
        "start-signals" => start_signals(state, request),
        "start-items" => start_items(state, request),
        "start-litmus" => start_litmus(state, request),
        "end-device-code" => end(state, request),
        _ => return None,
    })
}

/// `load-device-code NAME`
fn load(state: &PeerState, request: &Request<'_>) -> Reply {
    let code = DeviceCode::load(&state.context(request)?)?;
    state.put(request.word(0)?, Object::DeviceCode(Arc::new(code)));
    done()
}

/// `start-turns NAME OURS THEIRS ROUNDS TIMEOUT_MS`: the kernel waits first
fn start_turns(state: &PeerState, request: &Request<'_>) -> Reply {
    let code = state.device_code(request.word(0)?)?;
    let (ours, theirs) = (
        state.event(request.word(1)?)?,
        state.event(request.word(2)?)?,
    );
    let timeout = request.timeout(4)?;
    code.start_turns(&ours, &theirs, request.parsed(3)?, false, timeout)?;
    done()
}

/// `start-signals NAME EVENT SUCCESSES FAILURES PAUSE_US`
fn start_signals(state: &PeerState, request: &Request<'_>) -> Reply {
    let code = state.device_code(request.word(0)?)?;
    let event = state.event(request.word(1)?)?;
    let pause = Duration::from_micros(request.parsed(4)?);
    code.start_signals(&event, request.parsed(2)?, request.parsed(3)?, pause)?;
    done()
}

/// `start-litmus NAME OURS THEIRS MEMORY ROUNDS TIMEOUT_MS`: the code has side 1
fn start_litmus(state: &PeerState, request: &Request<'_>) -> Reply {
    let code = state.device_code(request.word(0)?)?;
    let (ours, theirs) = (
        state.event(request.word(1)?)?,
        state.event(request.word(2)?)?,
    );
    let memory = state.memory(request.word(3)?)?;
    let timeout = request.timeout(5)?;
    code.start_litmus([&ours, &theirs], &memory, 1, request.parsed(4)?, timeout)?;
    done()
}

/// `start-items NAME FULL EMPTY MEMORY DEPTH PRODUCE ITEMS TIMEOUT_MS`: the code sends items if
/// PRODUCE is 1, and receives them if it is 0
fn start_items(state: &PeerState, request: &Request<'_>) -> Reply {
    let code = state.device_code(request.word(0)?)?;
    let (full, empty) = (
        state.event(request.word(1)?)?,
        state.event(request.word(2)?)?,
    );
    let (memory, timeout) = (state.memory(request.word(3)?)?, request.timeout(7)?);
    let channel = code.channel(&full, &empty, &memory, request.parsed(4)?)?;
    let is_producer = request.parsed::<u64>(5)? != 0;
    code.start_items(channel, is_producer, request.parsed(6)?, timeout)?;
    done()
}

/// `end-device-code NAME MS` → status, rounds
fn end(state: &PeerState, request: &Request<'_>) -> Reply {
    let result = state
        .device_code(request.word(0)?)?
        .end(request.timeout(1)?)?;
    Ok(vec![result.status.to_string(), result.rounds.to_string()])
}
