//! Parts of a command buffer, which is divided at the commands that have events.
//!
//! A driver's graph can neither wait for an event nor signal one between its nodes. So a command
//! that waits for events begins a new part, and a command that signals an event ends its part. A
//! run submits the parts in order. When a run is submitted, the first command of each part waits
//! for the latest signals of the part's events, or for the next signals if other processes may
//! signal the events. The last command of a part signals the part's event. A command buffer without such commands has one part, and each run is one submission.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::Ref;
use crate::enqueue::Submission;
use crate::enqueue::graph::recording::{Recording, Run};
use crate::event::Event;
use crate::memory::replicas::MemoryUse;
use crosshandle::{
    Command, Context,
    graph::{Node, Replaced},
};
use std::sync::Arc;
use unified_runtime_sys::{ur_command_t, ur_result_t};

/// The events of a part. An update of the command buffer may replace them.
#[derive(Default)]
pub(super) struct PartEvents {
    /// The events for which the part waits. Updates do not change their number.
    pub(super) waits: Vec<Ref<Event>>,
    /// The event that the part signals when it is complete.
    pub(super) signal: Option<crosshandle::Event>,
}

/// The position of a command in a command buffer: its part, and its node in that part.
#[derive(Clone, Copy)]
pub(super) struct PartNode {
    part: u32,
    node: Node,
}

/// The parts of a command buffer while it is recorded. At least one part exists.
pub(super) struct Recordings(Vec<PartRecording>);

struct PartRecording {
    recording: Recording,
    is_empty: bool,
    /// Whether the part has an event to signal. Further commands then start a new part.
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
    /// Starts a recording with one empty part.
    pub(super) fn new(context: &Context) -> Self {
        Self(vec![PartRecording::new(context)])
    }

    /// Notes that a command uses a memory object. The first part stores the use, because every run
    /// includes the first part.
    pub(super) fn note(&mut self, used: MemoryUse) {
        self.0[0].recording.note(used);
    }

    /// Records a command with its events. Returns the command's position, and the events of its
    /// part.
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
        // Earlier parts are complete before this part starts, so only nodes in this part matter.
        let after = after.iter().filter(|node| node.part as usize == part);
        let after: Vec<Node> = after.map(|node| node.node).collect();
        let node = last.recording.add(command, &after, &[])?;
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

    /// Creates an executable graph for each part.
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

/// The executable parts of a finalized command buffer.
pub(super) struct Parts {
    parts: Vec<Part>,
    /// The event of the latest run, if the run had several submissions or events. A single [`Run`]
    /// has its own event.
    last: Lock<Option<crosshandle::Event>>,
}

struct Part {
    run: Run,
    events: Arc<Lock<PartEvents>>,
}

impl Parts {
    /// Notes that an updated command uses a memory object.
    pub(super) fn note(&self, used: MemoryUse) {
        self.parts[0].run.note(used);
    }

    /// Updates commands, and returns the replaced objects. Each part updates either all of its
    /// commands or none of them. If the driver refuses the update of one part, the preceding parts
    /// stay updated.
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

    /// Submits a run, or records it if the queue is being captured.
    ///
    /// # Errors
    /// Returns `GRAPH_CAPTURE_UNSUPPORTED` if the queue is being captured and a command has events.
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
            run.note_uses(&submission)?;
            let mut command = run.executable().command();
            let events = events.lock();
            for (index, event) in events.waits.iter().enumerate() {
                let inner = event.inner()?;
                command = match event.cursor() {
                    None => command.after_submitted(inner),
                    // An event that occurs twice in a wait list is awaited once.
                    Some(_)
                        if events.waits[..index]
                            .iter()
                            .any(|known| std::ptr::eq(&**known, &**event)) =>
                    {
                        command
                    }
                    Some(cursor) => command.after_value(inner, cursor.take()),
                };
            }
            commands.push((command, events.signal.clone()));
        }
        submission.submit_parts(kind, commands, &mut last)
    }
}

/// Checks that an update does not change the number of events to wait for.
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
