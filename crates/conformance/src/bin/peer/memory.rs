//! Commands for memory.

use crate::request::{CommandError, Reply, Request, done, one};
use crate::state::{Object, PeerState};
use crosshandle::handle::{EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE, PackedBundle};
use crosshandle::{
    Access, AllocationOptions, Command, Context, EventHandle, Memory, MemoryHandle, MemoryKind,
    MemoryRange,
};
use crosshandle_conformance::{Transfer, pattern, slowdown};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "allocate" => allocate(state, request),
        "memory-handle" => handle(state, request),
        "open-memory" => open(state, request),
        "open-bundle" => open_bundle(state, request),
        "open-many" => open_many(state, request),
        "write" => write(state, request),
        "check" => check(state, request),
        "zeros" => zeros(state, request),
        "try-write" => try_write(state, request),
        "poke" => poke(state, request),
        "add" => add(state, request),
        _ => return None,
    })
}

/// `allocate NAME LEN [kind=host|shared] [align=N] [context=C]` → address
fn allocate(state: &PeerState, request: &Request<'_>) -> Reply {
    let mut options = AllocationOptions::new(request.parsed(1)?);
    if let Some(align) = request.parsed_option("align")? {
        options = options.align(align);
    }
    options = options.kind(match request.option("kind") {
        Some("host") => MemoryKind::Host,
        Some("shared") => MemoryKind::Shared,
        _ => MemoryKind::Device,
    });
    let memory = state.context(request)?.allocate_with(options)?;
    let address = memory.as_ptr().addr();
    state.put(request.word(0)?, Object::Memory(Arc::new(memory)));
    one(address)
}

/// `memory-handle NAME [offset=N] [read-only=yes]` → handle
fn handle(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    if request.option("read-only").is_some() {
        return one(memory.handle_read_only()?);
    }
    match request.parsed_option("offset")? {
        Some(offset) => one(memory.handle_at(offset)?),
        None => one(memory.handle()?),
    }
}

/// `open-memory NAME HANDLE [read-only=yes] [context=C]` → address, length, access
fn open(state: &PeerState, request: &Request<'_>) -> Reply {
    let handle: MemoryHandle = request.word(1)?.parse()?;
    let context = state.context(request)?;
    let memory = if request.option("read-only").is_some() {
        context.open_memory_read_only(&handle)?
    } else {
        context.open_memory(&handle)?
    };
    let access = match memory.access() {
        Access::ReadOnly => "read-only",
        Access::ReadWrite => "read-write",
    };
    let words = vec![
        memory.as_ptr().addr().to_string(),
        memory.len().to_string(),
        access.to_owned(),
    ];
    state.put(request.word(0)?, Object::Memory(Arc::new(memory)));
    Ok(words)
}

/// `open-bundle NAME HEX [context=C]`: unpacks a bundle's bytes, opens its memory as `NAME0`,
/// `NAME1` and so on, and opens its event as `NAME` → structure, number of the event's signal
fn open_bundle(state: &PeerState, request: &Request<'_>) -> Reply {
    let (name, text) = (request.word(0)?, request.word(1)?);
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    let bytes: Option<Vec<u8>> = digits.map(byte).collect();
    let bytes = bytes.ok_or(CommandError::usage("no hexadecimal digits"))?;
    let context = state.context(request)?;
    let bundle = PackedBundle::unpack(&context, &bytes)?;
    for (number, array) in bundle.arrays.iter().enumerate() {
        let memory = match array.read_only {
            true => context.open_memory_read_only(&array.handle)?,
            false => context.open_memory(&array.handle)?,
        };
        state.put(&format!("{name}{number}"), Object::Memory(Arc::new(memory)));
    }
    let mut words = vec![bundle.structure];
    let mut waits = bundle.arrays.iter().map(|array| &array.ready);
    if let [ready] = bundle.signals[..]
        && waits.any(|waits| waits == &[0])
    {
        state.put(name, Object::Event(context.open_event(&ready.handle)?));
        words.push(ready.value.to_string());
    }
    Ok(words)
}

