//! Long random sequences of operations in two processes, compared with a model of their results.

use crate::failure::{Failure, Verdict};
use crate::harness::Harness;
use crate::pattern::Random;
use crate::{Outcome, Peer};
use std::time::{Duration, Instant};

/// Maximum number of operations per seed. The time limit may end them earlier.
const STEPS: usize = 1_500;
const SEEDS: u64 = 4;
const TIME: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory { len: usize },
    Event,
}

/// The expected state of a shared object.
struct Object {
    name: usize,
    kind: Kind,
    exporter: usize,
    handle: String,
    /// Whether each process has the object open, as its creator or as an importer.
    is_open: [bool; 2],
    /// The seed of its bytes, or its value.
    state: u64,
}

struct Model {
    peers: [Peer; 2],
    objects: Vec<Object>,
    random: Random,
    names: usize,
}

impl Model {
    fn step(&mut self) -> Result<(), Failure> {
        match self.random.below(10) {
            0 if self.objects.len() < 40 => self.create(),
            1 | 2 => self.open(),
            3 => self.close(),
            4..=6 => self.change(),
            _ => self.check(),
        }
    }

    fn create(&mut self) -> Result<(), Failure> {
        let exporter = self.random.below(2);
        let peer = &self.peers[exporter];
        let name = self.names;
        self.names += 1;
        let (kind, handle, state) = if self.random.below(2) == 0 {
            let sizes = [8, 100, 5_000, 300_000, 2_500_000];
            let len = sizes[self.random.below(sizes.len())];
            let state = self.random.next();
            peer.ask(format!("allocate o{name} {len}"))?;
            peer.ask(format!("write o{name} 0 {state} {}", len.min(2_000)))?;
            let handle = peer.ask(format!("memory-handle o{name}"))?;
            (Kind::Memory { len }, handle, state)
        } else {
            peer.ask(format!("event o{name}"))?;
            (Kind::Event, peer.ask(format!("event-handle o{name}"))?, 0)
        };
        let mut is_open = [false; 2];
        is_open[exporter] = true;
        self.objects.push(Object {
            name,
            kind,
            exporter,
            handle: handle.concat(),
            is_open,
            state,
        });
        Ok(())
    }

    /// Opens an object in the importer. If the exporter has freed it, the handle must be stale.
    fn open(&mut self) -> Result<(), Failure> {
        let Some(object) = self.any() else {
            return Ok(());
        };
        let object = &mut self.objects[object];
        let importer = 1 - object.exporter;
        if object.is_open[importer] {
            return Ok(());
        }
        let verb = match object.kind {
            Kind::Memory { .. } => "open-memory",
            Kind::Event => "open-event",
        };
        let question = format!("{verb} o{} {}", object.name, object.handle);
        if object.is_open[object.exporter] {
            self.peers[importer].ask(question)?;
            object.is_open[importer] = true;
        } else {
            self.peers[importer].refused(question, "Stale")?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Failure> {
        let Some((object, holder)) = self.any_held() else {
            return Ok(());
        };
        let object = &mut self.objects[object];
        self.peers[holder].ask(format!("close o{}", object.name))?;
        object.is_open[holder] = false;
        // Stale handles are tried for a while and then removed from the list.
        if self.objects.len() > 30 {
            self.objects.retain(|object| object.is_open != [false; 2]);
        }
        Ok(())
    }

    fn change(&mut self) -> Result<(), Failure> {
        let Some((object, holder)) = self.any_held() else {
            return Ok(());
        };
        let next = self.random.next();
        let object = &mut self.objects[object];
        let (peer, name) = (&self.peers[holder], object.name);
        match object.kind {
            Kind::Memory { len } => {
                peer.ask(format!("write o{name} 0 {next} {}", len.min(2_000)))?;
                object.state = next;
            }
            Kind::Event if next.is_multiple_of(3) => {
                let value = object.state + 1 + next % 20;
                peer.ask(format!("signal-value o{name} {value}"))?;
                object.state = value;
            }
            Kind::Event => {
                object.state += 1;
                assert_eq!(
                    peer.ask(format!("signal o{name}"))?,
                    [object.state.to_string()]
                );
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        let Some((object, holder)) = self.any_held() else {
            return Ok(());
        };
        let object = &self.objects[object];
        let (peer, name, state) = (&self.peers[holder], object.name, object.state);
        match object.kind {
            Kind::Memory { len } => {
                peer.ask(format!("check o{name} 0 {state} {}", len.min(2_000)))?;
            }
            Kind::Event => {
                peer.ask(format!("wait-value o{name} {state} 5000"))?;
                let next = peer.ask(format!("try-wait o{name} {}", state + 1))?;
                assert_eq!(next, ["false"], "o{name} is at {state}");
            }
        }
        Ok(())
    }

    fn any(&mut self) -> Option<usize> {
        (!self.objects.is_empty()).then(|| self.random.below(self.objects.len()))
    }

    fn any_held(&mut self) -> Option<(usize, usize)> {
        let object = self.any()?;
        let holder = self.random.below(2);
        self.objects[object].is_open[holder].then_some((object, holder))
    }
}

/// Two processes create, open, change, check and close each other's objects. All results match the
/// model.
pub(crate) fn two_processes_and_a_model(harness: &Harness) -> Verdict {
    let end = Instant::now() + TIME;
    let mut steps = 0;
    for seed in 0..SEEDS {
        let mut world = Model {
            peers: [harness.peer()?, harness.peer()?],
            objects: Vec::new(),
            random: Random(seed),
            names: 0,
        };
        for step in 0..STEPS {
            if Instant::now() > end {
                return Ok(Outcome::Passed(format!("{steps} steps in time")));
            }
            world
                .step()
                .map_err(|failure| Failure::new(format!("seed {seed}, step {step}: {failure}")))?;
            steps += 1;
        }
    }
    Ok(Outcome::Passed(format!("{steps} steps")))
}
