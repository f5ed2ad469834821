//! Commands for physical memory and virtual ranges.

use crate::memory::poke_device;
use crate::request::{CommandError, Reply, Request, done, one};
use crate::state::{Object, PeerState};
use crosshandle::virtual_memory::{PhysicalMemory, VirtualRange};
use crosshandle::{Access, virtual_memory::PhysicalMemoryHandle};
use crosshandle_conformance::{Transfer, pattern};
use std::ops::Range;
use std::sync::Arc;

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "physical" => create(state, request),
        "physical-handle" => handle(state, request),
        "open-physical" => open(state, request),
        "reserve" => reserve(state, request),
        "map" => map(state, request),
        "map-pieces" => map_pieces(state, request),
        "export-range" => export(state, request),
        "unmap" => unmap(state, request),
        "set-access" => set_access(state, request),
        "range-write" => write(state, request),
        "range-check" => check(state, request),
        "range-poke" => poke(state, request),
        _ => return None,
    })
}

/// `physical NAME LEN`
fn create(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = PhysicalMemory::new(&state.context(request)?, request.parsed(1)?)?;
    state.put(request.word(0)?, Object::Physical(memory));
    done()
}

/// `physical-handle NAME [read-only=yes]` → handle
fn handle(state: &PeerState, request: &Request<'_>) -> Reply {
    let memory = state.physical(request.word(0)?)?;
    match request.option("read-only") {
        Some(_) => one(memory.handle_read_only()?),
        None => one(memory.handle()?),
    }
}

/// `open-physical NAME HANDLE [read-only=yes]` → length
fn open(state: &PeerState, request: &Request<'_>) -> Reply {
    let handle: PhysicalMemoryHandle = request.word(1)?.parse()?;
    let context = state.context(request)?;
    let memory = match request.option("read-only") {
        Some(_) => PhysicalMemory::open_read_only(&context, &handle)?,
        None => PhysicalMemory::open(&context, &handle)?,
    };
    let len = memory.len();
    state.put(request.word(0)?, Object::Physical(memory));
    one(len)
}

/// `reserve NAME LEN` → address
fn reserve(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = VirtualRange::reserve(&state.context(request)?, request.parsed(1)?)?;
    let address = range.as_ptr().addr();
    state.put(request.word(0)?, Object::Range(Arc::new(range)));
    one(address)
}

fn access(word: &str) -> Access {
    match word {
        "read-only" => Access::ReadOnly,
        _ => Access::ReadWrite,
    }
}

/// `map RANGE OFFSET PHYSICAL OFFSET LEN ACCESS`
fn map(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    let memory = state.physical(request.word(2)?)?;
    range.map(
        request.parsed(1)?,
        &memory,
        part(request, 3)?,
        access(request.word(5)?),
    )?;
    done()
}

/// `map-pieces RANGE COUNT [context=C]`: maps `COUNT` new physical memories of the smallest size
/// side by side, from the start of the range
fn map_pieces(state: &PeerState, request: &Request<'_>) -> Reply {
    let (range, context) = (state.range(request.word(0)?)?, state.context(request)?);
    let unit = context.device().info().granularity;
    for piece in 0..request.parsed(1)? {
        let memory = PhysicalMemory::new(&context, unit)?;
        range.map(piece * unit, &memory, .., Access::ReadWrite)?;
    }
    done()
}

/// `export-range NAME RANGE OFFSET LEN [read-only=yes]` → handle
fn export(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(1)?)?;
    let export = range.export(part(request, 2)?)?;
    let handle = match request.option("read-only") {
        Some(_) => export.handle_read_only()?,
        None => export.handle()?,
    };
    state.put(request.word(0)?, Object::Export(Arc::new(export)));
    one(handle)
}

/// `unmap RANGE OFFSET LEN`
fn unmap(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    range.unmap(part(request, 1)?)?;
    done()
}

/// `set-access RANGE OFFSET LEN ACCESS`
fn set_access(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    range.set_access(part(request, 1)?, access(request.word(3)?))?;
    done()
}

/// `range-write RANGE OFFSET SEED LEN [context=C]`
fn write(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    let bytes = pattern(request.parsed(2)?, request.parsed(3)?);
    let transfer = Transfer::new(&state.context(request)?)?;
    transfer.write_range(&range, request.parsed(1)?, &bytes)?;
    done()
}

/// `range-check RANGE OFFSET SEED LEN [context=C]`
fn check(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    let transfer = Transfer::new(&state.context(request)?)?;
    transfer.check_range(
        &range,
        request.parsed(1)?,
        request.parsed(2)?,
        request.parsed(3)?,
    )?;
    done()
}

/// `range-poke RANGE OFFSET [context=C]`: writes a byte through the raw address, even if that
/// faults.
fn poke(state: &PeerState, request: &Request<'_>) -> Reply {
    let range = state.range(request.word(0)?)?;
    let offset: usize = request.parsed(1)?;
    if range.access(offset).is_none() {
        return Err(CommandError::usage("nothing is mapped there"));
    }
    let place = range.as_ptr().wrapping_add(offset);
    let context = state.context(request)?;
    if !context.device().info().capabilities.host_accessible_memory {
        return poke_device(&context, place);
    }
    // SAFETY: the byte is in a part of the range where memory is mapped. If the memory is mapped
    // read-only, this process ends with SIGSEGV, which the case expects.
    unsafe { place.write_volatile(0x5A) };
    done()
}

/// Returns the byte range of an offset and a length, which are the words `index` and `index + 1`.
fn part(request: &Request<'_>, index: usize) -> Result<Range<usize>, CommandError> {
    let (offset, len): (usize, usize) = (request.parsed(index)?, request.parsed(index + 1)?);
    Ok(offset..offset.saturating_add(len))
}
