//! Well-formed handles with wrong contents are refused with the right error. The file also has the
//! cases of bundles.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::raw::{self, Socket};
use crate::suite::{Outcome, PASSED};
use crate::tamper::{at, with};
use crate::{Transfer, pattern};
use crosshandle::handle::PackedBundle;
use crosshandle::handle::bundle::{
    Bundle, BundledArray, Dimension, ElementType, Layout, ReadyEvent,
};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{
    AllocationOptions, Error, EventHandle, Memory, MemoryHandle, MemoryKind,
    virtual_memory::PhysicalMemoryHandle,
};

fn number<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("inside")
}

/// Each field that locates an object is changed separately, and results in a specific error.
pub(crate) fn wrong_places_are_told_apart(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let context = harness.context()?;
    peer.ask("allocate m 100")?;
    peer.ask("event e")?;
    let memory: MemoryHandle = peer.ask("memory-handle m")?.remove(0).parse()?;
    let event: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    peer.ask("event i isolated=yes")?;
    let isolated: EventHandle = peer.ask("event-handle i")?.remove(0).parse()?;
    let other_backend = match memory.as_bytes()[at::BACKEND] {
        1 => 2,
        _ => 1,
    };
    let next = |bytes: &[u8]| {
        let generation = u64::from_le_bytes(number(bytes, at::GENERATION));
        (generation + 4).to_le_bytes()
    };
    let cases: [(usize, &[u8], &str); 6] = [
        (at::HOST, &[7; 8], "WrongHost"),
        (at::EXPORTER, &[7; 8], "ExporterGone"),
        (at::CONTEXT, &[7; 4], "ExporterGone"),
        (at::KEY, &[7; 16], "WrongKey"),
        (at::BACKEND, &[other_backend], "WrongBackend"),
        (at::DEVICE, &[7; 16], "WrongDevice"),
    ];
    for opened_before in [false, true] {
        if opened_before {
            context.open_memory(&memory)?;
            context.open_event(&event)?;
        }
        for (offset, bytes, kind) in cases {
            // An importer opens an object that it already has without a request.
            if opened_before && offset == at::KEY {
                continue;
            }
            let wrong = MemoryHandle::from_bytes(&with(memory.as_bytes(), offset, bytes))?;
            expect(context.open_memory(&wrong).map(drop), kind)?;
            if offset == at::DEVICE {
                // Only memory has a device.
                continue;
            }
            let wrong = EventHandle::from_bytes(&with(event.as_bytes(), offset, bytes))?;
            if offset == at::BACKEND {
                // Contexts of all devices on this host can open events.
                context.open_event(&wrong)?;
                continue;
            }
            expect(context.open_event(&wrong).map(drop), kind)?;
        }
        // This handle says that the event has an arena to itself.
        let wrong = EventHandle::from_bytes(&with(event.as_bytes(), at::FLAGS, &[2]))?;
        expect(context.open_event(&wrong).map(drop), "Protocol")?;
        // This handle says that the event has no arena to itself. If the common arena is open, it
        // opens a slot there that no event uses.
        let wrong = EventHandle::from_bytes(&with(isolated.as_bytes(), at::FLAGS, &[0]))?;
        match context.open_event(&wrong) {
            Ok(unused) => assert!(!unused.try_wait_value(1)?),
            error => expect(error.map(drop), "Protocol")?,
        }
        context.open_event(&isolated)?;
        let wrong = with(memory.as_bytes(), at::GENERATION, &next(memory.as_bytes()));
        let wrong = MemoryHandle::from_bytes(&wrong)?;
        expect(context.open_memory(&wrong).map(drop), "Stale")?;
        let wrong = with(event.as_bytes(), at::GENERATION, &next(event.as_bytes()));
        let wrong = EventHandle::from_bytes(&wrong)?;
        expect(context.open_event(&wrong).map(drop), "Stale")?;
    }
    // The correct handles still work.
    context.open_memory(&memory)?;
    context.open_event(&event)?;
    PASSED
}

