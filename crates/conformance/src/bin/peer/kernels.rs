//! Commands for kernels.

use crate::request::{CommandError, Reply, Request, done};
use crate::state::{Object, PeerState};
use crosshandle::Command;
use crosshandle_conformance::Kernels;
use std::sync::Arc;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "load-kernels" => load(state, request),
        _ => return None,
    })
}

/// `load-kernels NAME`
fn load(state: &PeerState, request: &Request<'_>) -> Reply {
    let kernels = Kernels::load(&state.context(request)?)?;
    state.put(request.word(0)?, Object::Kernels(Arc::new(kernels)));
    done()
}

/// `fill-words | scale KERNELS MEMORY NUMBER`: a command of a queue, whose arguments start at word
/// `at`
pub(crate) fn launch(
    state: &PeerState,
    request: &Request<'_>,
    at: usize,
) -> Result<Command, CommandError> {
    let kernels = state.kernels(request.word(at + 1)?)?;
    let memory = state.memory(request.word(at + 2)?)?;
    let number = request.parsed(at + 3)?;
    Ok(match request.word(at)? {
        "scale" => kernels.scale(&memory.all(), number)?,
        _ => kernels.fill(&memory.all(), number)?,
    })
}

/// `fault KERNELS`: a command of a queue, which runs a kernel that writes to an unmapped address
pub(crate) fn fault(state: &PeerState, request: &Request<'_>) -> Result<Command, CommandError> {
    let kernels = state.kernels(request.word(2)?)?;
    Ok(kernels.fault()?)
}
