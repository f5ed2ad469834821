//! The peers' side of the benchmark: measures the link, and plain UCX.

use crosshandle::{Event, Memory};
use crosshandle_link::bare::{RemoteKey, Request, Settings, Worker};
use crosshandle_link::{RemoteEvent, RemoteMemory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Returns the median in nanoseconds.
fn median(mut times: Vec<Duration>) -> String {
    times.sort();
    times[times.len() / 2].as_nanos().to_string()
}

/// The objects of the link.
pub(crate) struct Ours<'a> {
    pub(crate) memories: &'a [Memory],
    pub(crate) events: &'a [Event],
    pub(crate) remote_memories: &'a [RemoteMemory],
    pub(crate) remote_events: &'a [RemoteEvent],
}

impl Ours<'_> {
    pub(crate) fn figure(&self, what: &str, count: usize, len: usize) -> Result<String> {
        let (event, remote) = (&self.events[0], &self.remote_memories[0]);
        let bytes = vec![1; len];
        let mut times = Vec::new();
        let first = event.submitted();
        match what {
            // Each round writes and signals, and waits until the remote side has done the same.
            "ping" => {
                for round in 1..=count as u64 {
                    let start = Instant::now();
                    drop(remote.write_and_signal(0, &bytes, &self.remote_events[0])?);
                    event.wait_value_timeout(first + round, Duration::from_secs(10))?;
                    times.push(start.elapsed());
                }
            }
            "pong" => {
                for round in 1..=count as u64 {
                    event.wait_value_timeout(first + round, Duration::from_secs(10))?;
                    drop(remote.write_and_signal(0, &bytes, &self.remote_events[0])?);
                }
                return Ok(self.memories.len().to_string());
            }
            "write" => {
                for _ in 0..count {
                    let start = Instant::now();
                    remote.write(0, &bytes)?;
                    times.push(start.elapsed());
                }
            }
            "reads" => {
                let mut bytes = vec![0; 10_000 * len];
                for _ in 0..count {
                    let chunks = bytes.chunks_mut(len).enumerate();
                    let mut pieces: Vec<_> =
                        chunks.map(|(index, piece)| (index * len, piece)).collect();
                    let start = Instant::now();
                    remote.read_many(&mut pieces)?;
                    times.push(start.elapsed());
                }
            }
            _ => return Err("no such figure".into()),
        }
        Ok(median(times))
    }
}

/// Plain UCX: a worker, memory that the remote side reaches, and the key of the remote side's
/// memory.
pub(crate) struct Bare {
    worker: Worker,
    memory: Box<[AtomicU64]>,
    remote: Option<(u64, RemoteKey)>,
    rounds: u64,
}

/// Number of words in the memory: 64 MiB for bytes, and one word for the number of rounds.
const WORDS: usize = (64 << 20) / 8 + 1;

pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let bytes = (0..text.len()).step_by(2);
    Ok(bytes
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16))
        .collect::<std::result::Result<_, _>>()?)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn bare(bare: &mut Option<Bare>, words: &[&str]) -> Result<String> {
    if let ["start", interface] = words {
        let mut worker = Worker::new(&Settings {
            interface: Some((*interface).to_owned()),
            transports: Some("tcp,self".to_owned()),
        })?;
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the memory lives as long as the worker.
        let made = unsafe { worker.register(memory.as_ptr().cast_mut().cast(), WORDS * 8, true)? };
        let answer = format!(
            "{} {} {}",
            to_hex(&worker.address()?),
            made.address,
            to_hex(&made.key)
        );
        *bare = Some(Bare {
            worker,
            memory,
            remote: None,
            rounds: 0,
        });
        return Ok(answer);
    }
    let bare = bare.as_mut().ok_or("UCX was not started")?;
    match words {
        ["connect", worker, address, key] => {
            // SAFETY: the test passes the address and the key that the other host's worker
            // returned.
            let key = unsafe {
                bare.worker.connect(&from_hex(worker)?)?;
                bare.worker.unpack(&from_hex(key)?)?
            };
            bare.remote = Some((address.parse()?, key));
            Ok(String::new())
        }
        [what, count, len] => bare.figure(what, count.parse()?, len.parse()?),
        _ => Err("no such request of UCX".into()),
    }
}

impl Bare {
    /// Drives the worker until all requests are done.
    fn finish(&mut self, requests: &mut Vec<Option<Request>>) -> Result<()> {
        while let Some(last) = requests.last_mut() {
            match self.worker.is_done(last)? {
                true => drop(requests.pop()),
                false => drop(self.worker.progress()),
            }
        }
        Ok(())
    }

    fn put(&mut self, from: *const u8, len: usize, at: u64) -> Result<()> {
        let (remote, key) = self.remote.ok_or("not connected")?;
        // SAFETY: `finish` returns only when no request is in flight.
        let mut requests = vec![unsafe { self.worker.put(from, len, remote + at, key)? }];
        requests.push(self.worker.flush()?);
        self.finish(&mut requests)
    }

    /// Writes bytes. When they have arrived, writes the word with the number of rounds.
    fn write_and_tell(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes.as_ptr(), bytes.len(), 0)?;
        self.rounds += 1;
        let word = Box::leak(Box::new(self.rounds.to_ne_bytes()));
        let (remote, key) = self.remote.ok_or("not connected")?;
        // SAFETY: the word is leaked, so it is never freed.
        let request = unsafe {
            let to = remote + (WORDS as u64 - 1) * 8;
            self.worker.put(word.as_ptr(), 8, to, key)?
        };
        self.finish(&mut vec![request])
    }

    fn wait(&mut self, round: u64) {
        let word = WORDS - 1;
        while self.memory[word].load(Ordering::Acquire) < round {
            self.worker.progress();
        }
    }

    fn figure(&mut self, what: &str, count: usize, len: usize) -> Result<String> {
        let mut bytes = vec![1; len];
        let mut times = Vec::new();
        match what {
            "ping" => {
                for _ in 0..count {
                    let start = Instant::now();
                    self.write_and_tell(&bytes)?;
                    self.wait(self.rounds);
                    times.push(start.elapsed());
                }
            }
            "pong" => {
                for _ in 0..count {
                    self.wait(self.rounds + 1);
                    self.write_and_tell(&bytes)?;
                }
                return Ok(String::new());
            }
            // After the last round, the word tells the remote side to stop.
            "write" => {
                for _ in 0..count {
                    let start = Instant::now();
                    self.put(bytes.as_ptr(), len, 0)?;
                    times.push(start.elapsed());
                }
                self.write_and_tell(&[])?;
            }
            "reads" => {
                bytes.resize(10_000 * len, 0);
                let (remote, key) = self.remote.ok_or("not connected")?;
                for _ in 0..count {
                    let start = Instant::now();
                    let mut requests = Vec::new();
                    for (index, piece) in bytes.chunks_mut(len).enumerate() {
                        let from = remote + (index * len) as u64;
                        // SAFETY: `finish` returns only when no request is in flight.
                        let request =
                            unsafe { self.worker.get(piece.as_mut_ptr(), len, from, key)? };
                        requests.extend(request.map(Some));
                    }
                    self.finish(&mut requests)?;
                    times.push(start.elapsed());
                }
                self.write_and_tell(&[])?;
            }
            "serve" => {
                self.wait(self.rounds + 1);
                self.rounds += 1;
                // Drive the worker for a moment, so that the remote side's last request completes.
                let until = Instant::now() + Duration::from_millis(100);
                while Instant::now() < until {
                    self.worker.progress();
                }
                return Ok(String::new());
            }
            _ => return Err("no such figure of UCX".into()),
        }
        Ok(median(times))
    }
}