fn expect(result: crosshandle::Result<()>, kind: &str) -> Result<(), Failure> {
    match result {
        Err(error) if format!("{error:#?}").starts_with(kind) => {
            assert!(error.to_string().len() > 10);
            Ok(())
        }
        other => Err(Failure::new(format!("{kind} expected, but {other:?}"))),
    }
}

/// A handle is stale if its record does not exist or has another kind of object.
pub(crate) fn wrong_records_are_stale(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let context = harness.context()?;
    peer.ask("allocate m 5000000")?;
    peer.ask("event e")?;
    let memory: MemoryHandle = peer.ask("memory-handle m")?.remove(0).parse()?;
    let event: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    let indices = [1 << 10, (1 << 20) - 1, 1 << 20, u32::MAX / 2, u32::MAX];
    let event_record: [u8; 4] = number(event.as_bytes(), at::RECORD);
    for bytes in indices.map(u32::to_le_bytes) {
        let wrong = MemoryHandle::from_bytes(&with(memory.as_bytes(), at::RECORD, &bytes))?;
        expect(context.open_memory(&wrong).map(drop), "Stale")?;
        let wrong = EventHandle::from_bytes(&with(event.as_bytes(), at::RECORD, &bytes))?;
        expect(context.open_event(&wrong).map(drop), "Stale")?;
    }
    let memory_record: [u8; 4] = number(memory.as_bytes(), at::RECORD);
    for opened_before in [false, true] {
        if opened_before {
            context.open_memory(&memory)?;
            context.open_event(&event)?;
        }
        // A memory handle with an event's record. A generation also encodes the kind of object.
        let wrong = with(memory.as_bytes(), at::RECORD, &event_record);
        let generation: [u8; 8] = number(event.as_bytes(), at::GENERATION);
        let odd = with(&wrong, at::GENERATION, &generation);
        assert!(MemoryHandle::from_bytes(&odd).is_err());
        let wrong = MemoryHandle::from_bytes(&wrong)?;
        expect(context.open_memory(&wrong).map(drop), "Stale")?;
        // An event handle with the record of memory.
        let wrong = with(event.as_bytes(), at::RECORD, &memory_record);
        let generation: [u8; 8] = number(memory.as_bytes(), at::GENERATION);
        let odd = with(&wrong, at::GENERATION, &generation);
        assert!(EventHandle::from_bytes(&odd).is_err());
        let wrong = EventHandle::from_bytes(&wrong)?;
        expect(context.open_event(&wrong).map(drop), "Stale")?;
        // The generation after so many uses of the record that a 32-bit number would have wrapped.
        for (bytes, count) in [(memory.as_bytes(), 32), (memory.as_bytes(), 33)] {
            let generation = u64::from_le_bytes(number(bytes, at::GENERATION));
            let later = (generation + (1 << count)).to_le_bytes();
            let later = MemoryHandle::from_bytes(&with(bytes, at::GENERATION, &later))?;
            expect(context.open_memory(&later).map(drop), "Stale")?;
        }
    }
    assert_eq!(peer.ask("signal e")?, ["1"]);
    context.open_event(&event)?.wait()?;
    context.open_memory(&memory)?;
    PASSED
}

/// Returns the length of the segment that contains a handle's memory, as its exporter reports it.
fn segment_length(harness: &Harness, handle: &MemoryHandle) -> Result<u64, Failure> {
    let socket = Socket::connect_in(harness.directory())?;
    socket.send(&raw::Request::attach(handle.as_bytes()).bytes(), &[])?;
    drop(socket.receive()?);
    let memory = raw::Request::about(raw::MEMORY, handle.as_bytes()).writing();
    socket.send(&memory.bytes(), &[])?;
    let (answer, _) = socket.receive()?;
    assert_eq!(raw::status(&answer), 0);
    Ok(u64::from_le_bytes(answer[24..32].try_into()?))
}

