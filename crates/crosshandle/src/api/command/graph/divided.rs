//! Graphs that run in parts, because nodes wait for events, signal events or call functions.
//!
//! A driver's graph can neither wait for a shared event nor signal one between its nodes. So a node
//! that waits begins a part, and a node that signals or calls a function ends its part. A run
//! submits the parts in order, each as one command. Events of the run itself order the parts where
//! the queue does not, and where a failure of one part must fail the later ones.

use super::executable::PartNodes;
use super::{NodeEvents, Recorded, SignalCursor};
use crate::api::command::{LATEST, SUBMITTED};
use crate::api::core::ContextCore;
use crate::api::event::{Event, EventOptions};
use crosshandle_hal::{
    GraphNode, GraphNodes, HostFunction, RepeatableFunction, Submission, WaitPoint, Work,
};
use crosshandle_ipc::EventCore;
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The division of an executable graph into parts. Updates do not change it.
pub(super) struct Division {
    /// The place of each node.
    places: Vec<Place>,
    parts: Vec<Part>,
    strides: Strides,
    /// The number of runs that were submitted. Locked while the parts of a run are submitted, so
    /// that those of two runs do not mix.
    runs: Mutex<u64>,
}

/// By how much the awaited numbers of each event grow from one run to the next.
struct Strides(Vec<(Arc<EventCore>, u64)>);

impl Strides {
    /// Counts the different numbers that the nodes wait for, for each event.
    fn new(recorded: &[Recorded]) -> Self {
        let mut counts: Vec<(Arc<EventCore>, BTreeSet<u64>)> = Vec::new();
        let events = recorded.iter().filter_map(|node| node.events.as_ref());
        let waits = events.flat_map(|events| &events.waits);
        for (event, number) in waits.filter(|(_, number)| !matches!(*number, LATEST | SUBMITTED)) {
            match counts
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, event))
            {
                Some((_, numbers)) => drop(numbers.insert(*number)),
                None => counts.push((Arc::clone(event), BTreeSet::from([*number]))),
            }
        }
        let counts = counts.into_iter();
        Self(
            counts
                .map(|(event, numbers)| (event, numbers.len() as u64))
                .collect(),
        )
    }

    fn of(&self, event: &Arc<EventCore>) -> u64 {
        let mut strides = self.0.iter();
        let found = strides.find(|(known, _)| Arc::ptr_eq(known, event));
        found.map_or(0, |(_, stride)| *stride)
    }
}

/// The place of a node in its part.
pub(super) struct Place {
    pub(super) part: usize,
    pub(super) index: usize,
    /// The nodes that the node depends on, in all parts.
    after: Arc<[u32]>,
}

/// The events of a part, and the function that is its only work.
#[derive(Default)]
struct Part {
    waits: Vec<(Arc<EventCore>, u64)>,
    next: Vec<SignalCursor>,
    signal: Option<Arc<EventCore>>,
    function: Option<RepeatableFunction>,
}

impl Part {
    /// Returns whether the part waits for events.
    fn has_waits(&self) -> bool {
        !self.waits.is_empty() || !self.next.is_empty()
    }

    /// Returns whether a node ends the part, so that later nodes belong to the next part.
    fn is_ended(&self) -> bool {
        self.signal.is_some() || self.function.is_some()
    }
}

impl Division {
    /// Divides recorded nodes. Returns the division, and the nodes of each part. A graph without
    /// events and functions has one part.
    pub(super) fn new(
        core: &ContextCore,
        recorded: &[Recorded],
    ) -> Result<(Self, Vec<GraphNodes>)> {
        let strides = Strides::new(recorded);
        let mut places: Vec<Place> = Vec::with_capacity(recorded.len());
        let mut parts = vec![Part::default()];
        let mut nodes: Vec<Vec<Arc<GraphNode>>> = vec![Vec::new()];
        for node in recorded {
            let last = parts.len() - 1;
            let begins = node.function.is_some() || node.has_waits();
            if parts[last].is_ended() || begins && !nodes[last].is_empty() {
                parts.push(Part::default());
                nodes.push(Vec::new());
            }
            let part = parts.len() - 1;
            // Earlier parts are complete before this one starts, so only its own nodes matter.
            let after = node.after.iter().map(|index| &places[*index as usize]);
            let after = after.filter(|place| place.part == part);
            let after: Arc<[u32]> = after.map(|place| place.index as u32).collect();
            places.push(Place {
                part,
                index: nodes[part].len(),
                after: Arc::clone(&node.after),
            });
            nodes[part].push(node.prepare(core, after)?);
            if let Some(events) = &node.events {
                parts[part].waits.extend(events.waits.iter().cloned());
                parts[part].next.extend(events.next.iter().cloned());
                parts[part].signal.clone_from(&events.signal);
            }
            parts[part].function.clone_from(&node.function);
        }
        let division = Self {
            places,
            parts,
            strides,
            runs: Mutex::new(0),
        };
        Ok((division, nodes.into_iter().map(Arc::new).collect()))
    }

