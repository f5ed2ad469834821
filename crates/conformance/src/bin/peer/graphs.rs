//! Commands for graphs.

use crate::request::{CommandError, Reply, Request, done, one, read};
use crate::state::{Object, PeerState};
use crosshandle::graph::Graph;
use crosshandle::{
    Command, Memory,
    graph::{ExecutableGraph, Node},
};
use std::sync::Arc;

/// An executable graph, with its nodes in the order of its steps.
pub(crate) struct PeerGraph {
    executable: ExecutableGraph,
    nodes: Vec<Node>,
}

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "graph" => record(state, request),
        "update-graph" => update(state, request),
        _ => return None,
    })
}

/// `graph NAME MEMORY STEP…`: records a graph whose nodes run one after the other → the number of
/// nodes
fn record(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(1)?)?;
    let mut graph = Graph::new(&state.context(request)?);
    let mut nodes = Vec::new();
    for word in request.words_from(2) {
        let before = nodes.last().copied();
        nodes.push(graph.add(step(state, &memory, word)?, before.as_slice())?);
    }
    let executable = graph.instantiate()?;
    let graph = PeerGraph { executable, nodes };
    let count = graph.executable.len();
    state.put(request.word(0)?, Object::Graph(Arc::new(graph)));
    one(count)
}

/// `update-graph NAME INDEX MEMORY STEP`
fn update(state: &PeerState, request: &Request<'_>) -> Reply {
    let graph = state.graph(request.word(0)?)?;
    let memory = state.memory(request.word(2)?)?;
    let node = graph.nodes.get(request.parsed::<usize>(1)?).copied();
    let node = node.ok_or_else(|| CommandError::usage("no such node"))?;
    let command = step(state, &memory, request.word(3)?)?;
    graph.executable.update(node, command)?;
    done()
}

/// Parses a step on a memory, and the events of the step:
/// `WORK[@EVENT:VALUE][>EVENT]`, where the first event is awaited and the second one is signalled
fn step(state: &PeerState, memory: &Memory, word: &str) -> Result<Command, CommandError> {
    let (word, signal) = match word.split_once('>') {
        Some((word, signal)) => (word, Some(signal)),
        None => (word, None),
    };
    let (word, wait) = match word.split_once('@') {
        Some((word, wait)) => (word, wait.split_once(':')),
        None => (word, None),
    };
    let mut command = work(state, memory, word)?;
    if let Some((event, value)) = wait {
        command = command.after_value(&state.event(event)?, read(value)?);
    }
    if let Some(event) = signal {
        command = command.signal(&state.event(event)?);
    }
    Ok(command)
}

/// Parses the work of a step:
/// `marker | fill,TO,LEN,BYTE | copy,TO,FROM,LEN | scale,KERNELS,NUMBER |
/// fill-words,KERNELS,NUMBER`
fn work(state: &PeerState, memory: &Memory, word: &str) -> Result<Command, CommandError> {
    let words: Vec<_> = word.split(',').collect();
    Ok(match words[..] {
        ["marker"] => Command::marker(),
        ["fill", to, len, byte] => {
            let (to, len): (usize, usize) = (read(to)?, read(len)?);
            Command::fill(memory.range(to..to + len)?, &[read(byte)?])?
        }
        ["copy", to, from, len] => {
            let (to, from, len): (usize, usize, usize) = (read(to)?, read(from)?, read(len)?);
            let source = memory.range(from..from + len)?;
            Command::copy(source, memory.range(to..to + len)?)?
        }
        ["scale", kernels, number] => {
            let kernels = state.kernels(kernels)?;
            kernels.scale(&memory.all(), read(number)?)?
        }
        ["fill-words", kernels, number] => {
            let kernels = state.kernels(kernels)?;
            kernels.fill(&memory.all(), read(number)?)?
        }
        _ => return Err(CommandError::usage(format!("no such step: {word}"))),
    })
}

/// `run GRAPH`: a command of a queue
pub(crate) fn run(state: &PeerState, request: &Request<'_>) -> Result<Command, CommandError> {
    Ok(state.graph(request.word(2)?)?.executable.command())
}
