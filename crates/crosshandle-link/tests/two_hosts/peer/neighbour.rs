//! Requests of the tests that share a link, or use a shared one.

use super::pattern;
use crosshandle::{Context, Event, Memory};
use crosshandle_link::{Link, NeighbourEvent, NeighbourLink, NeighbourMemory, SharedLink};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The link that this process shares, and the shared links and objects that it uses.
#[derive(Default)]
pub(crate) struct Neighbour {
    shared: Option<SharedLink>,
    links: Vec<NeighbourLink>,
    memories: Vec<NeighbourMemory>,
    events: Vec<NeighbourEvent>,
}

impl Neighbour {
    pub(crate) fn answer(
        &mut self,
        context: &Context,
        link: Option<&Link>,
        own: &[Memory],
        words: &[&str],
    ) -> Result<String> {
        let number = |index: usize| -> Result<usize> {
            Ok(words.get(index).ok_or("a number is missing")?.parse()?)
        };
        let last = || self.links.last().ok_or("not connected");
        Ok(match words {
            ["share", name] => {
                self.shared = Some(SharedLink::new(link.ok_or("no link")?, name, None)?);
                String::new()
            }
            ["unshare"] => {
                self.shared = None;
                String::new()
            }
            ["neighbours"] => {
                let shared = self.shared.as_ref().ok_or("nothing is shared")?;
                shared.neighbours().to_string()
            }
            ["connect", name] => {
                self.links
                    .push(NeighbourLink::connect(name, context, None)?);
                String::new()
            }
            ["disconnect"] => {
                *self = Self::default();
                String::new()
            }
            ["open_memory", handle] => {
                let memory = last()?.open_memory(&handle.parse()?)?;
                let opened = format!("{} {:?}", memory.len(), memory.access());
                self.memories.push(memory);
                opened
            }
            ["open_event", handle] => {
                let event = last()?.open_event(&handle.parse()?)?;
                self.events.push(event);
                String::new()
            }
            ["write", ..] => {
                let bytes = pattern(number(2)? as u64, number(4)?);
                self.memories[number(1)?].write(number(3)?, &bytes)?;
                String::new()
            }
            ["holds", ..] => {
                let mut bytes = vec![0; number(4)?];
                self.memories[number(1)?].read(number(3)?, &mut bytes)?;
                (bytes == pattern(number(2)? as u64, bytes.len())).to_string()
            }
            // Copies between this process's own memory and the remote memory.
            ["copy_there", ..] => {
                let own = &own[number(2)?];
                self.memories[number(1)?].copy_from(number(3)?, own, 0..own.len())?;
                String::new()
            }
            ["copy_here", ..] => {
                let own = &own[number(2)?];
                self.memories[number(1)?].copy_to(number(3)?, own, 0..own.len())?;
                String::new()
            }
            ["signal", ..] => self.events[number(1)?].signal()?.to_string(),
            ["wait", ..] => {
                let mirror: &Event = self.events[number(1)?].mirror();
                let limit = Duration::from_millis(number(3)? as u64);
                mirror.wait_value_timeout(number(2)? as u64, limit)?;
                String::new()
            }
            ["submitted", ..] => self.events[number(1)?].mirror().submitted().to_string(),
            _ => return Err(format!("no such request: {words:?}").into()),
        })
    }
}
