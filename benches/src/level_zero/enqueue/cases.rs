//! What is submitted, and when.

use crate::level_zero::rows::{CLOSE, row};
use crate::report::row::{RowSpec, Target};

const SIGNAL: &str = "zeCommandListAppendSignalEvent";
const WAIT: &str = "zeCommandListAppendWaitOnEvents";
const COPY: &str = "zeCommandListAppendMemoryCopy with an event";
const COPY_ALONE: &str = "zeCommandListAppendMemoryCopy";
const FILL: &str = "zeCommandListAppendMemoryFill with an event";
const FILL_ALONE: &str = "zeCommandListAppendMemoryFill";
const COPY_SIGNAL: &str = "zeCommandListAppendMemoryCopy with the event";

#[derive(Clone, Copy, PartialEq)]
pub(super) enum What {
    Signal,
    /// Of an event that no device waits for, in no process.
    SignalHosts,
    Wait,
    Copy,
    Fill,
    CopySignal,
    CopySignalHosts,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum When {
    /// The device has nothing else to do.
    Idle,
    /// The same, and everything was finished a moment ago: one command.
    FirstIdle,
    /// It is at a longer command meanwhile.
    Busy,
    /// The same, and nothing was submitted for a while: one command, which finds cold caches.
    First,
}

impl When {
    pub(super) fn is_busy(self) -> bool {
        matches!(self, Self::Busy | Self::First)
    }
}

/// With the raw call as it tells nobody when it is done, where there is a choice.
pub(super) struct Case {
    pub(super) row: RowSpec,
    pub(super) what: What,
    pub(super) when: When,
    pub(super) raw_has_event: bool,
}

const fn case(row: RowSpec, what: What, when: When) -> Case {
    Case {
        row,
        what,
        when,
        raw_has_event: true,
    }
}

const fn alone(row: RowSpec, what: What, when: When) -> Case {
    Case {
        raw_has_event: false,
        ..case(row, what, when)
    }
}

pub(super) const CASES: [Case; 23] = [
    case(
        row(
            "level-zero-enqueue.signal",
            "submit a signal",
            SIGNAL,
            CLOSE,
        ),
        What::Signal,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.signal-busy",
            "submit a signal, device busy",
            SIGNAL,
            CLOSE,
        ),
        What::Signal,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.signal-first",
            "submit a signal, the first after a pause",
            SIGNAL,
            CLOSE,
        ),
        What::Signal,
        When::First,
    ),
    case(
        row(
            "level-zero-enqueue.hosts",
            "submit a signal that only hosts wait for",
            SIGNAL,
            CLOSE,
        ),
        What::SignalHosts,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.hosts-busy",
            "submit a signal that only hosts wait for, device busy",
            SIGNAL,
            CLOSE,
        ),
        What::SignalHosts,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.wait-done",
            "submit a wait for what has happened",
            WAIT,
            CLOSE,
        ),
        What::Wait,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.wait-busy",
            "submit a wait for another queue's signal, not there yet",
            WAIT,
            CLOSE,
        ),
        What::Wait,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.wait-first",
            "submit a wait, the first after a pause",
            WAIT,
            CLOSE,
        ),
        What::Wait,
        When::First,
    ),
    case(
        row("level-zero-enqueue.copy", "submit a copy", COPY, CLOSE),
        What::Copy,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-busy",
            "submit a copy, device busy",
            COPY,
            CLOSE,
        ),
        What::Copy,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-finished",
            "submit a copy, the first after all was finished",
            COPY,
            CLOSE,
        ),
        What::Copy,
        When::FirstIdle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-first",
            "submit a copy, the first after a pause",
            COPY,
            CLOSE,
        ),
        What::Copy,
        When::First,
    ),
    alone(
        row(
            "level-zero-enqueue.copy-alone",
            "submit a copy, whose end the raw call tells nobody",
            COPY_ALONE,
            Target::None,
        ),
        What::Copy,
        When::Idle,
    ),
    case(
        row("level-zero-enqueue.fill", "submit a fill", FILL, CLOSE),
        What::Fill,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.fill-busy",
            "submit a fill, device busy",
            FILL,
            CLOSE,
        ),
        What::Fill,
        When::Busy,
    ),
    alone(
        row(
            "level-zero-enqueue.fill-alone",
            "submit a fill, whose end the raw call tells nobody",
            FILL_ALONE,
            Target::None,
        ),
        What::Fill,
        When::Idle,
    ),
    alone(
        row(
            "level-zero-enqueue.fill-alone-busy",
            "submit a fill, whose end the raw call tells nobody, device busy",
            FILL_ALONE,
            Target::None,
        ),
        What::Fill,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal",
            "submit a copy that signals",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignal,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-busy",
            "submit a copy that signals, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignal,
        When::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-finished",
            "submit a copy that signals, the first after all was finished",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignal,
        When::FirstIdle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-first",
            "submit a copy that signals, the first after a pause",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignal,
        When::First,
    ),
    case(
        row(
            "level-zero-enqueue.copy-hosts",
            "submit a copy with a signal that only hosts wait for",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignalHosts,
        When::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-hosts-busy",
            "submit a copy with a signal that only hosts wait for, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        What::CopySignalHosts,
        When::Busy,
    ),
];

/// The rows of all cases.
pub(super) const ROWS: &[RowSpec] = &{
    let mut rows = [CASES[0].row; CASES.len()];
    let mut index = 0;
    while index < rows.len() {
        rows[index] = CASES[index].row;
        index += 1;
    }
    rows
};
