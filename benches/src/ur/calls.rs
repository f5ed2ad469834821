//! The cost of calls within one process: signal, wait, get and put.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use crosshandle::Context;

use super::loader::Runtime;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::{collect_timed, per_operation};
use crate::host::ours;
use crate::report::row::{RowSpec, Target};

const SIGNAL: &str = "ur-calls.signal";
const WAIT: &str = "ur-calls.wait";
const GET: &str = "ur-calls.memory.get";
const PUT: &str = "ur-calls.memory.put";
const EVENT_GET: &str = "ur-calls.event.get";
const EVENT_PUT: &str = "ur-calls.event.put";

const NONE: &str = "none";

/// Maximum time that the loader and the adapter may add to a call of the library, in nanoseconds.
const MAX_ADDED_NS: f64 = 30.0;

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "ur-calls",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(
            SIGNAL,
            "urEnqueueEventsWaitWithBarrierExt, signal",
            "Queue::signal",
        ),
        row(WAIT, "urEventWait, signalled", "Event::wait"),
        row(GET, "urIPCGetMemHandleExp", "Context::memory_handle"),
        row(PUT, "urIPCPutMemHandleExp", NONE),
        row(EVENT_GET, "urIPCGetEventHandleExp", "Event::handle"),
        row(EVENT_PUT, "urIPCPutEventHandleExp", NONE),
    ],
    leader: run_leader,
    follower: no_follower,
};

const fn row(id: &'static str, what: &'static str, raw: &'static str) -> RowSpec {
    RowSpec::time(id, what, raw, Target::AtMostOverRaw(MAX_ADDED_NS))
}

const OPERATIONS_PER_BATCH: usize = 10_000;
/// Number of handles that are obtained before they are put back.
const HANDLES_PER_BATCH: usize = 1_000;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let runtime = Runtime::start()?;
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(20, 5);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let mut figures = Recorder::default();
                match side {
                    Side::Ours => through_loader(&runtime, &mut figures)?,
                    Side::Raw => directly(&context, &mut figures)?,
                }
                // The first batch of a side finds the other side's data in the caches.
                if batch > 0 {
                    recorder.absorb(figures);
                }
            }
        }
    }
    Ok(recorder.finish())
}

/// Measures one batch through the loader and the adapter.
fn through_loader(runtime: &Runtime, recorder: &mut Recorder) -> Result<()> {
    let mut event = runtime.create_event()?;
    let memory = runtime.allocate(4096)?;
    let mut push = |row, figure| recorder.push(row, Side::Ours, figure);
    push(
        SIGNAL,
        per_operation(OPERATIONS_PER_BATCH, || black_box(&mut event).signal())?,
    );
    push(
        WAIT,
        per_operation(OPERATIONS_PER_BATCH, || black_box(&event).wait())?,
    );

    let cycle = |get: &dyn Fn() -> Result<_>, put: &dyn Fn(_) -> Result<()>| -> Result<_> {
        let (handles, got) = collect_timed((0..HANDLES_PER_BATCH).map(|_| get()))?;
        let (_, put) = collect_timed(handles.into_iter().map(put))?;
        Ok((got, put))
    };
    let memory = cycle(&|| runtime.get_memory(black_box(memory)), &|data| {
        runtime.put_memory(data)
    })?;
    let event = cycle(&|| black_box(&event).get(), &|data| runtime.put_event(data))?;
    push(GET, memory.0);
    push(PUT, memory.1);
    push(EVENT_GET, event.0);
    push(EVENT_PUT, event.1);
    Ok(())
}

/// Measures one batch of the library's own calls.
fn directly(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let queue = context.create_queue()?;
    let event = context.create_event()?;
    let memory = context.allocate(4096)?;
    let mut push = |row, figure| recorder.push(row, Side::Raw, figure);
    push(
        SIGNAL,
        per_operation(OPERATIONS_PER_BATCH, || queue.signal(black_box(&event)))?,
    );
    push(
        WAIT,
        per_operation(OPERATIONS_PER_BATCH, || black_box(&event).wait())?,
    );
    let repeat = || 0..HANDLES_PER_BATCH;
    let get = |_| Ok(context.memory_handle(black_box(memory.as_ptr()))?);
    push(GET, collect_timed(repeat().map(get))?.1);
    let get = |_| Ok(black_box(&event).handle()?);
    push(EVENT_GET, collect_timed(repeat().map(get))?.1);
    Ok(())
}
