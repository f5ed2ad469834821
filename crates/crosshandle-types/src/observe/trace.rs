//! A timeline of what this process shares, in the format of Chrome's trace events, which Perfetto
//! opens.
//!
//! [`VARIABLE`] names the file. While it is unset, each step costs one load of a static. Several
//! processes may name the same file. Each event is one line, which one `write` appends, and the
//! kernel makes such appends one after the other. A killed process therefore leaves a valid file:
//! the format allows that the closing bracket of the list is missing.

use super::kind_name;
use crate::error::Error;
use crosshandle_handle::HandleKind;
use rustix::fs::FlockOperation;
use serde::Serialize;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, io, process};

/// The environment variable that names the file of the timeline. `%p` becomes the process id.
pub const VARIABLE: &str = "CROSSHANDLE_TRACE";
const CATEGORY: &str = "crosshandle";

/// Whether steps may have to be written. True until the first step has read the variable.
static MAY_WRITE: AtomicBool = AtomicBool::new(true);
static FILE: OnceLock<Option<File>> = OnceLock::new();

thread_local! {
    /// The process in which this thread has written its name. A forked child writes it again.
    static NAMED_IN: Cell<u32> = const { Cell::new(0) };
}

/// The start of a step, or nothing if there is no timeline.
#[derive(Clone, Copy, Debug)]
#[must_use = "the step is written when it ends"]
pub struct Begun(Option<NonZeroU64>);

/// Starts a step.
#[inline]
pub fn begin() -> Begun {
    match MAY_WRITE.load(Ordering::Relaxed) {
        true => begin_traced(),
        false => Begun(None),
    }
}

#[cold]
fn begin_traced() -> Begun {
    Begun(file().and_then(|_| NonZeroU64::new(now())))
}

impl Begun {
    /// Writes the step, if there is a timeline.
    #[inline]
    pub fn end<'a>(self, step: impl FnOnce() -> Step<'a>) {
        if let Some(start) = self.0 {
            write_step(start.get(), &step());
        }
    }
}

/// An object, by numbers that are the same in all processes.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// The random number of the exporting process.
    pub exporter: u64,
    pub context: u32,
    pub record: u32,
    pub generation: u64,
    pub name: Option<String>,
}

/// What a process did in one step.
#[derive(Debug)]
pub enum Step<'a> {
    /// It made the first handle of an object.
    Get(HandleKind, Object, usize),
    /// It opened a handle.
    Open(HandleKind, Object, usize),
    /// It signalled an event, or a queue of the host did.
    Signal(Object, u64),
    /// It waited for a signal of an event.
    Wait(Object, u64, Option<&'a Error>),
    /// A thread copied bytes of shared memory.
    Copy(usize),
    /// It submitted a command to a queue.
    Submit(&'static str, usize),
    /// A peer died.
    Death { pid: u32, program: &'a str },
}

#[derive(Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// An event of the format. Times are in microseconds.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    ph: char,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Connects the events of one signal or object by arrows.
    #[serde(skip_serializing_if = "Option::is_none")]
    bind_id: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    flow_in: bool,
    #[serde(skip_serializing_if = "is_false")]
    flow_out: bool,
    args: Arguments<'a>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// The end of an arrow that an event is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrow {
    None,
    Start,
    End,
}

#[cold]
fn write_step(start: u64, step: &Step<'_>) {
    let end = now();
    let duration = end.saturating_sub(start);
    match step {
        Step::Get(kind, object, bytes) => {
            let arguments = (*bytes != 0).then_some(*bytes);
            write_object(
                "get",
                *kind,
                start,
                duration,
                object,
                arguments,
                Arrow::Start,
            );
        }
        Step::Open(kind, object, bytes) => {
            let arguments = (*bytes != 0).then_some(*bytes);
            write_object(
                "open",
                *kind,
                start,
                duration,
                object,
                arguments,
                Arrow::End,
            );
        }
        Step::Signal(object, number) => {
            write_signal(
                "signal",
                (start, duration),
                object,
                *number,
                None,
                Arrow::Start,
            );
        }
        Step::Wait(object, number, error) => {
            write_signal(
                "wait",
                (start, duration),
                object,
                *number,
                *error,
                Arrow::None,
            );
            // The arrow of the signal leads to the end of the wait.
            if error.is_none() {
                write_signal("woken", (end, 0), object, *number, None, Arrow::End);
            }
        }
        Step::Copy(bytes) => {
            let bytes = Some(*bytes);
            let args = Arguments {
                bytes,
                ..Arguments::default()
            };
            write_event("copy", start, duration, None, args);
        }
        Step::Submit(what, bytes) => {
            let bytes = Some(*bytes);
            let args = Arguments {
                bytes,
                ..Arguments::default()
            };
            write_event(what, start, duration, None, args);
        }
        Step::Death { pid, program } => {
            let (peer, name) = (Some(*pid), Some(*program));
            let args = Arguments {
                peer,
                name,
                ..Arguments::default()
            };
            write_event("death of a peer", start, duration, None, args);
        }
    }
}

fn write_object(
    verb: &str,
    kind: HandleKind,
    start: u64,
    duration: u64,
    object: &Object,
    bytes: Option<usize>,
    arrow: Arrow,
) {
    let args = Arguments {
        bytes,
        ..arguments(object)
    };
    let title = format!("{verb} {}{}", kind_name(kind), title(object));
    write_event(
        &title,
        start,
        duration,
        Some((identity(object, 0), arrow)),
        args,
    );
}

fn write_signal(
    verb: &str,
    (start, duration): (u64, u64),
    object: &Object,
    number: u64,
    error: Option<&Error>,
    arrow: Arrow,
) {
    let error = error.map(ToString::to_string);
    let args = Arguments {
        number: Some(number),
        error,
        ..arguments(object)
    };
    let title = format!("{verb}{} {number}", title(object));
    write_event(
        &title,
        start,
        duration,
        Some((identity(object, number), arrow)),
        args,
    );
}

fn arguments(object: &Object) -> Arguments<'_> {
    Arguments {
        name: object.name.as_deref(),
        context: Some(object.context),
        record: Some(object.record),
        ..Arguments::default()
    }
}

