//! Code that signals events and waits for them: kernels on GPUs, and threads on the host.
//!
//! The source is `kernels/device_signals.cu`. GPUs run the PTX that was made from it. For the host,
//! the system's C++ compiler compiles the source and `crosshandle.cuh`.

use crosshandle::event::{DeviceChannel, DeviceChannelAddresses, DeviceEventAddresses};
use crosshandle::kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage};
use crosshandle::{
    AllocationOptions, Command, Context, Device, Error, Event, Memory, MemoryKind, Queue, Result,
};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs, process, thread};

/// The kernels, which are made from the CUDA source in the same folder.
const PTX: &str = include_str!("../kernels/device_signals.ptx");
const SOURCE: &str = include_str!("../kernels/device_signals.cu");
const HEADERS: [(&str, &str); 2] = [
    (
        "crosshandle.cuh",
        include_str!("../../crosshandle-c/include/crosshandle.cuh"),
    ),
    (
        "crosshandle.h",
        include_str!("../../crosshandle-c/include/crosshandle.h"),
    ),
];

/// Bytes of the results, and the number of 64-bit words of one.
const RESULT_BYTES: usize = 24;

/// The functions, of which one runs at a time.
pub struct DeviceCode {
    context: Context,
    result: Memory,
    runner: Runner,
}

enum Runner {
    Gpu {
        queue: Queue,
        turns: Kernel,
        wait: Kernel,
        signals: Kernel,
        litmus: Kernel,
        pass_items: Kernel,
    },
    Host {
        functions: Functions,
        /// Gets a message at the end of the thread that runs a function.
        end: Mutex<Option<Receiver<()>>>,
    },
}

type Address = DeviceEventAddresses;

/// The functions that the C++ compiler has compiled.
#[derive(Clone, Copy)]
struct Functions {
    turns: unsafe extern "C" fn(Address, Address, u64, u64, u64, usize),
    wait: unsafe extern "C" fn(Address, u64, u64, usize),
    signals: unsafe extern "C" fn(Address, u64, u64, u64, usize),
    litmus: unsafe extern "C" fn(Address, Address, usize, u64, u64, u64, usize),
    pass_items: unsafe extern "C" fn(DeviceChannelAddresses, u64, u64, u64, usize),
}

/// The result of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceResult {
    /// The status of the last wait, as `crosshandle.cuh` numbers it.
    pub status: u64,
    /// The number of rounds, or of the last signal.
    pub rounds: u64,
    /// The duration by the clock of the device.
    pub time: Duration,
}

impl DeviceResult {
    /// The signal is complete.
    pub const COMPLETE: u64 = 0;
    /// The deadline has passed.
    pub const TIMED_OUT: u64 = 1;
    /// The process that should have signalled has ended.
    pub const PEER_DIED: u64 = 2;
    /// The signaller reported a failure.
    pub const FAILED: u64 = 3;
    /// The host told the kernel to stop.
    pub const ABORTED: u64 = 4;
}

/// Number of words that each side of a litmus test writes in a round.
pub(crate) const LITMUS_WORDS: usize = 64;

impl DeviceCode {
    /// Bytes of the words of a litmus test: for two sides, in even and odd rounds.
    pub const LITMUS_BYTES: usize = 4 * LITMUS_WORDS * size_of::<u64>();

    /// Returns whether a device can run the functions.
    pub fn runs_on(device: &Device) -> bool {
        device.info().capabilities.device_signals && (is_host(device) || device.kernels().is_ok())
    }

    /// Loads the functions.
    ///
    /// # Errors
    /// Fails as [`Program::new`] does, or if the system has no C++ compiler.
    pub fn load(context: &Context) -> Result<Self> {
        let runner = match is_host(context.device()) {
            true => Runner::Host {
                functions: Functions::compile()?,
                end: Mutex::new(None),
            },
            false => {
                let program = Program::new(context, ProgramImage::text(PTX))?;
                Runner::Gpu {
                    queue: context.create_queue()?,
                    turns: program.kernel("turns")?,
                    wait: program.kernel("wait_for")?,
                    signals: program.kernel("signals")?,
                    litmus: program.kernel("litmus")?,
                    pass_items: program.kernel("pass_items")?,
                }
            }
        };
        let result = AllocationOptions::new(RESULT_BYTES).kind(MemoryKind::Host);
        Ok(Self {
            context: context.clone(),
            result: context.allocate_with(result)?,
            runner,
        })
    }

