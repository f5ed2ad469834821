//! Plain UCX between two processes, on GPU memory or host memory, for the comparison with links.

use super::figures::{from_hex, to_hex};
use super::measure::measure;
use crosshandle_link::bare::{RemoteKey, Request, Settings, Worker};
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Memory that UCX moves. It is allocated without this library, as programs that use plain UCX do.
enum Bytes {
    Host(Box<[u8]>),
    Cuda {
        driver: Library,
        start: u64,
        len: usize,
    },
}

/// The type of a function of CUDA's driver.
type Call<A, B, C> = unsafe extern "C" fn(A, B, C) -> c_int;

fn check(call: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(format!("{call}: CUDA's code {code}").into()),
    }
}

impl Bytes {
    fn new(device: &str, len: usize) -> Result<Self> {
        let Some(index) = device.strip_prefix("cuda:") else {
            return Ok(Self::Host(vec![0; len].into()));
        };
        let index: c_int = index.parse()?;
        // SAFETY: the functions have these types in every version of the driver since CUDA 7, and
        // get places of the right types.
        unsafe {
            let driver = Library::new("libcuda.so.1")?;
            let init: unsafe extern "C" fn(c_uint) -> c_int = *driver.get("cuInit\0")?;
            check("cuInit", init(0))?;
            let (mut device, mut context, mut start) = (0, std::ptr::null_mut::<c_void>(), 0u64);
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int =
                *driver.get("cuDeviceGet\0")?;
            check("cuDeviceGet", get(&mut device, index))?;
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                *driver.get("cuDevicePrimaryCtxRetain\0")?;
            check("cuDevicePrimaryCtxRetain", retain(&mut context, device))?;
            let set: unsafe extern "C" fn(*mut c_void) -> c_int =
                *driver.get("cuCtxSetCurrent\0")?;
            check("cuCtxSetCurrent", set(context))?;
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int =
                *driver.get("cuMemAlloc_v2\0")?;
            check("cuMemAlloc", allocate(&mut start, len))?;
            Ok(Self::Cuda { driver, start, len })
        }
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Host(bytes) => bytes.as_ptr().cast_mut(),
            Self::Cuda { start, .. } => std::ptr::without_provenance_mut(*start as usize),
        }
    }

    fn fill(&mut self, from: &[u8]) -> Result<()> {
        match self {
            Self::Host(bytes) => bytes[..from.len()].copy_from_slice(from),
            Self::Cuda { driver, start, len } => {
                assert!(from.len() <= *len);
                // SAFETY: the function has this type, and the bytes are inside the memory.
                unsafe {
                    let copy: Call<u64, *const u8, usize> = *driver.get("cuMemcpyHtoD_v2\0")?;
                    check("cuMemcpyHtoD", copy(*start, from.as_ptr(), from.len()))?;
                }
            }
        }
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(bytes) => into.copy_from_slice(&bytes[..into.len()]),
            Self::Cuda { driver, start, len } => {
                assert!(into.len() <= *len);
                // SAFETY: the function has this type, and the bytes are inside the memory.
                unsafe {
                    let copy: Call<*mut u8, u64, usize> = *driver.get("cuMemcpyDtoH_v2\0")?;
                    check("cuMemcpyDtoH", copy(into.as_mut_ptr(), *start, into.len()))?;
                }
            }
        }
        Ok(())
    }
}

/// A worker, memory that the remote side reaches, and a word that the remote side writes when it is
/// done.
pub(crate) struct Raw {
    worker: Worker,
    bytes: Bytes,
    word: Box<AtomicU64>,
    rounds: u64,
    /// The remote side's memory and word.
    remote: Option<[(u64, RemoteKey); 2]>,
}