/// Returns the object's name in front of which a verb stands.
fn title(object: &Object) -> String {
    match object.name.as_deref() {
        None | Some("") => format!(" #{}", object.record),
        Some(name) => format!(" \"{name}\""),
    }
}

/// Returns a number that an object or a signal has in all processes, by the hash FNV-1a.
fn identity(object: &Object, number: u64) -> u64 {
    let words = [
        object.exporter,
        u64::from(object.context),
        u64::from(object.record),
        object.generation,
        number,
    ];
    let bytes = words.into_iter().flat_map(u64::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn write_event(
    name: &str,
    start: u64,
    duration: u64,
    flow: Option<(u64, Arrow)>,
    args: Arguments<'_>,
) {
    let (pid, tid) = ids();
    if NAMED_IN.replace(pid) != pid {
        write_names(pid, tid);
    }
    let flow = flow.filter(|(_, arrow)| *arrow != Arrow::None);
    let arrow = flow.map_or(Arrow::None, |(_, arrow)| arrow);
    write_line(&Event {
        name,
        cat: CATEGORY,
        ph: 'X',
        pid,
        tid,
        ts: microseconds(start),
        dur: Some(microseconds(duration)),
        bind_id: flow.map(|(id, _)| format!("{id:#x}")),
        flow_in: arrow == Arrow::End,
        flow_out: arrow == Arrow::Start,
        args,
    });
}

/// Writes the names of the process and of the calling thread.
fn write_names(pid: u32, tid: u32) {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let thread = std::thread::current();
    for (what, name) in [
        ("process_name", Some(&*program)),
        ("thread_name", thread.name()),
    ] {
        let Some(name) = name else { continue };
        let name = Some(name);
        write_line(&Event {
            name: what,
            cat: CATEGORY,
            ph: 'M',
            pid,
            tid,
            ts: 0.0,
            dur: None,
            bind_id: None,
            flow_in: false,
            flow_out: false,
            args: Arguments {
                name,
                ..Arguments::default()
            },
        });
    }
}

/// Appends one line. After an error, such as a full disk, the timeline of this process ends.
fn write_line(event: &Event<'_>) {
    let Some(mut file) = file() else { return };
    let Ok(mut line) = serde_json::to_vec(event) else {
        return;
    };
    line.extend_from_slice(b",\n");
    let written = file.write(&line);
    if !matches!(written, Ok(count) if count == line.len()) {
        MAY_WRITE.store(false, Ordering::Relaxed);
        tracing::warn!(target: "crosshandle::trace", ?written, "cannot write the timeline");
    }
}

/// Returns the file of the timeline, which the first call opens.
fn file() -> Option<&'static File> {
    let file = FILE.get_or_init(|| {
        let path = env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        let path = path.into_string().ok()?;
        let path = path.replace("%p", &process::id().to_string());
        open(Path::new(&path))
            .inspect_err(|error| {
                tracing::warn!(target: "crosshandle::trace", path, %error, "cannot open the timeline");
            })
            .ok()
    });
    if file.is_none() {
        MAY_WRITE.store(false, Ordering::Relaxed);
    }
    file.as_ref()
}

/// Opens a file to append to it. An empty file gets the opening bracket of the list.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    if file.metadata()?.len() == 0 {
        file.write_all(b"[\n")?;
    }
    rustix::fs::flock(&file, FlockOperation::Unlock)?;
    Ok(file)
}

/// Returns the system's monotonic clock, which all processes of a machine share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

fn ids() -> (u32, u32) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    (process::id(), thread.cast_unsigned())
}
