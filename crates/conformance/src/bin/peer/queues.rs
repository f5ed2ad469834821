//! Commands for queues.

use crate::graphs;
use crate::kernels;
use crate::request::{CommandError, Reply, Request, done, list, one, read};
use crate::state::{Object, PeerState};
use crosshandle::{
    Command, Memory, MemoryRange, QueueOrder,
    memory::{Pitches, Region},
};
use std::sync::Arc;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "queue" => create(state, request),
        "submit" => submit(state, request),
        "finish" => finish(state, request),
        _ => return None,
    })
}

/// `queue NAME [order=free]`
fn create(state: &PeerState, request: &Request<'_>) -> Reply {
    let order = match request.option("order") {
        Some("free") => QueueOrder::OutOfOrder,
        _ => QueueOrder::InOrder,
    };
    let queue = state.context(request)?.create_queue_with(order)?;
    state.put(request.word(0)?, Object::Queue(Arc::new(queue)));
    done()
}

/// `submit QUEUE COMMAND`, where a command is `barrier`, `copy TO FROM`, `fill TO BYTE`,
/// `copy-rect …`, `fill-2d …`, `fail MESSAGE`, `panic`, `scale …`, `fill-words …`, `fault …` or
/// `run GRAPH`. Each accepts `[after=EVENT] [after-value=EVENT:VALUE] [signal=EVENT]`.
fn submit(state: &PeerState, request: &Request<'_>) -> Reply {
    let queue = state.queue(request.word(0)?)?;
    let mut command = match request.word(1)? {
        "barrier" => Command::barrier(),
        "copy" => Command::copy(
            state.memory(request.word(3)?)?.all(),
            state.memory(request.word(2)?)?.all(),
        )?,
        "fill" => Command::fill(state.memory(request.word(2)?)?.all(), &[request.parsed(3)?])?,
        "scale" | "fill-words" => kernels::launch(state, request, 1)?,
        "run" => graphs::run(state, request)?,
        "fault" => kernels::fault(state, request)?,
        "copy-rect" => copy_rect(state, request)?,
        "fill-2d" => fill_2d(state, request)?,
        "fail" => {
            let message = request.word(2)?.to_owned();
            Command::call(move || Err::<(), _>(message))
        }
        "panic" => Command::call(|| -> Result<(), String> { panic!("as asked") }),
        other => return Err(CommandError::usage(format!("no such work: {other}"))),
    };
    if let Some(event) = request.option("after") {
        command = command.after(&state.event(event)?);
    }
    if let Some((event, value)) = request
        .option("after-value")
        .and_then(|o| o.split_once(':'))
    {
        command = command.after_value(&state.event(event)?, read(value)?);
    }
    if let Some(event) = request.option("signal") {
        command = command.signal(&state.event(event)?);
    }
    queue.submit(command)?;
    done()
}

/// `copy-rect TO FROM WIDTH,ROWS,SLICES OFFSET,ROW,SLICE OFFSET,ROW,SLICE`: the region, then the
/// offset and the pitches in the destination and in the source
fn copy_rect(state: &PeerState, request: &Request<'_>) -> Result<Command, CommandError> {
    let [width, rows, slices] = list(request.word(4)?)?;
    let [to_offset, to_row, to_slice] = list(request.word(5)?)?;
    let [from_offset, from_row, from_slice] = list(request.word(6)?)?;
    Ok(Command::copy_rect(
        from_offset_on(&*state.memory(request.word(3)?)?, from_offset)?,
        Pitches {
            row: from_row,
            slice: from_slice,
        },
        from_offset_on(&*state.memory(request.word(2)?)?, to_offset)?,
        Pitches {
            row: to_row,
            slice: to_slice,
        },
        Region {
            width,
            rows,
            slices,
        },
    )?)
}

/// `fill-2d TO OFFSET,PITCH,WIDTH,ROWS BYTE,…`
fn fill_2d(state: &PeerState, request: &Request<'_>) -> Result<Command, CommandError> {
    let to = state.memory(request.word(2)?)?;
    let [offset, pitch, width, rows] = list(request.word(3)?)?;
    let bytes: Result<Vec<u8>, _> = request.word(4)?.split(',').map(read).collect();
    let to = from_offset_on(&to, offset)?;
    Ok(Command::fill_2d(to, pitch, width, rows, &bytes?)?)
}

fn from_offset_on(memory: &Memory, offset: usize) -> Result<MemoryRange, CommandError> {
    Ok(memory.range(offset..)?)
}

/// `finish QUEUE MS` → whether the queue is idle afterwards
fn finish(state: &PeerState, request: &Request<'_>) -> Reply {
    let queue = state.queue(request.word(0)?)?;
    queue.finish_timeout(request.timeout(1)?)?;
    one(queue.is_idle())
}
