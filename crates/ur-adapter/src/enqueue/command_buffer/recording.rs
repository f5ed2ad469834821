//! Recordings: what command buffers record, and how it runs.

use crate::abi::failure::Result;
use crate::memory::buffer::{BufferUse, RecordedUse};
use crate::queue::Queue;
use crosshandle::{Command, ExecutableGraph, Graph, Node};
use std::sync::Arc;

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
            executable: Arc::new(self.graph.instantiate()?),
            uses: self.uses.clone(),
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
    executable: Arc<ExecutableGraph>,
    uses: Vec<Arc<RecordedUse>>,
}

impl Run {
    /// Notes that an update uses a buffer that wants to know of its queues.
    pub(crate) fn note(&mut self, buffer: &BufferUse<'_>) {
        note(&mut self.uses, buffer);
    }

    pub(crate) fn executable(&self) -> Arc<ExecutableGraph> {
        Arc::clone(&self.executable)
    }

    /// Makes the command of a run, and lets the buffers know that the queue runs it.
    pub(crate) fn command(&self, queue: &Queue) -> Command {
        for buffer in &self.uses {
            buffer.by(queue);
        }
        self.executable.command()
    }
}