    /// Starts a function as a kernel of one block, or on a thread of the host.
    fn start(
        &self,
        threads: u32,
        kernel: impl FnOnce(&Runner) -> Option<(&Queue, &Kernel)>,
        arguments: KernelArguments,
        kept: impl Send + 'static,
        call: impl FnOnce(&Functions, usize) + Send + 'static,
    ) -> Result<()> {
        self.result.write(0, &[0xff; RESULT_BYTES])?;
        if let Some((queue, kernel)) = kernel(&self.runner) {
            let shape = LaunchShape::covering(threads as usize, threads)?;
            let arguments = arguments.with(&self.result.all());
            // SAFETY: the kernels access only events and the result, which the arguments keep
            // alive.
            let launch = unsafe { Command::launch(kernel, shape, arguments)? };
            return queue.submit(launch);
        }
        let Runner::Host { functions, end } = &self.runner else {
            return Ok(());
        };
        let (functions, result) = (*functions, self.result.as_ptr().expose_provenance());
        let (ended, wait) = channel();
        thread::spawn(move || {
            call(&functions, result);
            drop(kept);
            let _ = ended.send(());
        });
        *end.lock().expect("no panic") = Some(wait);
        Ok(())
    }

    /// Starts code that waits for `theirs` and signals `ours`, in turns.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_turns(
        &self,
        ours: &Event,
        theirs: &Event,
        rounds: u64,
        is_first: bool,
        timeout: Duration,
    ) -> Result<()> {
        let events = [ours, theirs].map(|event| self.context.device_event(event));
        let [ours, theirs] = events;
        let (ours, theirs) = (ours?, theirs?);
        let (is_first, timeout) = (u64::from(is_first), timeout.as_nanos() as u64);
        let arguments = KernelArguments::new()
            .with(&ours)
            .with(&theirs)
            .value(rounds)
            .value(is_first)
            .value(timeout);
        let (one, two) = (ours.addresses(), theirs.addresses());
        self.start(
            1,
            |runner| match runner {
                Runner::Gpu { queue, turns, .. } => Some((queue, turns)),
                Runner::Host { .. } => None,
            },
            arguments,
            vec![ours, theirs],
            // SAFETY: the thread keeps the events, and `self` keeps the result.
            move |functions, result| unsafe {
                (functions.turns)(one, two, rounds, is_first, timeout, result);
            },
        )
    }

    /// Starts code that waits for one signal.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_wait(&self, event: &Event, number: u64, timeout: Duration) -> Result<()> {
        let event = self.context.device_event(event)?;
        let timeout = timeout.as_nanos() as u64;
        let arguments = KernelArguments::new()
            .with(&event)
            .value(number)
            .value(timeout);
        let one = event.addresses();
        self.start(
            1,
            |runner| match runner {
                Runner::Gpu { queue, wait, .. } => Some((queue, wait)),
                Runner::Host { .. } => None,
            },
            arguments,
            vec![event],
            // SAFETY: the thread keeps the event, and `self` keeps the result.
            move |functions, result| unsafe { (functions.wait)(one, number, timeout, result) },
        )
    }

    /// Starts code that signals several times, with a pause before each signal. The last `failures`
    /// signals fail.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_signals(
        &self,
        event: &Event,
        successes: u64,
        failures: u64,
        pause: Duration,
    ) -> Result<()> {
        let event = self.context.device_event(event)?;
        let pause = pause.as_nanos() as u64;
        let arguments = KernelArguments::new()
            .with(&event)
            .value(successes)
            .value(failures)
            .value(pause);
        let one = event.addresses();
        self.start(
            1,
            |runner| match runner {
                Runner::Gpu { queue, signals, .. } => Some((queue, signals)),
                Runner::Host { .. } => None,
            },
            arguments,
            vec![event],
            // SAFETY: the thread keeps the event, and `self` keeps the result.
            move |functions, result| unsafe {
                (functions.signals)(one, successes, failures, pause, result);
            },
        )
    }

    /// Starts code that writes words, signals, waits, and checks the words of the other side. On a
    /// GPU, 32 threads write and check. `side` is 0 or 1, and `words` has
    /// [`LITMUS_BYTES`](Self::LITMUS_BYTES).
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_litmus(
        &self,
        [ours, theirs]: [&Event; 2],
        words: &Arc<Memory>,
        side: u64,
        rounds: u64,
        timeout: Duration,
    ) -> Result<()> {
        let ours = self.context.device_event(ours)?;
        let theirs = self.context.device_event(theirs)?;
        let timeout = timeout.as_nanos() as u64;
        let arguments = KernelArguments::new()
            .with(&ours)
            .with(&theirs)
            .with(&words.all())
            .value(side)
            .value(rounds)
            .value(timeout);
        let (one, two, words) = (ours.addresses(), theirs.addresses(), Arc::clone(words));
        self.start(
            32,
            |runner| match runner {
                Runner::Gpu { queue, litmus, .. } => Some((queue, litmus)),
                Runner::Host { .. } => None,
            },
            arguments,
            vec![ours, theirs],
            // SAFETY: the thread keeps the events and the words, and `self` keeps the result.
            move |functions, result| unsafe {
                let address = words.as_ptr().expose_provenance();
                (functions.litmus)(one, two, address, side, rounds, timeout, result);
            },
        )
    }

    /// Returns a channel in this memory.
    ///
    /// # Errors
    /// Fails as [`DeviceChannel::new`] does.
    pub fn channel(
        &self,
        full: &Event,
        empty: &Event,
        slots: &Arc<Memory>,
        depth: u64,
    ) -> Result<DeviceChannel> {
        DeviceChannel::new(&self.context, full, empty, Arc::clone(slots), depth)
    }

    /// Starts code that sends items through a channel of slots of 64 bytes, or receives them. The
    /// consumer has created `empty`, and the producer `full`.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_items(
        &self,
        channel: DeviceChannel,
        is_producer: bool,
        items: u64,
        timeout: Duration,
    ) -> Result<()> {
        let (is_producer, timeout) = (u64::from(is_producer), timeout.as_nanos() as u64);
        let arguments = KernelArguments::new()
            .with(&channel)
            .value(is_producer)
            .value(items)
            .value(timeout);
        let addresses = channel.addresses();
        self.start(
            1,
            |runner| match runner {
                Runner::Gpu {
                    queue, pass_items, ..
                } => Some((queue, pass_items)),
                Runner::Host { .. } => None,
            },
            arguments,
            channel,
            // SAFETY: the thread keeps the channel, and `self` keeps the result.
            move |functions, result| unsafe {
                (functions.pass_items)(addresses, is_producer, items, timeout, result);
            },
        )
    }

    /// Waits for the end of the code, and returns its result.
    ///
    /// # Errors
    /// Fails as [`Queue::finish_timeout`] does.
    pub fn end(&self, timeout: Duration) -> Result<DeviceResult> {
        match &self.runner {
            Runner::Gpu { queue, .. } => queue.finish_timeout(timeout)?,
            Runner::Host { end, .. } => {
                let end = end.lock().expect("no panic").take();
                if let Some(end) = end {
                    let ended = end.recv_timeout(timeout);
                    ended.map_err(|_| Error::TimedOut("waiting for code of the host"))?;
                }
            }
        }
        let mut bytes = [0; RESULT_BYTES];
        self.result.read(0, &mut bytes)?;
        let words = bytes.as_chunks::<8>().0;
        Ok(DeviceResult {
            status: u64::from_ne_bytes(words[0]),
            rounds: u64::from_ne_bytes(words[1]),
            time: Duration::from_nanos(u64::from_ne_bytes(words[2])),
        })
    }
}

