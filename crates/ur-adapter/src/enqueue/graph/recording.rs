//! Recordings: what command buffers and captures record, and how it runs.

use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::enqueue::Submission;
use crate::memory::buffer::{BufferUse, RecordedUse};
use crosshandle::{Command, Event, ExecutableGraph, Graph, Node};
use std::sync::Arc;
use unified_runtime_sys::ur_command_t;

/// Commands that are being recorded.
pub(crate) struct Recording {
    graph: Graph,
    /// Buffers that want to know of the queues that run this.
    uses: Vec<Arc<RecordedUse>>,
    waits: Waits,
}

/// Signals of events that are not part of a recording, which all of it comes after.
pub(crate) type Waits = Vec<(Event, u64)>;

impl Recording {
    /// Begins one in a context.
    pub(crate) fn new(context: &crosshandle::Context) -> Self {
        Self {
            graph: context.create_graph(),
            uses: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Notes that a command uses a buffer that wants to know of its queues.
    pub(crate) fn note(&mut self, buffer: &BufferUse<'_>) {
        note(&mut self.uses, buffer);
    }

    /// Lets every run come after signals of events: of each event the latest alone, which comes after the others.
    pub(crate) fn wait_for(&mut self, waits: impl IntoIterator<Item = (Event, u64)>) {
        for (event, value) in waits {
            match self
                .waits
                .iter_mut()
                .find(|(known, _)| known.is_same(&event))
            {
                Some((_, latest)) => *latest = value.max(*latest),
                None => self.waits.push((event, value)),
            }
        }
    }

    /// Records a command.
    pub(crate) fn add(&mut self, command: Command, after: &[Node]) -> crosshandle::Result<Node> {
        self.graph.add(command, after)
    }

    /// Makes what runs. The driver may wait for a device meanwhile.
    pub(crate) fn instantiate(&self) -> Result<Run> {
        Ok(Run {
            executable: self.graph.instantiate()?,
            uses: Lock::new(self.uses.clone()),
            waits: self.waits.clone(),
            last: Lock::default(),
        })
    }
}

fn note(uses: &mut Vec<Arc<RecordedUse>>, buffer: &BufferUse<'_>) {
    if !uses.iter().any(|known| known.is_of(buffer)) {
        uses.push(Arc::new(buffer.recorded()));
    }
}

/// A recording that runs any number of times. The runs come one after the other, in whatever queues they
/// are: they use the same memory. Runs that are recorded in a capture are nodes there, which only the
/// capture orders.
pub(crate) struct Run {
    executable: ExecutableGraph,
    uses: Lock<Vec<Arc<RecordedUse>>>,
    waits: Waits,
    /// The event of the latest run. Held until the next is submitted, which comes after it; taken before
    /// any other lock.
    last: Lock<Option<Event>>,
}

impl Run {
    /// Notes that an update uses a buffer that wants to know of its queues.
    pub(crate) fn note(&self, buffer: &BufferUse<'_>) {
        note(&mut self.uses.lock(), buffer);
    }

    /// Returns the graph, to be updated.
    pub(crate) fn executable(&self) -> &ExecutableGraph {
        &self.executable
    }

    /// Tells the buffers where a run is submitted to.
    pub(crate) fn note_uses(&self, submission: &Submission<'_>) {
        let uses = self.uses.lock().clone();
        for buffer in uses {
            buffer.by(submission);
        }
    }

    /// Submits a run, or records it in the capture of its queue.
    pub(crate) fn submit(&self, submission: Submission<'_>, kind: ur_command_t) -> Result<()> {
        self.note_uses(&submission);
        if let Some(capture) = submission.capture() {
            capture.wait_for(self.waits.iter().cloned())?;
            return submission.submit(kind, self.executable.command(), false);
        }
        let mut last = self.last.lock();
        let mut command = self.executable.command();
        for (event, value) in &self.waits {
            if !event.try_wait_value(*value)? {
                command = command.after_value(event, *value);
            }
        }
        if let Some(last) = &*last
            && matches!(last.try_wait_submitted(), Ok(false))
        {
            command = command.after_submitted(last);
        }
        submission.submit_and_keep(kind, command, &mut last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;
    use crosshandle::EventOptions;

    #[test]
    fn of_each_event_the_latest_signal_is_waited_for() {
        let scene = Scene::new();
        let context = scene.context().first().1;
        let create = || context.create_event_with(EventOptions::new().shareable(false));
        let (one, other) = (create().expect("an event"), create().expect("an event"));
        let mut recording = Recording::new(context);
        let waits = [(&one, 1), (&other, 1), (&one, 3), (&one, 2)];
        recording.wait_for(waits.map(|(event, value)| (event.clone(), value)));
        let values: Vec<u64> = recording.waits.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [3, 1]);
        assert!(recording.waits[0].0.is_same(&one) && recording.waits[1].0.is_same(&other));
    }
}