/// `open-many memory|events NAME SOURCE COUNT`: opens `COUNT` handles whose bytes are in the memory
/// `SOURCE` → nanoseconds per handle, and the cost of the last tenth divided by that of the first.
/// Each memory must start with its own number, which is checked.
/// Events with an even number are signalled.
fn open_many(state: &PeerState, request: &Request<'_>) -> Reply {
    let context = state.context(request)?;
    let source = state.memory(request.word(2)?)?;
    let count: usize = request.parsed(3)?;
    let size = match request.word(0)? {
        "memory" => MEMORY_HANDLE_SIZE,
        _ => EVENT_HANDLE_SIZE,
    };
    let bytes = Transfer::new(&context)?.read(&source, 0, count * size)?;
    let tenth = (count / 10).max(1);
    let mut marks = Vec::new();
    let handles = bytes.chunks_exact(size).enumerate().map(|(index, bytes)| {
        if index % tenth == 0 {
            marks.push(Instant::now());
        }
        bytes
    });
    let started = Instant::now();
    let object = match request.word(0)? {
        "memory" => {
            let open = |bytes| Ok(context.open_memory(&MemoryHandle::from_bytes(bytes)?)?);
            let memories: Result<Vec<Memory>, CommandError> = handles.map(open).collect();
            Object::Memories(Arc::new(memories?))
        }
        _ => {
            let open = |bytes| Ok(context.open_event(&EventHandle::from_bytes(bytes)?)?);
            let events: Result<Vec<_>, CommandError> = handles.map(open).collect();
            Object::Events(Arc::new(events?))
        }
    };
    let each = started.elapsed().as_nanos() / count.max(1) as u128;
    let flatness = match marks[..] {
        [first, second, .., last] => last.elapsed().div_duration_f64(second - first),
        _ => 1.0,
    };
    match &object {
        Object::Memories(memories) => {
            let transfer = Transfer::new(&context)?;
            for (number, memory) in memories.iter().enumerate() {
                let found = transfer.read(memory, 0, 8)?;
                if found != number.to_le_bytes() {
                    return Err(CommandError::usage(format!(
                        "memory {number} has {found:?}"
                    )));
                }
            }
        }
        Object::Events(events) => {
            for event in events.iter().step_by(2) {
                event.signal()?;
            }
        }
        _ => {}
    }
    state.put(request.word(1)?, object);
    Ok(vec![each.to_string(), format!("{flatness:.2}")])
}

/// `write NAME OFFSET SEED LEN`
fn write(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    let bytes = pattern(request.parsed(2)?, request.parsed(3)?);
    Transfer::new(&state.context(request)?)?.write(&memory, request.parsed(1)?, &bytes)?;
    done()
}

/// `check NAME OFFSET SEED LEN`
fn check(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    let transfer = Transfer::new(&state.context(request)?)?;
    transfer.check(
        &memory,
        request.parsed(1)?,
        request.parsed(2)?,
        request.parsed(3)?,
    )?;
    done()
}

/// `zeros NAME OFFSET LEN` → whether all bytes are zero
fn zeros(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    let transfer = Transfer::new(&state.context(request)?)?;
    let bytes = transfer.read(&memory, request.parsed(1)?, request.parsed(2)?)?;
    one(bytes.iter().all(|byte| *byte == 0))
}

/// `try-write NAME`: writes through the safe interface, which must refuse read-only memory.
fn try_write(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    Transfer::new(&state.context(request)?)?.write(&memory, 0, &[1])?;
    done()
}

/// `add NAME COUNT`: adds 1 to the first word of memory atomically, `COUNT` times.
fn add(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    let words = memory.bytes()?.atomics()?;
    for _ in 0..request.parsed(1)? {
        words[0].fetch_add(1, Ordering::Relaxed);
    }
    done()
}

/// `poke NAME OFFSET [context=C]`: writes a byte through the raw address, even if that faults.
fn poke(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.memory(request.word(0)?)?;
    let offset: usize = request.parsed(1)?;
    if offset >= memory.len() {
        return Err(CommandError::usage("outside"));
    }
    let place = memory.as_ptr().wrapping_add(offset);
    if memory.bytes().is_err() {
        return poke_device(&state.context(request)?, place);
    }
    // SAFETY: the byte is in memory that stays mapped during the call. If the memory is mapped
    // read-only, this process ends with SIGSEGV, which the case expects.
    unsafe { place.write_volatile(0x5A) };
    done()
}

/// Writes a byte through a queue, for memory that the host cannot access.
pub(crate) fn poke_device(context: &Context, place: *mut u8) -> Reply {
    let place = NonNull::new(place).ok_or_else(|| CommandError::usage("null"))?;
    // SAFETY: the byte is mapped until the command is complete. If it is mapped read-only, the
    // device refuses the write and becomes unusable for this process, which the case expects.
    let range = unsafe { MemoryRange::from_raw_parts(place, 1, Access::ReadWrite) };
    let queue = context.create_queue()?;
    queue.submit(Command::fill(range, &[0x5A])?)?;
    queue.finish_timeout(Duration::from_secs(5) * slowdown())?;
    done()
}