/// Extents beyond the exporter's memory are refused.
pub(crate) fn wrong_extents_are_refused(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    peer.ask("allocate small 100")?;
    peer.ask("allocate large 5000000")?;
    peer.ask(format!("physical p {unit}"))?;
    for name in ["small", "large"] {
        let handle: MemoryHandle = peer
            .ask(format!("memory-handle {name}"))?
            .remove(0)
            .parse()?;
        let real = segment_length(harness, &handle)?;
        let offset = u64::from_le_bytes(number(handle.as_bytes(), at::OFFSET));
        for opened_before in [false, true] {
            let kept = opened_before
                .then(|| context.open_memory(&handle))
                .transpose()?;
            for end in [real + 1, real + 4096, real * 2, 1 << 40, u64::MAX] {
                let length = (end - offset).to_le_bytes();
                let wrong = MemoryHandle::from_bytes(&with(handle.as_bytes(), at::LENGTH, &length));
                expect(context.open_memory(&wrong?).map(drop), "Extent")?;
                let place = (end - handle.len()).to_le_bytes();
                let wrong = MemoryHandle::from_bytes(&with(handle.as_bytes(), at::OFFSET, &place));
                expect(context.open_memory(&wrong?).map(drop), "Extent")?;
            }
            // An extent beyond all memory makes the handle malformed.
            let wrong = with(handle.as_bytes(), at::OFFSET, &u64::MAX.to_le_bytes());
            assert!(MemoryHandle::from_bytes(&wrong).is_err());
            drop(kept);
        }
    }
    let handle: PhysicalMemoryHandle = peer.ask("physical-handle p")?.remove(0).parse()?;
    let more = (2 * unit as u64).to_le_bytes();
    let wrong = with(handle.as_bytes(), at::LENGTH, &more);
    let wrong = PhysicalMemoryHandle::from_bytes(&wrong)?;
    expect(PhysicalMemory::open(&context, &wrong).map(drop), "Extent")?;
    PASSED
}

/// A changed handle grants neither more access nor another context's objects.
pub(crate) fn rights_cannot_be_forged(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let context = harness.context()?;
    peer.ask("context other")?;
    peer.ask("allocate m 5000000")?;
    peer.ask("write m 0 1 100")?;
    peer.ask("allocate secret 5000000 context=other")?;
    let granted = peer.ask("memory-handle m read-only=yes")?.remove(0);
    let granted: MemoryHandle = granted.parse()?;
    let secret: MemoryHandle = peer.ask("memory-handle secret")?.remove(0).parse()?;
    // The flag is cleared, but the exporter knows which access the handle grants.
    for opened_before in [false, true] {
        let kept = opened_before
            .then(|| context.open_memory_read_only(&granted))
            .transpose()?;
        let forged = MemoryHandle::from_bytes(&with(granted.as_bytes(), at::FLAGS, &[0]))?;
        expect(context.open_memory(&forged).map(drop), "ReadOnly")?;
        drop(kept);
    }
    // The handle names an object of one context, with the key of another context's object.
    let own: [u8; 16] = number(granted.as_bytes(), at::KEY);
    let mixed = with(secret.as_bytes(), at::KEY, &own);
    expect(
        context
            .open_memory(&MemoryHandle::from_bytes(&mixed)?)
            .map(drop),
        "WrongKey",
    )?;
    // The context's number is replaced as well.
    let number: [u8; 4] = number(granted.as_bytes(), at::CONTEXT);
    let mixed = with(&mixed, at::CONTEXT, &number);
    let refused = context.open_memory(&MemoryHandle::from_bytes(&mixed)?);
    // At best, the handle names the granted object, which is shared read-only here.
    match refused {
        Err(Error::Stale | Error::ReadOnly | Error::WrongKey | Error::Handle(_)) => {}
        other => return Err(Failure::new(format!("{other:?}"))),
    }
    PASSED
}

