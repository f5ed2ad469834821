//! The commands that every copy of crosshandle understands.

use crosshandle::{Command, Context, Device, Error, Event, Memory, Queue};
use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::Duration;

type Answer = Result<String, Error>;

/// The user of a copy. It has a context and a queue from its first command until it leaves.
#[derive(Default)]
pub(crate) struct Actor {
    life: Option<Life>,
    churning: Option<JoinHandle<Answer>>,
}

struct Life {
    events: HashMap<String, Event>,
    memory: HashMap<String, Memory>,
    queue: Queue,
    /// The event whose next signal pending commands wait for.
    gate: Event,
    context: Context,
}

impl Actor {
    /// Executes the command in a line, and returns the reply as a line.
    pub(crate) fn act(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(self.try_act(&words))
    }

    fn try_act(&mut self, words: &[&str]) -> Answer {
        match *words {
            // Drops all objects. This also releases the places in other exporters' contexts.
            ["leave"] => self.life = None,
            // Repeatedly attaches to an event's exporter and detaches again, on a thread.
            ["churn", handle, rounds] => {
                let handle = handle.to_owned();
                let rounds = rounds.parse().expect("a number");
                let churn = move || churn(&handle, rounds);
                self.churning = Some(std::thread::spawn(churn));
            }
            ["join"] => {
                let churning = self.churning.take().expect("it churns");
                return churning.join().expect("no panic");
            }
            _ => return self.life()?.act(words),
        }
        Ok("ok".into())
    }

    fn life(&mut self) -> Result<&mut Life, Error> {
        if self.life.is_none() {
            self.life = Some(Life::new()?);
        }
        Ok(self.life.as_mut().expect("just made"))
    }
}

impl Life {
    fn new() -> Result<Self, Error> {
        let context = Context::new(&Device::find("host")?)?;
        Ok(Self {
            events: HashMap::new(),
            memory: HashMap::new(),
            queue: context.create_queue()?,
            gate: context.create_event()?,
            context,
        })
    }

    fn act(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["make-event", name] => {
                let event = self.context.create_event()?;
                let handle = event.handle()?;
                self.events.insert(name.into(), event);
                return Ok(handle.to_string());
            }
            ["open-event", name, handle] => {
                let event = self.context.open_event(&handle.parse()?)?;
                self.events.insert(name.into(), event);
            }
            ["signal", name] => return Ok(self.events[name].signal()?.to_string()),
            // Submits a signal that stays pending until `finish`.
            ["pend", name] => {
                let next = self.gate.status().submitted + 1;
                let command = Command::barrier().after_value(&self.gate, next);
                self.queue.submit(command.signal(&self.events[name]))?;
            }
            ["finish"] => {
                self.gate.signal()?;
                self.queue.finish()?;
            }
            ["wait", name, milliseconds] => {
                let timeout = Duration::from_millis(milliseconds.parse().expect("a number"));
                self.events[name].wait_timeout(timeout)?;
            }
            ["wait-next", name, milliseconds] => {
                let timeout = Duration::from_millis(milliseconds.parse().expect("a number"));
                let next = self.events[name].status().submitted + 1;
                self.events[name].wait_value_timeout(next, timeout)?;
            }
            ["make-memory", name, len] => {
                let memory = self.context.allocate(len.parse().expect("a number"))?;
                let handle = memory.handle()?;
                self.memory.insert(name.into(), memory);
                return Ok(handle.to_string());
            }
            ["open-memory", name, handle] => {
                let memory = self.context.open_memory(&handle.parse()?)?;
                self.memory.insert(name.into(), memory);
            }
            ["write", name, text] => self.memory[name].write(0, text.as_bytes())?,
            ["read", name, len] => {
                let mut bytes = vec![0; len.parse().expect("a number")];
                self.memory[name].read(0, &mut bytes)?;
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            ["close", name] => {
                let closed = (self.events.remove(name), self.memory.remove(name));
                assert!(closed.0.is_some() || closed.1.is_some(), "{name}");
            }
            _ => panic!("{words:?}"),
        }
        Ok("ok".into())
    }
}

/// Converts a result to a word.
pub(crate) fn answer(result: Result<String, Error>) -> String {
    result.unwrap_or_else(|error| match error {
        Error::TimedOut(_) => "late".into(),
        Error::PeerDied(_) => "dead".into(),
        Error::ExporterGone { .. } => "gone".into(),
        Error::Unsupported(_) => "unsupported".into(),
        error => format!("{error:#?}"),
    })
}

fn churn(handle: &str, rounds: u32) -> Answer {
    let handle = handle.parse()?;
    let device = Device::find("host")?;
    for _ in 0..rounds {
        let event = Context::new(&device)?.open_event(&handle)?;
        event.signal()?;
    }
    Ok("ok".into())
}