fn is_host(device: &Device) -> bool {
    device.info().backend.to_string() == "host"
}

impl Functions {
    /// Compiles the source into a shared library, and loads it until the process ends.
    fn compile() -> Result<Self> {
        let refused = |what: String| Error::Unsupported(format!("device code of the host: {what}"));
        let io = |error: std::io::Error| refused(error.to_string());
        let name = format!("xhc-code-{}", process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir_all(&directory).map_err(io)?;
        for (name, text) in HEADERS {
            fs::write(directory.join(name), text).map_err(io)?;
        }
        let (source, library) = (directory.join("code.cpp"), directory.join("code.so"));
        fs::write(&source, SOURCE).map_err(io)?;
        let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let compiled = process::Command::new(compiler)
            .args(["-std=c++11", "-O2", "-shared", "-fPIC", "-D__global__="])
            .args(["-DCROSSHANDLE_NO_ABI_CHECK", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(&source)
            .output()
            .map_err(io)?;
        let path = OsString::from(library);
        let path = CString::new(path.into_vec()).map_err(|error| refused(error.to_string()))?;
        // SAFETY: the library was compiled above and has no constructors.
        let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let _ = fs::remove_dir_all(&directory);
        if opened.is_null() {
            return Err(refused(
                String::from_utf8_lossy(&compiled.stderr).into_owned(),
            ));
        }
        let names = [c"turns", c"wait_for", c"signals", c"litmus", c"pass_items"];
        let find = |name: &std::ffi::CStr| {
            // SAFETY: the library is open, and the name ends with a zero.
            unsafe { libc::dlsym(opened, name.as_ptr()) }
        };
        let [turns, wait, signals, litmus, pass_items] = names.map(find);
        if [turns, wait, signals, litmus, pass_items]
            .iter()
            .any(|found| found.is_null())
        {
            return Err(refused("a function is missing".into()));
        }
        // SAFETY: the types are those in the source, and the library is never closed.
        unsafe {
            Ok(Self {
                turns: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(Address, Address, u64, u64, u64, usize),
                >(turns),
                wait: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(Address, u64, u64, usize),
                >(wait),
                signals: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(Address, u64, u64, u64, usize),
                >(signals),
                litmus: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(Address, Address, usize, u64, u64, u64, usize),
                >(litmus),
                pass_items: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(DeviceChannelAddresses, u64, u64, u64, usize),
                >(pass_items),
            })
        }
    }
}
