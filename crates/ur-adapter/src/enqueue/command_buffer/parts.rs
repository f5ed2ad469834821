//! Parts of a command buffer. A command buffer is divided into parts at the commands that have
//! events.
//!
//! A driver's graph has no events in its middle. So a command that waits for events begins a part,
//! and a command that signals an event ends one. A run submits the parts in order. The first
//! command of a part waits for the latest signals of its events at that time, and the last command
//! signals the part's event. A command buffer without such commands is one part, and each run is
//! one submission.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::Ref;
use crate::enqueue::Submission;
use crate::enqueue::graph::recording::{Recording, Run};
use crate::event::Event;
use crate::memory::buffer::BufferUse;
use crosshandle::{
    Command, Context,
    graph::{Node, Replaced},
};
use std::sync::Arc;
use unified_runtime_sys::{ur_command_t, ur_result_t};

/// The events of a part. Updates of the command buffer replace them.
#[derive(Default)]
pub(super) struct PartEvents {
    /// The events that the part waits for. Their number does not change.
    pub(super) waits: Vec<Ref<Event>>,
    pub(super) signal: Option<crosshandle::Event>,
}

/// A command's position in its part.
#[derive(Clone, Copy)]
pub(super) struct PartNode {
    part: u32,
    node: Node,
}

/// The parts of a command buffer that is being recorded. There is at least one part.
pub(super) struct Recordings(Vec<PartRecording>);

struct PartRecording {
    recording: Recording,
    is_empty: bool,
    /// Whether the part has an event to signal, so that further commands start a new part.
    is_ended: bool,
    events: Arc<Lock<PartEvents>>,
}

impl PartRecording {
    fn new(context: &Context) -> Self {
        Self {
            recording: Recording::new(context),
            is_empty: true,
            is_ended: false,
            events: Arc::default(),
        }
    }
}

impl Recordings {
    /// Starts recording in a context.
    pub(super) fn new(context: &Context) -> Self {
        Self(vec![PartRecording::new(context)])
    }

    /// Records in a buffer that a command uses it. The use is part of the first recording, because
    /// every run includes the first part.
    pub(super) fn note(&mut self, buffer: &BufferUse<'_>) {
        self.0[0].recording.note(buffer);
    }

    /// Records a command with its events. Returns its node, and the events of its part.
    pub(super) fn add(
        &mut self,
        context: &Context,
        command: Command,
        after: &[PartNode],
        events: PartEvents,
    ) -> Result<(PartNode, Arc<Lock<PartEvents>>)> {
        let last = &self.0[self.0.len() - 1];
        if last.is_ended || !events.waits.is_empty() && !last.is_empty {
            self.0.push(PartRecording::new(context));
        }
        let part = self.0.len() - 1;
        let last = &mut self.0[part];
        // Earlier parts are complete before this part begins.
        let after = after.iter().filter(|node| node.part as usize == part);
        let after: Vec<Node> = after.map(|node| node.node).collect();
        let node = last.recording.add(command, &after)?;
        last.is_empty = false;
        last.is_ended = events.signal.is_some();
        let present = &mut *last.events.lock();
        if !events.waits.is_empty() {
            present.waits = events.waits;
        }
        present.signal = events.signal;
        let part = part as u32;
        Ok((PartNode { part, node }, Arc::clone(&last.events)))
    }

    pub(super) fn instantiate(&self) -> Result<Parts> {
        let parts = self.0.iter().map(|part| {
            Ok(Part {
                run: part.recording.instantiate()?,
                events: Arc::clone(&part.events),
            })
        });
        Ok(Parts {
            parts: parts.collect::<Result<_>>()?,
            last: Lock::default(),
        })
    }
}

pub(super) struct Parts {
    parts: Vec<Part>,
    /// The event of the latest run, if there are several parts. A single [`Run`] has its own event.
    last: Lock<Option<crosshandle::Event>>,
}

struct Part {
    run: Run,
    events: Arc<Lock<PartEvents>>,
}

impl Parts {
    /// Records in a buffer that an updated command uses it.
    pub(super) fn note(&self, buffer: &BufferUse<'_>) {
        self.parts[0].run.note(buffer);
    }

    /// Updates commands, and returns the replaced objects. Each part updates either all its
    /// commands or none. If the driver refuses an update, parts that come earlier stay updated.
    pub(super) fn update(&self, commands: Vec<(PartNode, Command)>) -> Result<Vec<Replaced>> {
        let mut by_part: Vec<Vec<(Node, Command)>> = Vec::new();
        by_part.resize_with(self.parts.len(), Vec::new);
        for (node, command) in commands {
            by_part[node.part as usize].push((node.node, command));
        }
        let updates = self.parts.iter().zip(by_part);
        let updates = updates.filter(|(_, updates)| !updates.is_empty());
        updates
            .map(|(part, updates)| Ok(part.run.executable().update_all(updates)?))
            .collect()
    }

    /// Submits a run, or records it in the capture of its queue.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_UNSUPPORTED` in a capture for commands with events.
    pub(super) fn submit(&self, submission: Submission<'_>, kind: ur_command_t) -> Result<()> {
        if let [Part { run, events }] = &*self.parts {
            let events = events.lock();
            if events.waits.is_empty() && events.signal.is_none() {
                drop(events);
                return run.submit(submission, kind);
            }
        }
        let submission = submission.not_captured(
            "a command buffer whose commands have events cannot be recorded in a graph",
        )?;
        let mut last = self.last.lock();
        let mut commands = Vec::with_capacity(self.parts.len());
        for Part { run, events } in &self.parts {
            run.note_uses(&submission);
            let mut command = run.executable().command();
            let events = events.lock();
            for event in &events.waits {
                command = command.after_submitted(event.inner()?);
            }
            commands.push((command, events.signal.clone()));
        }
        submission.submit_parts(kind, commands, &mut last)
    }
}

/// Fails if an update changes the number of events.
///
/// # Errors
/// Returns `INVALID_EVENT_WAIT_LIST` if the numbers differ.
pub(super) fn check_number(present: usize, new: usize) -> Result<()> {
    match present == new {
        true => Ok(()),
        false => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST,
            format!("this command was recorded with {present} events to wait for, not {new}"),
        )),
    }
}
