//! Recorded commands of command buffers and captures, and their runs.

use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::enqueue::Submission;
use crate::memory::replicas::MemoryUse;
use crate::queue::destination::Destination;
use crosshandle::{
    Command, Event,
    graph::{ExecutableGraph, Graph, Node, SignalCursor},
};
use unified_runtime_sys::ur_command_t;

/// Commands that are being recorded into a graph.
pub(crate) struct Recording {
    graph: Graph,
    /// The memory objects that the commands use and that must know the runs of this recording.
    uses: Vec<MemoryUse>,
    waits: Waits,
}

/// Signals of events from outside the recording. Each run of the whole recording waits for them.
pub(crate) type Waits = Vec<(Event, u64)>;

impl Recording {
    /// Starts an empty recording in a context.
    pub(crate) fn new(context: &crosshandle::Context) -> Self {
        Self {
            graph: Graph::new(context),
            uses: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Notes that a command in this recording uses a memory object.
    pub(crate) fn note(&mut self, used: MemoryUse) {
        note(&mut self.uses, used);
    }

    /// Makes each run wait for signals of events. Only the latest signal of each event is stored,
    /// because it follows the earlier signals.
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

    /// Records a command that follows the nodes in `after`. In each run, the command also waits for
    /// the next signal of the cursors in `next`.
    pub(crate) fn add(
        &mut self,
        command: Command,
        after: &[Node],
        next: &[&SignalCursor],
    ) -> crosshandle::Result<Node> {
        self.graph.add_after_next(command, after, next)
    }

    /// Creates an executable graph from the recording. The driver may wait for a device during this
    /// call.
    pub(crate) fn instantiate(&self) -> Result<Run> {
        Ok(Run {
            executable: self.graph.instantiate()?,
            uses: Lock::new(self.uses.clone()),
            waits: self.waits.clone(),
            last: Lock::default(),
        })
    }
}

fn note(uses: &mut Vec<MemoryUse>, used: MemoryUse) {
    if !uses.iter().any(|known| known.is_same(&used)) {
        uses.push(used);
    }
}

/// A recording that can run any number of times.
///
/// Runs use the same memory, so they execute one after another, even in different queues. If a
/// queue is being captured, its run becomes a node of that capture, and only the capture orders the
/// run.
pub(crate) struct Run {
    executable: ExecutableGraph,
    uses: Lock<Vec<MemoryUse>>,
    waits: Waits,
    /// The event of the latest run. The next run follows this event, so a submitting thread holds
    /// the lock until its run is submitted. This lock is acquired before all other locks.
    last: Lock<Option<Event>>,
}

impl Run {
    /// Notes that an updated command uses a memory object.
    pub(crate) fn note(&self, used: MemoryUse) {
        note(&mut self.uses.lock(), used);
    }

    /// Returns the executable graph, so that the caller can run or update it.
    pub(crate) fn executable(&self) -> &ExecutableGraph {
        &self.executable
    }

    /// Prepares all memory objects that the recording uses for a run that is submitted next.
    pub(crate) fn note_uses(&self, submission: &Submission<'_>) -> Result<()> {
        let uses = self.uses.lock().clone();
        uses.into_iter().try_for_each(|used| submission.note(used))
    }

    /// Submits a run, or records it if the queue is being captured.
    pub(crate) fn submit(&self, submission: Submission<'_>, kind: ur_command_t) -> Result<()> {
        self.note_uses(&submission)?;
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
        let runs_in_parts = self.executable.runs_in_parts();
        submission.submit_and_keep(kind, command, runs_in_parts, &mut last)
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
