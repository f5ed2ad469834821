//! Recordings: what command buffers record, and how it runs.

use crate::abi::failure::Result;
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
}

impl Recording {
    /// Begins one in a context.
    pub(crate) fn new(context: &crosshandle::Context) -> Self {
        Self {
            graph: context.create_graph(),
            uses: Vec::new(),
        }
    }

    /// Notes that a command uses a buffer that wants to know of its queues.
    pub(crate) fn note(&mut self, buffer: &BufferUse<'_>) {
        note(&mut self.uses, buffer);
    }

    /// Records a command.
    pub(crate) fn add(&mut self, command: Command, after: &[Node]) -> Result<Node> {
        Ok(self.graph.add(command, after)?)
    }

    /// Makes what runs.
    pub(crate) fn instantiate(&self) -> Result<Run> {
        Ok(Run {
            executable: self.graph.instantiate()?,
            uses: self.uses.clone(),
            last: None,
        })
    }
}

fn note(uses: &mut Vec<Arc<RecordedUse>>, buffer: &BufferUse<'_>) {
    if !uses.iter().any(|known| known.is_of(buffer)) {
        uses.push(Arc::new(buffer.recorded()));
    }
}

/// A recording that runs.
pub(crate) struct Run {
    executable: ExecutableGraph,
    uses: Vec<Arc<RecordedUse>>,
    /// The event of the latest run.
    last: Option<Event>,
}

impl Run {
    /// Notes that an update uses a buffer that wants to know of its queues.
    pub(crate) fn note(&mut self, buffer: &BufferUse<'_>) {
        note(&mut self.uses, buffer);
    }

    pub(crate) fn executable(&self) -> &ExecutableGraph {
        &self.executable
    }

    /// Submits a run, after the one before. One that failed is no reason for the next not to run.
    pub(crate) fn submit(&mut self, submission: Submission<'_>, kind: ur_command_t) -> Result<()> {
        for buffer in &self.uses {
            buffer.by(submission.queue());
        }
        let mut command = self.executable.command();
        if let Some(last) = &self.last
            && matches!(last.try_wait(), Ok(false))
        {
            command = command.after(last);
        }
        self.last = Some(submission.submit_and_keep(kind, command)?);
        Ok(())
    }
}
