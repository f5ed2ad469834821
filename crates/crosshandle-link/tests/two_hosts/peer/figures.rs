//! The peers' side of the benchmark: measures the link, and plain UCX.

use super::gpu::GpuBytes;
use crosshandle::{Event, Memory, Queue};
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
    pub(crate) queue: &'a Queue,
    pub(crate) memories: &'a [Memory],
    pub(crate) events: &'a [Event],
    pub(crate) remote_memories: &'a [RemoteMemory],
    pub(crate) remote_events: &'a [RemoteEvent],
}

impl Ours<'_> {
    /// Measures copies between the first memory of each host, by commands of a queue.
    fn copies(&self, is_read: bool, count: usize, len: usize) -> Result<String> {
        let remote = self.remote_memories[0].range(..len)?;
        let local = self.memories[0].range(..len)?;
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            self.queue.submit(match is_read {
                false => remote.copy_from(local.clone())?,
                true => remote.copy_to(local.clone())?,
            })?;
            self.queue.finish()?;
            times.push(start.elapsed());
        }
        Ok(median(times))
    }

    pub(crate) fn figure(&self, what: &str, count: usize, len: usize) -> Result<String> {
        if let "copy_there" | "copy_here" = what {
            return self.copies(what == "copy_here", count, len);
        }
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
    /// Memory of a GPU, and the remote side's.
    gpu: Option<GpuBytes>,
    remote_gpu: Option<(u64, RemoteKey)>,
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

/// Starts UCX over TCP, for host memory and, if a device is given, for memory of that GPU.
fn bare_start(bare: &mut Option<Bare>, interface: &str, device: Option<&str>) -> Result<String> {
    let transports = match device {
        None => "tcp,self",
        Some(_) => "tcp,cuda_copy,self",
    };
    let mut worker = Worker::new(&Settings {
        interface: Some(interface.to_owned()),
        transports: Some(transports.to_owned()),
    })?;
    let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    // SAFETY: the memory lives as long as the worker.
    let made = unsafe { worker.register(memory.as_ptr().cast_mut().cast(), WORDS * 8, true)? };
    let mut answer = format!(
        "{} {} {}",
        to_hex(&worker.address()?),
        made.address,
        to_hex(&made.key)
    );
    let gpu = device.map(|device| GpuBytes::new(device, WORDS * 8));
    let gpu = gpu.transpose()?;
    if let Some(gpu) = &gpu {
        // SAFETY: the memory stays allocated until the process ends.
        let made = unsafe { worker.register_cuda(gpu.pointer(), gpu.len, true)? };
        answer += &format!(" {} {}", made.address, to_hex(&made.key));
    }
    *bare = Some(Bare {
        worker,
        memory,
        remote: None,
        rounds: 0,
        gpu,
        remote_gpu: None,
    });
    Ok(answer)
}

fn connect(bare: &mut Bare, worker: &str, address: &str, key: &str) -> Result<()> {
    // SAFETY: the test passes the address and the key that the other host's worker returned.
    let key = unsafe {
        bare.worker.connect(&from_hex(worker)?)?;
        bare.worker.unpack(&from_hex(key)?)?
    };
    bare.remote = Some((address.parse()?, key));
    Ok(())
}

pub(crate) fn bare(bare: &mut Option<Bare>, words: &[&str]) -> Result<String> {
    if let ["start", interface] = words {
        return bare_start(bare, interface, None);
    }
    if let ["start", interface, device] = words {
        return bare_start(bare, interface, Some(device));
    }
    let bare = bare.as_mut().ok_or("UCX was not started")?;
    match words {
        ["connect", worker, address, key, gpu, gpu_key] => {
            connect(bare, worker, address, key)?;
            // SAFETY: the test passes the key that the other host's worker returned.
            let gpu_key = unsafe { bare.worker.unpack(&from_hex(gpu_key)?)? };
            bare.remote_gpu = Some((gpu.parse()?, gpu_key));
            Ok(String::new())
        }
        ["gpu_fill", value] => {
            let gpu = bare.gpu.as_ref().ok_or("no GPU memory")?;
            gpu.fill(value.parse()?)?;
            Ok(String::new())
        }
        ["gpu_holds", value, len] => {
            let gpu = bare.gpu.as_ref().ok_or("no GPU memory")?;
            Ok(gpu.holds(value.parse()?, len.parse()?)?.to_string())
        }
        ["connect", worker, address, key] => {
            connect(bare, worker, address, key)?;
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

    /// Copies between the GPU memory of both sides, until the bytes have arrived.
    fn copy(&mut self, is_read: bool, len: usize) -> Result<()> {
        let (remote, key) = self.remote_gpu.ok_or("the other side has no GPU memory")?;
        let local = self.gpu.as_ref().ok_or("no GPU memory")?.pointer();
        // SAFETY: `finish` returns only when no request is in flight, and the memory stays
        // allocated until the process ends.
        let request = unsafe {
            match is_read {
                true => self.worker.get(local, len, remote, key)?,
                false => self.worker.put(local, len, remote, key)?,
            }
        };
        let mut requests = vec![request];
        if !is_read {
            requests.push(self.worker.flush()?);
        }
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
            "copy_there" | "copy_here" => {
                for _ in 0..count {
                    let start = Instant::now();
                    self.copy(what == "copy_here", len)?;
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
