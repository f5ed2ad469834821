//! One host of the tests. It reads requests, one per line, and replies to each with a line that
//! starts with `ok` or `error`. It ends when its input ends.

mod figures;
mod gpu;
mod neighbour;

use crosshandle::holder::Holder;
use crosshandle::{AllocationOptions, Command, Context, Device, Event, Memory, MemoryKind, Queue};
use crosshandle_link::{
    Certificates, Data, Identity, Link, LinkOptions, Listener, RemoteEvent, RemoteMemory, Staging,
    Token,
};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Peer {
    context: Context,
    queue: Queue,
    memories: Vec<Memory>,
    events: Vec<Event>,
    listener: Option<Listener>,
    links: Vec<Link>,
    remote_memories: Vec<RemoteMemory>,
    remote_events: Vec<RemoteEvent>,
    bare: Option<figures::Bare>,
    neighbour: neighbour::Neighbour,
}

fn main() -> Result<()> {
    let device = std::env::var("CROSSHANDLE_LINK_DEVICE").unwrap_or_else(|_| "host".into());
    let context = Context::new(&Device::find(&device)?)?;
    let mut peer = Peer {
        queue: context.create_queue()?,
        context,
        memories: Vec::new(),
        events: Vec::new(),
        listener: None,
        links: Vec::new(),
        remote_memories: Vec::new(),
        remote_events: Vec::new(),
        bare: None,
        neighbour: neighbour::Neighbour::default(),
    };
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match peer.answer(&words) {
            Ok(answer) => writeln!(output, "ok {answer}")?,
            Err(error) => writeln!(output, "error {}", error.to_string().replace('\n', " "))?,
        }
        output.flush()?;
    }
    Ok(())
}

/// Returns bytes that depend on a seed and on their position.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|place| ((place.wrapping_mul(31) ^ (place >> 8)).wrapping_add(seed) % 251) as u8)
        .collect()
}

fn options(words: &[&str]) -> Result<LinkOptions> {
    let [token, data, interface, keep_alive_ms] = words else {
        return Err("token, data, interface and keep-alive are needed".into());
    };
    // A token with commas is a list of certificate files and the name of the listening side.
    let identity = match token.split(',').collect::<Vec<_>>()[..] {
        [authority, own, peer_name] => Identity::Certificates(Certificates {
            authority: authority.into(),
            certificate: format!("{own}.pem").into(),
            key: format!("{own}.key.pem").into(),
            peer_name: peer_name.to_owned(),
        }),
        _ => Identity::Token(token.parse::<Token>()?),
    };
    let options = LinkOptions::new(identity)
        .names(Holder::new())
        .keep_alive(Duration::from_millis(keep_alive_ms.parse()?));
    // After `ucx` may follow the transports (`-` for UCX's own choice), and the staging option.
    let mut data = data.split(':');
    if data.next() != Some("ucx") {
        return Ok(options.data(Data::Tls));
    }
    let options = match *interface {
        "-" => options,
        interface => options.interface(interface),
    };
    let options = match data.next().unwrap_or("tcp,self") {
        "-" => options,
        transports => options.transports(transports),
    };
    Ok(options.staging(match data.next() {
        None | Some("auto") => Staging::Auto,
        Some("always") => Staging::Always,
        Some(_) => Staging::WhereNeeded,
    }))
}

impl Peer {
    /// Sets the bytes of memory that the host may not be able to access.
    fn set(&self, memory: &Memory, bytes: &[u8]) -> Result<()> {
        if memory.bytes().is_ok() {
            return Ok(memory.write(0, bytes)?);
        }
        let copy = self.host_memory(bytes.len())?;
        copy.write(0, bytes)?;
        // A new queue is used, because the peer's usual queue may be waiting for an event.
        let queue = self.context.create_queue()?;
        queue.submit(Command::copy(copy.all(), memory.all())?)?;
        Ok(queue.finish()?)
    }