/// A handle with one object's segment and another object's record is refused. The correct handles
/// of both objects still open the right ones.
pub(crate) fn segments_cannot_be_confused(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let context = harness.context()?;
    let transfer = crate::Transfer::new(&context)?;
    let mut handles = Vec::new();
    for (name, seed) in [("a", 1), ("b", 2)] {
        peer.ask(format!("allocate {name} 5000000"))?;
        peer.ask(format!("write {name} 0 {seed} 100"))?;
        let handle = peer.ask(format!("memory-handle {name}"))?.remove(0);
        handles.push(handle.parse::<MemoryHandle>()?);
    }
    let [a, b] = [&handles[0], &handles[1]].map(MemoryHandle::as_bytes);
    let numbers = [a, b].map(|bytes| number::<4>(bytes, at::SEGMENT));
    assert_ne!(
        numbers[0], numbers[1],
        "large memory has a segment to itself"
    );
    // The importer keeps the forgery open, if it opens, because it remembers such a segment only
    // while it is open.
    let forged = with(b, at::SEGMENT, &numbers[0]);
    let forged = context.open_memory(&MemoryHandle::from_bytes(&forged)?);
    for (handle, seed) in handles.iter().zip([1, 2]) {
        transfer.check(&context.open_memory(handle)?, 0, seed, 100)?;
    }
    expect(forged.map(drop), "Handle")?;
    let unit = context.device().info().granularity;
    peer.ask(format!("physical p {unit}"))?;
    let handle: PhysicalMemoryHandle = peer.ask("physical-handle p")?.remove(0).parse()?;
    let forged = with(handle.as_bytes(), at::SEGMENT, &numbers[0]);
    let forged = PhysicalMemoryHandle::from_bytes(&forged)?;
    expect(PhysicalMemory::open(&context, &forged).map(drop), "Handle")?;
    PhysicalMemory::open(&context, &handle)?;
    PASSED
}

/// Checks that the bytes of a handle are refused if one bit or the length is wrong.
fn refuses_damage(good: &[u8], is_refused: impl Fn(&[u8]) -> bool) {
    assert!(!is_refused(good));
    for bit in 0..good.len() * 8 {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(is_refused(&bytes), "bit {bit}");
    }
    for len in (0..2 * good.len()).filter(|len| *len != good.len()) {
        let mut bytes = good.to_vec();
        bytes.resize(len, 0);
        assert!(is_refused(&bytes), "{len} bytes");
    }
}

/// Every single flipped bit is detected before the importer sends a request.
pub(crate) fn damaged_handles_are_refused(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    peer.ask("allocate m 100")?;
    let handle: MemoryHandle = peer.ask("memory-handle m")?.remove(0).parse()?;
    peer.ask("event e")?;
    let event: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    refuses_damage(handle.as_bytes(), |bytes| {
        MemoryHandle::from_bytes(bytes).is_err()
    });
    refuses_damage(event.as_bytes(), |bytes| {
        EventHandle::from_bytes(bytes).is_err()
    });
    assert!(EventHandle::from_bytes(handle.as_bytes()).is_err());
    assert!(MemoryHandle::from_bytes(event.as_bytes()).is_err());
    // Another process checks the text form.
    let text = handle.to_string();
    let other = harness.peer()?;
    other.refused(
        format!("open-memory m {}", &text[..text.len() - 1]),
        "Handle",
    )?;
    other.refused(format!("open-event e {text}"), "Handle")?;
    other.refused("open-memory m nonsense", "Handle")?;
    other.ask(format!("open-memory m {text}"))?;
    PASSED
}