    /// Returns whether one submission runs the whole graph.
    pub(super) fn is_whole(&self) -> bool {
        match &*self.parts {
            [part] => !part.has_waits() && !part.is_ended(),
            _ => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn place(&self, index: u32) -> Option<&Place> {
        self.places.get(index as usize)
    }

    /// Returns whether a part calls a function of the program.
    pub(super) fn calls(&self, place: &Place) -> bool {
        self.parts[place.part].function.is_some()
    }
}

impl Recorded {
    fn has_waits(&self) -> bool {
        self.events
            .as_ref()
            .is_some_and(|events| events.has_waits())
    }

    /// Creates the node that executable graphs of a context use. `after` are nodes of the same
    /// part.
    pub(super) fn prepare(&self, core: &ContextCore, after: Arc<[u32]>) -> Result<Arc<GraphNode>> {
        let prepared = match core.backend().graphs() {
            Some(graphs) => graphs.prepare(self.work.work())?,
            None => None,
        };
        Ok(Arc::new(GraphNode {
            work: Arc::clone(&self.work),
            after,
            is_on_host: self.is_on_host,
            ends_graph: self.ends_graph,
            prepared,
        }))
    }
}

/// One run of a graph in parts.
pub(crate) struct DividedRun {
    pub(super) core: Arc<ContextCore>,
    pub(super) division: Arc<Division>,
    pub(super) parts: Arc<[PartNodes]>,
}

impl DividedRun {
    /// Returns the nodes, in the form in which another graph of the same context records them.
    pub(super) fn recorded(&self, core: &ContextCore) -> Result<Vec<Recorded>> {
        self.check_context(core)?;
        let mut recorded = Vec::with_capacity(self.division.len());
        for place in &self.division.places {
            let part = &self.division.parts[place.part];
            let nodes = &self.parts[place.part].nodes;
            let node = &nodes[place.index];
            let (is_first, is_last) = (place.index == 0, place.index + 1 == nodes.len());
            let mut events = NodeEvents {
                signal: part.signal.clone().filter(|_| is_last),
                ..NodeEvents::default()
            };
            if is_first {
                events.waits.clone_from(&part.waits);
                events.next.clone_from(&part.next);
            }
            recorded.push(Recorded {
                work: Arc::clone(&node.work),
                after: Arc::clone(&place.after),
                is_on_host: node.is_on_host,
                ends_graph: node.ends_graph,
                function: part.function.clone(),
                events: events.non_empty().map(Arc::new),
            });
        }
        Ok(recorded)
    }

    fn check_context(&self, core: &ContextCore) -> Result<()> {
        match Arc::ptr_eq(self.core.exporter().copied(), core.exporter().copied()) {
            true => Ok(()),
            false => Err(Error::invalid("this graph is one of another context")),
        }
    }

    /// Submits the parts in order. `command` has the waits, the order and the signal of the whole
    /// run. `submit` submits one part to a queue with this order. `context` is the counter of
    /// copied bytes that identifies the queue's context.
    ///
    /// # Errors
    /// The errors of `submit`. If a later part is refused, the earlier parts still run.
    pub(crate) fn submit(
        &self,
        order: QueueOrder,
        context: &Arc<AtomicU64>,
        command: &mut Submission,
        submit: impl Fn(&mut Submission) -> Result<()>,
    ) -> Result<()> {
        if !Arc::ptr_eq(self.core.exporter().copied(), context) {
            return Err(Error::invalid(
                "this graph was made in another context; a queue runs graphs of its own context",
            ));
        }
        let mut runs = self.division.runs.lock();
        let run = *runs;
        let mut chain = Chain {
            core: &self.core,
            is_out_of_order: order == QueueOrder::OutOfOrder,
            may_fail: !command.waits.is_empty(),
            step: None,
            latest: None,
        };
        let parts = &self.division.parts;
        // If the last part has an event of its own, a marker signals the event of the run.
        let has_end = command.signal.is_some() && parts[parts.len() - 1].signal.is_some();
        let count = parts.len() + usize::from(has_end);
        for index in 0..count {
            let (mut part, wanted) = match parts.get(index) {
                Some(part) => self.part(index, part, run),
                None => (Submission::new(Work::Marker), None),
            };
            if index == 0 {
                part.after_earlier = command.after_earlier;
                for wait in mem::take(&mut command.waits).into_vec() {
                    part.waits.push(wait);
                }
            }
            let is_last = index + 1 == count;
            part.before_later = is_last && command.before_later;
            part.signal = match is_last && wanted.is_none() {
                true => command.signal.take(),
                false => wanted,
            };
            chain.submit(part, is_last, &submit)?;
            // From here on, the run has taken its numbers.
            *runs = run + 1;
        }
        Ok(())
    }

    /// Returns the submission of a part, and the event that the part signals.
    fn part(&self, index: usize, part: &Part, run: u64) -> (Submission, Option<Arc<EventCore>>) {
        let nodes = &self.parts[index];
        let mut submission = Submission::new(match &part.function {
            Some(function) => Work::Call(HostFunction::Repeatable(Arc::clone(function))),
            None => nodes.work(&self.core),
        });
        submission.is_on_host = nodes.is_on_host;
        for (event, number) in &part.waits {
            let number = match *number {
                // The number is known when the part is submitted.
                latest @ (LATEST | SUBMITTED) => latest,
                first => {
                    let later = run.saturating_mul(self.division.strides.of(event));
                    // No signal ever has a number this high.
                    first.saturating_add(later).min(SUBMITTED - 1)
                }
            };
            submission.waits.push(WaitPoint::new(event, number));
        }
        for cursor in &part.next {
            let number = cursor.take().min(SUBMITTED - 1);
            let event = cursor.event().core();
            submission.waits.push(WaitPoint::new(event, number));
        }
        (submission, part.signal.clone())
    }
}

/// The order of the parts of one run.
struct Chain<'a> {
    core: &'a Arc<ContextCore>,
    is_out_of_order: bool,
    /// Whether an earlier part may fail, so that the later parts must learn of it.
    may_fail: bool,
    /// An event of this run alone, for parts without an event of their own.
    step: Option<Arc<EventCore>>,
    /// The signal of the latest part.
    latest: Option<(Arc<EventCore>, u64)>,
}

impl Chain<'_> {
    /// Submits a part that follows the latest one.
    fn submit(
        &mut self,
        mut part: Submission,
        is_last: bool,
        submit: &impl Fn(&mut Submission) -> Result<()>,
    ) -> Result<()> {
        self.may_fail |= !part.waits.is_empty() || matches!(part.work, Work::Call(_));
        if let Some((event, number)) = self.latest.take() {
            part.waits.push(WaitPoint::new(&event, number));
        }
        if is_last || !self.is_out_of_order && !self.may_fail {
            return submit(&mut part);
        }
        // The device counts the signals of such an event. So the next part cannot wait for this
        // number, and waits for an event of the run instead.
        let counted = part.signal.take_if(|event| event.is_single_signaller());
        let event = match &part.signal {
            Some(event) => Arc::clone(event),
            None => self.step()?,
        };
        part.signal = Some(Arc::clone(&event));
        let number = event.number_issued_by(|| submit(&mut part))?;
        // Every backend takes the number during the call, and records it.
        let number = number.ok_or(Error::Unsupported(
            "this queue does not tell the numbers of its signals".into(),
        ))?;
        if let Some(counted) = counted {
            let mut signal = Submission::new(Work::Marker);
            signal.waits.push(WaitPoint::new(&event, number));
            signal.signal = Some(counted);
            submit(&mut signal)?;
        }
        self.latest = Some((event, number));
        Ok(())
    }

    fn step(&mut self) -> Result<Arc<EventCore>> {
        if let Some(step) = &self.step {
            return Ok(Arc::clone(step));
        }
        let options = EventOptions::new().shareable(false);
        let event = Event::create(self.core, options)?;
        Ok(Arc::clone(self.step.insert(Arc::clone(event.core()))))
    }
}