    /// Returns the bytes of memory that the host may not be able to access.
    fn get(&self, memory: &Memory) -> Result<Vec<u8>> {
        let mut bytes = vec![0; memory.len()];
        if memory.bytes().is_ok() {
            memory.read(0, &mut bytes)?;
            return Ok(bytes);
        }
        let copy = self.host_memory(bytes.len())?;
        let queue = self.context.create_queue()?;
        queue.submit(Command::copy(memory.all(), copy.all())?)?;
        queue.finish()?;
        copy.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn host_memory(&self, len: usize) -> Result<Memory> {
        let options = AllocationOptions::new(len).kind(MemoryKind::Host);
        Ok(self.context.allocate_with(options)?)
    }

    fn answer(&mut self, words: &[&str]) -> Result<String> {
        let number = |index: usize| -> Result<usize> {
            Ok(words.get(index).ok_or("a number is missing")?.parse()?)
        };
        let millis =
            |index: usize| Ok::<_, Box<dyn Error>>(Duration::from_millis(number(index)? as u64));
        Ok(match words {
            ["host"] => format!("{:x}", crosshandle::report::host_identity()),
            // Objects of this host.
            ["allocate", len] => {
                let memory = self.context.allocate(len.parse()?)?;
                let handles = format!("{} {}", memory.handle()?, memory.handle_read_only()?);
                self.memories.push(memory);
                handles
            }
            ["create_event"] => {
                let event = self.context.create_event()?;
                let handle = event.handle()?.to_string();
                self.events.push(event);
                handle
            }
            ["fill", ..] => {
                let memory = &self.memories[number(1)?];
                self.set(memory, &pattern(number(2)? as u64, memory.len()))?;
                String::new()
            }
            ["holds", ..] => {
                let (memory, seed) = (&self.memories[number(1)?], number(2)?);
                let (offset, len) = (number(3)?, number(4)?);
                let bytes = self.get(memory)?;
                let part = bytes.get(offset..offset + len).ok_or("not inside")?;
                (part == pattern(seed as u64, len)).to_string()
            }
            ["signal", ..] => self.events[number(1)?].signal()?.to_string(),
            ["fail", ..] => {
                let event = &self.events[number(1)?];
                event.fail_value(event.submitted() + 1, "it was to fail")?;
                String::new()
            }
            ["submitted", ..] => self.events[number(1)?].submitted().to_string(),
            ["wait", ..] => {
                self.events[number(1)?].wait_value_timeout(number(2)? as u64, millis(3)?)?;
                String::new()
            }
            ["open_memory_here", handle] => self
                .context
                .open_memory(&handle.parse()?)?
                .len()
                .to_string(),
            ["open_event_here", handle] => {
                self.events.push(self.context.open_event(&handle.parse()?)?);
                String::new()
            }
            // Links.
            ["listen", address, rest @ ..] => {
                let listener = Listener::bind(*address, &self.context, &options(rest)?)?;
                let address = listener.local_address().to_string();
                self.listener = Some(listener);
                address
            }
            ["accept", ..] => {
                let listener = self.listener.as_ref().ok_or("it does not listen")?;
                self.links.push(listener.accept_timeout(millis(1)?)?);
                format!("{:x}", self.links[self.links.len() - 1].peer_host())
            }
            ["connect", address, rest @ ..] => {
                let link = Link::connect(*address, &self.context, &options(rest)?)?;
                let host = link.peer_host();
                self.links.push(link);
                format!("{host:x}")
            }
            ["ended"] => match self.links.last().ok_or("no link")?.ended() {
                Some(error) => error.to_string(),
                None => "no".into(),
            },
            ["replaced_endpoints"] => {
                let link = self.links.last().ok_or("no link")?;
                link.replaced_endpoints().to_string()
            }
            ["until_ended", ..] => {
                let (start, limit) = (Instant::now(), millis(1)?);
                while self.links.last().ok_or("no link")?.ended().is_none() {
                    if start.elapsed() > limit {
                        return Err("it has not ended".into());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                start.elapsed().as_millis().to_string()
            }
            ["close"] => {
                self.links.last().ok_or("no link")?.close();
                String::new()
            }
            ["drop_links"] => {
                self.remote_memories.clear();
                self.remote_events.clear();
                self.links.clear();
                String::new()
            }
            // Objects of the remote host.
            ["open_memory", handle] => {
                let link = self.links.last().ok_or("no link")?;
                self.remote_memories
                    .push(link.open_memory(&handle.parse()?)?);
                let memory = &self.remote_memories[self.remote_memories.len() - 1];
                let staged = if memory.is_staged() { " staged" } else { "" };
                format!("{} {:?}{staged}", memory.len(), memory.access())
            }
            ["open_event", handle] => {
                let link = self.links.last().ok_or("no link")?;
                self.remote_events.push(link.open_event(&handle.parse()?)?);
                let event = &self.remote_events[self.remote_events.len() - 1];
                event.mirror().submitted().to_string()
            }
            ["close_event"] => {
                self.remote_events.pop();
                String::new()
            }
            ["remote_write", ..] => {
                let bytes = pattern(number(2)? as u64, number(4)?);
                self.remote_memories[number(1)?].write(number(3)?, &bytes)?;
                String::new()
            }
            ["remote_write_and_signal", ..] => {
                let (memory, event) = (&self.remote_memories[number(1)?], &self.remote_events[0]);
                let bytes = pattern(number(2)? as u64, number(4)?);
                memory
                    .write_and_signal(number(3)?, &bytes, event)?
                    .wait()?
                    .to_string()
            }
            ["remote_holds", ..] => {
                let mut bytes = vec![0; number(4)?];
                self.remote_memories[number(1)?].read(number(3)?, &mut bytes)?;
                (bytes == pattern(number(2)? as u64, bytes.len())).to_string()
            }
            ["remote_read_many", ..] => {
                let (memory, count, len) =
                    (&self.remote_memories[number(1)?], number(3)?, number(4)?);
                let whole = pattern(number(2)? as u64, memory.len());
                let mut bytes = vec![0; count * len];
                let offset = |index: usize| index * 7919 % (memory.len() - len);
                let mut pieces: Vec<_> = bytes
                    .chunks_mut(len)
                    .enumerate()
                    .map(|(index, piece)| (offset(index), piece))
                    .collect();
                memory.read_many(&mut pieces)?;
                let mut pieces = pieces.iter();
                pieces
                    .all(|(at, piece)| whole[*at..at + len] == **piece)
                    .to_string()
            }
            // A queue waits for an event, copies to the remote host and signals there. It then
            // copies back and compares.
            ["queue_copies", ..] => {
                let (remote, event) = (
                    &self.remote_memories[number(1)?],
                    &self.remote_events[number(2)?],
                );
                let bytes = pattern(number(3)? as u64, remote.len());
                let (from, to) = (
                    self.context.allocate(bytes.len())?,
                    self.context.allocate(bytes.len())?,
                );
                let (start, done) = (self.context.create_event()?, self.context.create_event()?);
                self.queue
                    .submit(remote.copy_from(from.all())?.after_value(&start, 1))?;
                self.queue.submit(event.signal_command())?;
                self.queue.submit(remote.copy_to(to.all())?.signal(&done))?;
                // The submitted copy has not started, so it will copy the bytes that are written
                // here.
                self.set(&from, &bytes)?;
                if done.try_wait()? {
                    return Err("it did not wait".into());
                }
                start.signal()?;
                done.wait_timeout(Duration::from_secs(20))?;
                (self.get(&to)? == bytes).to_string()
            }
            ["remote_write_zeros", ..] => {
                self.remote_memories[number(1)?].write(0, &vec![0; number(2)?])?;
                String::new()
            }
            ["remote_signal", ..] => self.remote_events[number(1)?].signal()?.to_string(),
            ["remote_start_signal", ..] => {
                drop(self.remote_events[number(1)?].start_signal()?);
                String::new()
            }
            ["mirror_wait", ..] => {
                let (start, event) = (Instant::now(), &self.remote_events[number(1)?]);
                let waited = event
                    .mirror()
                    .wait_value_timeout(number(2)? as u64, millis(3)?);
                let kind = match &waited {
                    Ok(()) => "reached".into(),
                    Err(error) if error.is_peer_dead() => "peer_dead".into(),
                    Err(error) => format!("{:?}: {error}", error.kind()),
                };
                format!("{kind} {}", start.elapsed().as_millis())
            }
            ["mirror_handle", ..] => self.remote_events[number(1)?]
                .mirror()
                .handle()?
                .to_string(),
            // Rates in MB/s of copies by a queue, in both directions.
            ["copy_rate", ..] => {
                let (remote, rounds) = (&self.remote_memories[number(1)?], number(2)?);
                let local = self.context.allocate(remote.len())?;
                let mut rates = Vec::new();
                for is_read in [false, true] {
                    let start = Instant::now();
                    for _ in 0..rounds {
                        self.queue.submit(match is_read {
                            false => remote.copy_from(local.all())?,
                            true => remote.copy_to(local.all())?,
                        })?;
                    }
                    self.queue.finish()?;
                    let bytes = (rounds * remote.len()) as f64;
                    rates.push(bytes / start.elapsed().as_secs_f64() / 1e6);
                }
                format!("{:.0} {:.0}", rates[0], rates[1])
            }
            ["transports"] => {
                let link = self.links.last().ok_or("no link")?;
                link.transports().join(",")
            }
            ["neighbour", rest @ ..] => {
                let link = self.links.last();
                self.neighbour
                    .answer(&self.context, link, &self.memories, rest)?
            }
            ["open_name", name] => {
                let name = self.links.last().ok_or("no link")?.open_name(name)?;
                let roles: Vec<_> = name.parts.iter().map(|part| &*part.role).collect();
                format!("{} {}", name.version, roles.join(" "))
            }
            ["bare", rest @ ..] => figures::bare(&mut self.bare, rest)?,
            ["figure", what, count, len] => {
                let ours = figures::Ours {
                    queue: &self.queue,
                    memories: &self.memories,
                    events: &self.events,
                    remote_memories: &self.remote_memories,
                    remote_events: &self.remote_events,
                };
                ours.figure(what, count.parse()?, len.parse()?)?
            }
            _ => return Err(format!("no such request: {words:?}").into()),
        })
    }
}