pub(crate) fn raw(raw: &mut Option<Raw>, device: &str, words: &[&str]) -> Result<String> {
    if let ["start", interface, transports, len] = words {
        let given = |word: &str| (word != "-").then(|| word.to_owned());
        let mut worker = Worker::new(&Settings {
            interface: given(interface),
            transports: given(transports),
            // As in most programs. A link cannot do this.
            ignores_failures: true,
        })?;
        let len: usize = len.parse()?;
        let (bytes, word) = (Bytes::new(device, len)?, Box::new(AtomicU64::new(0)));
        // SAFETY: both live as long as the worker.
        let (memory, end) = unsafe {
            let memory = match &bytes {
                Bytes::Host(_) => worker.register(bytes.start(), len, true)?,
                Bytes::Cuda { .. } => worker.register_cuda(bytes.start(), len, true)?,
            };
            let end = worker.register(word.as_ptr().cast(), 8, true)?;
            (memory, end)
        };
        let answer = format!(
            "{} {} {} {} {}",
            to_hex(&worker.address()?),
            memory.address,
            to_hex(&memory.key),
            end.address,
            to_hex(&end.key)
        );
        *raw = Some(Raw {
            worker,
            bytes,
            word,
            rounds: 0,
            remote: None,
        });
        return Ok(answer);
    }
    let raw = raw.as_mut().ok_or("UCX was not started")?;
    match words {
        ["connect", worker, address, key, word, word_key] => {
            // SAFETY: the test passes on what the other host's worker returned.
            let (key, word_key) = unsafe {
                raw.worker.connect(&from_hex(worker)?)?;
                let key = raw.worker.unpack(&from_hex(key)?)?;
                (key, raw.worker.unpack(&from_hex(word_key)?)?)
            };
            let (memory, word) = ((address.parse()?, key), (word.parse()?, word_key));
            raw.remote = Some([memory, word]);
            Ok(String::new())
        }
        ["fill", seed, len] => {
            let bytes = super::pattern(seed.parse()?, len.parse()?);
            raw.bytes.fill(&bytes)?;
            Ok(String::new())
        }
        ["holds", seed, len] => {
            let mut bytes = vec![0; len.parse()?];
            raw.bytes.read(&mut bytes)?;
            Ok((bytes == super::pattern(seed.parse()?, bytes.len())).to_string())
        }
        // Drives UCX until the remote side says that it is done.
        ["serve"] => {
            raw.rounds += 1;
            while raw.word.load(Ordering::Acquire) < raw.rounds {
                raw.worker.progress();
            }
            // Gives the remote side's last request time to leave.
            let until = std::time::Instant::now() + Duration::from_millis(20);
            while std::time::Instant::now() < until {
                raw.worker.progress();
            }
            Ok(String::new())
        }
        ["transports"] => Ok(raw.worker.transports()?.join(",")),
        [direction @ ("put" | "get"), len, millis] => {
            let (len, limit) = (len.parse()?, Duration::from_millis(millis.parse()?));
            let measured = measure(limit, || match *direction {
                "put" => raw.put(len),
                _ => raw.get(len),
            });
            raw.tell()?;
            measured
        }
        _ => Err("no such request of UCX".into()),
    }
}

impl Raw {
    fn remote(&self, index: usize) -> Result<(u64, RemoteKey)> {
        Ok(self.remote.ok_or("not connected")?[index])
    }

    fn finish(&mut self, mut request: Option<Request>) -> Result<()> {
        while !self.worker.is_done(&mut request)? {
            self.worker.progress();
        }
        Ok(())
    }

    fn put(&mut self, len: usize) -> Result<()> {
        let (to, key) = self.remote(0)?;
        // SAFETY: the memory lives as long as the worker.
        let request = unsafe { self.worker.put(self.bytes.start(), len, to, key)? };
        let flush = self.worker.flush()?;
        self.finish(request)?;
        self.finish(flush)
    }

    fn get(&mut self, len: usize) -> Result<()> {
        let (from, key) = self.remote(0)?;
        // SAFETY: the memory lives as long as the worker.
        let request = unsafe { self.worker.get(self.bytes.start(), len, from, key)? };
        self.finish(request)
    }

    /// Tells the remote side that this side is done.
    fn tell(&mut self) -> Result<()> {
        self.rounds += 1;
        let word = Box::leak(Box::new(self.rounds.to_ne_bytes()));
        let (to, key) = self.remote(1)?;
        // SAFETY: the word is leaked, so it is never freed.
        let request = unsafe { self.worker.put(word.as_ptr(), 8, to, key)? };
        let flush = self.worker.flush()?;
        self.finish(request)?;
        self.finish(flush)
    }
}
