//! Commands about queues.

use crate::request::{Answer, Complaint, Request, done, one, read};
use crate::state::{Object, State};
use crosshandle::{Command, QueueOrder};
use std::sync::Arc;

pub(crate) fn execute(state: &Arc<State>, request: &Request<'_>) -> Option<Answer> {
    Some(match request.command {
        "queue" => create(state, request),
        "submit" => submit(state, request),
        "finish" => finish(state, request),
        _ => return None,
    })
}

/// `queue NAME [order=free]`
fn create(state: &State, request: &Request<'_>) -> Answer {
    let order = match request.option("order") {
        Some("free") => QueueOrder::OutOfOrder,
        _ => QueueOrder::InOrder,
    };
    let queue = state.context(request)?.create_queue_with(order)?;
    state.put(request.word(0)?, Object::Queue(Arc::new(queue)));
    done()
}

/// `submit QUEUE barrier | copy TO FROM | fill TO BYTE | fail MESSAGE | panic`, each with
/// `[after=EVENT] [after-value=EVENT:VALUE] [signal=EVENT]`
fn submit(state: &State, request: &Request<'_>) -> Answer {
    let queue = state.queue(request.word(0)?)?;
    let mut command = match request.word(1)? {
        "barrier" => Command::barrier(),
        "copy" => Command::copy(
            state.memory(request.word(2)?)?.all(),
            state.memory(request.word(3)?)?.all(),
        )?,
        "fill" => Command::fill(state.memory(request.word(2)?)?.all(), &[request.parsed(3)?])?,
        "fail" => {
            let message = request.word(2)?.to_owned();
            Command::call(move || Err::<(), _>(message))
        }
        "panic" => Command::call(|| -> Result<(), String> { panic!("as asked") }),
        other => return Err(Complaint::usage(format!("no such work: {other}"))),
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

/// `finish QUEUE MS` → whether it is idle after that
fn finish(state: &State, request: &Request<'_>) -> Answer {
    let queue = state.queue(request.word(0)?)?;
    queue.finish_timeout(request.timeout(1)?)?;
    one(queue.is_idle())
}
