//! Commands for kernels.

use crate::request::{Answer, Complaint, Request, done};
use crate::state::{Object, State};
use crosshandle::Command;
use crosshandle_conformance::Kernels;
use std::sync::Arc;

pub(crate) fn execute(state: &Arc<State>, request: &Request<'_>) -> Option<Answer> {
    Some(match request.command {
        "load-kernels" => load(state, request),
        _ => return None,
    })
}

/// `load-kernels NAME`
fn load(state: &State, request: &Request<'_>) -> Answer {
    let kernels = Kernels::load(&state.context(request)?)?;
    state.put(request.word(0)?, Object::Kernels(Arc::new(kernels)));
    done()
}

/// `fill-words | scale KERNELS MEMORY NUMBER`, as a command of a queue, from the word `at` on
pub(crate) fn launch(
    state: &State,
    request: &Request<'_>,
    at: usize,
) -> Result<Command, Complaint> {
    let kernels = state.kernels(request.word(at + 1)?)?;
    let memory = state.memory(request.word(at + 2)?)?;
    let number = request.parsed(at + 3)?;
    Ok(match request.word(at)? {
        "scale" => kernels.scale(&memory.all(), number)?,
        _ => kernels.fill(&memory.all(), number)?,
    })
}

/// `fault KERNELS`, as a command of a queue: a kernel that writes to an address without memory
pub(crate) fn fault(state: &State, request: &Request<'_>) -> Result<Command, Complaint> {
    let kernels = state.kernels(request.word(2)?)?;
    Ok(kernels.fault()?)
}