/// Creates a bundle of `count` parts of the memory.
fn bundle(memory: &Memory, count: usize, event: Option<ReadyEvent>) -> Result<Bundle, Failure> {
    let size = memory.len() / count;
    let array = |number: usize| {
        Ok(BundledArray {
            handle: memory.handle_at(number * size)?,
            read_only: number % 2 == 1,
            layout: Layout {
                element: ElementType::Numbered { code: 1, bits: 8 },
                offset: 0,
                dimensions: vec![Dimension {
                    size: size as u64,
                    stride: 1,
                }],
            },
            // One part waits for the signal, and the others are ready.
            ready: Vec::from_iter(event.filter(|_| number == 0).map(|_| 0)),
        })
    };
    let arrays = (0..count).map(array).collect::<Result<_, Error>>();
    Ok(Bundle {
        structure: format!("{count}-parts"),
        arrays: arrays?,
        signals: Vec::from_iter(event),
    })
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A bundle opens in another process, even if it is large and has a long table. Its memory stays
/// available as long as the exporter keeps the bundle.
pub(crate) fn bundles_cross(harness: &Harness) -> Verdict {
    let (context, peer) = (harness.context()?, harness.peer()?);
    let transfer = Transfer::new(&context)?;
    let (memory, event) = (context.allocate(1 << 20)?, context.create_event()?);
    let mut lengths = Vec::new();
    for count in [1, 3, 400] {
        let ready = ReadyEvent {
            handle: event.handle()?,
            value: event.submitted() + 1,
            is_complete: false,
        };
        let size = memory.len() / count;
        transfer.write(&memory, (count - 1) * size, &pattern(count as u64, 100))?;
        let packed = PackedBundle::pack(&context, &bundle(&memory, count, Some(ready))?)?;
        assert_eq!(packed.table().is_some(), count == 400);
        let bytes = digits(packed.as_bytes());
        let words = peer.ask(format!("open-bundle b {bytes}"))?;
        assert_eq!(words, [format!("{count}-parts"), ready.value.to_string()]);
        peer.ask(format!("check b{} 0 {count} 100", count - 1))?;
        let read_only = match count {
            1 => peer.ask("write b0 100 5 100").is_err(),
            _ => peer.ask("try-write b1").is_err(),
        };
        assert_eq!(read_only, count > 1);
        peer.ask("signal b")?;
        event.wait_value_timeout(ready.value, deadline())?;
        lengths.push(packed.as_bytes().len().to_string());
        drop(packed);
        // The bundle's memory still exists, but its table does not.
        let again = peer.ask(format!("open-bundle c {bytes}"));
        assert_eq!(
            again.err().map(|refused| refused.kind),
            (count == 400).then(|| "Stale".into())
        );
    }
    Ok(Outcome::Passed(format!("bytes: {}", lengths.join(", "))))
}

/// A bundle that was changed, or that has the wrong table, opens nothing.
pub(crate) fn bundles_of_others_are_checked(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let memory = context.allocate(1 << 20)?;
    let bundle = bundle(&memory, 400, None)?;
    let packed = PackedBundle::pack(&context, &bundle)?;
    assert_eq!(PackedBundle::unpack(&context, packed.as_bytes())?, bundle);
    for bit in (0..packed.as_bytes().len() * 8).step_by(13) {
        let mut bytes = packed.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = PackedBundle::unpack(&context, &bytes);
        assert!(refused.is_err(), "bit {bit}: {refused:?}");
    }
    // The creator may write to the table at any time.
    let table = packed.table().ok_or(Failure::new("a table"))?;
    let mut byte = [0];
    table.read(1000, &mut byte)?;
    table.write(1000, &[byte[0] ^ 1])?;
    let refused = PackedBundle::unpack(&context, packed.as_bytes());
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    table.write(1000, &byte)?;
    assert_eq!(PackedBundle::unpack(&context, packed.as_bytes())?, bundle);
    // The table is replaced by memory with other contents, and by memory that the host cannot read.
    let raw = bundle.encode_table()?;
    for kind in [MemoryKind::Host, MemoryKind::Device] {
        let other = context.allocate_with(AllocationOptions::new(raw.len()).kind(kind))?;
        let head = bundle.encode_head(&other.handle()?, &raw)?;
        let refused = PackedBundle::unpack(&context, &head);
        assert!(
            matches!(
                refused,
                Err(Error::InvalidArgument(_) | Error::Unsupported(_))
            ),
            "{refused:?}"
        );
    }
    PASSED
}
