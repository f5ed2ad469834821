//! The commands that are submitted, the state of the device meanwhile, and their rows.

use crate::level_zero::rows::{CLOSE, row};
use crate::report::row::{RowSpec, Target};

const SIGNAL: &str = "zeCommandListAppendSignalEvent";
const WAIT: &str = "zeCommandListAppendWaitOnEvents";
const COPY: &str = "zeCommandListAppendMemoryCopy with an event";
const COPY_ALONE: &str = "zeCommandListAppendMemoryCopy";
const FILL: &str = "zeCommandListAppendMemoryFill with an event";
const FILL_ALONE: &str = "zeCommandListAppendMemoryFill";
const COPY_SIGNAL: &str = "zeCommandListAppendMemoryCopy with the event";

/// Command that a case submits.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Submission {
    Signal,
    /// Signal of an event for which only hosts wait.
    SignalHosts,
    Wait,
    Copy,
    Fill,
    /// Copy that signals an event for which devices wait.
    CopySignal,
    /// Copy that signals an event for which only hosts wait.
    CopySignalHosts,
}

/// State of the device while a case's commands are submitted.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum DeviceLoad {
    /// The device is idle.
    Idle,
    /// The device has just finished all commands, and one command is submitted.
    FirstIdle,
    /// The device executes a long command.
    Busy,
    /// The device executes a long command, and one command is submitted after a pause, with cold
    /// caches.
    First,
}

impl DeviceLoad {
    /// Returns whether the device executes a long command.
    pub(super) fn is_busy(self) -> bool {
        matches!(self, Self::Busy | Self::First)
    }
}

/// One row, and the commands that it measures.
pub(super) struct Case {
    pub(super) row: RowSpec,
    pub(super) submission: Submission,
    pub(super) load: DeviceLoad,
    /// True if the raw call signals an event at its end, where it has the choice.
    pub(super) raw_has_event: bool,
}

/// Makes a case whose raw call signals an event at its end.
const fn case(row: RowSpec, submission: Submission, load: DeviceLoad) -> Case {
    Case {
        row,
        submission,
        load,
        raw_has_event: true,
    }
}

/// Makes a case whose raw call signals no event.
const fn alone(row: RowSpec, submission: Submission, load: DeviceLoad) -> Case {
    Case {
        raw_has_event: false,
        ..case(row, submission, load)
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
        Submission::Signal,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.signal-busy",
            "submit a signal, device busy",
            SIGNAL,
            CLOSE,
        ),
        Submission::Signal,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.signal-first",
            "submit a signal, the first after a pause",
            SIGNAL,
            CLOSE,
        ),
        Submission::Signal,
        DeviceLoad::First,
    ),
    case(
        row(
            "level-zero-enqueue.hosts",
            "submit a signal that only hosts wait for",
            SIGNAL,
            CLOSE,
        ),
        Submission::SignalHosts,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.hosts-busy",
            "submit a signal that only hosts wait for, device busy",
            SIGNAL,
            CLOSE,
        ),
        Submission::SignalHosts,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.wait-done",
            "submit a wait for what has happened",
            WAIT,
            CLOSE,
        ),
        Submission::Wait,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.wait-busy",
            "submit a wait for another queue's signal, not there yet",
            WAIT,
            CLOSE,
        ),
        Submission::Wait,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.wait-first",
            "submit a wait, the first after a pause",
            WAIT,
            CLOSE,
        ),
        Submission::Wait,
        DeviceLoad::First,
    ),
    case(
        row("level-zero-enqueue.copy", "submit a copy", COPY, CLOSE),
        Submission::Copy,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-busy",
            "submit a copy, device busy",
            COPY,
            CLOSE,
        ),
        Submission::Copy,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-finished",
            "submit a copy, the first after all was finished",
            COPY,
            CLOSE,
        ),
        Submission::Copy,
        DeviceLoad::FirstIdle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-first",
            "submit a copy, the first after a pause",
            COPY,
            CLOSE,
        ),
        Submission::Copy,
        DeviceLoad::First,
    ),
    alone(
        row(
            "level-zero-enqueue.copy-alone",
            "submit a copy, whose end the raw call tells nobody",
            COPY_ALONE,
            Target::None,
        ),
        Submission::Copy,
        DeviceLoad::Idle,
    ),
    case(
        row("level-zero-enqueue.fill", "submit a fill", FILL, CLOSE),
        Submission::Fill,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.fill-busy",
            "submit a fill, device busy",
            FILL,
            CLOSE,
        ),
        Submission::Fill,
        DeviceLoad::Busy,
    ),
    alone(
        row(
            "level-zero-enqueue.fill-alone",
            "submit a fill, whose end the raw call tells nobody",
            FILL_ALONE,
            Target::None,
        ),
        Submission::Fill,
        DeviceLoad::Idle,
    ),
    alone(
        row(
            "level-zero-enqueue.fill-alone-busy",
            "submit a fill, whose end the raw call tells nobody, device busy",
            FILL_ALONE,
            Target::None,
        ),
        Submission::Fill,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal",
            "submit a copy that signals",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignal,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-busy",
            "submit a copy that signals, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignal,
        DeviceLoad::Busy,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-finished",
            "submit a copy that signals, the first after all was finished",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignal,
        DeviceLoad::FirstIdle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-signal-first",
            "submit a copy that signals, the first after a pause",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignal,
        DeviceLoad::First,
    ),
    case(
        row(
            "level-zero-enqueue.copy-hosts",
            "submit a copy with a signal that only hosts wait for",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignalHosts,
        DeviceLoad::Idle,
    ),
    case(
        row(
            "level-zero-enqueue.copy-hosts-busy",
            "submit a copy with a signal that only hosts wait for, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        Submission::CopySignalHosts,
        DeviceLoad::Busy,
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
