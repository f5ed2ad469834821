//! Handles and replies that fail the library's checks must not cause any driver call.

use crate::roles::{LONG, await_the_end, calls, harness, report};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{
    Command, Context, Error, EventHandle, MemoryHandle, Result,
    virtual_memory::PhysicalMemoryHandle,
};
use crosshandle_conformance::raw::{self, MEMORY, MIRROR, Socket, borrowed};
use crosshandle_conformance::tamper::{at, with};
use crosshandle_conformance::{Harness, Peer};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

type Bytes = Vec<u8>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Memory,
    Physical,
    Event,
}

const KINDS: [Kind; 3] = [Kind::Memory, Kind::Physical, Kind::Event];

impl Kind {
    /// Opens bytes as a handle of this kind, and drops the object.
    fn open(self, context: &Context, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Memory => context
                .open_memory(&MemoryHandle::from_bytes(bytes)?)
                .map(drop),
            Self::Physical => {
                PhysicalMemory::open(context, &PhysicalMemoryHandle::from_bytes(bytes)?).map(drop)
            }
            Self::Event => context
                .open_event(&EventHandle::from_bytes(bytes)?)
                .map(drop),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Physical => "physical",
            Self::Event => "event",
        }
    }

    /// Makes a peer create an object called `name`, and returns its handle.
    fn export(self, peer: &Peer, name: &str) -> Bytes {
        let (make, ask) = match self {
            Self::Memory => ("allocate", "memory-handle"),
            Self::Physical => ("physical", "physical-handle"),
            Self::Event => ("event", "event-handle"),
        };
        let size = if self == Self::Event { "" } else { "4194304" };
        peer.ask(format!("{make} {name} {size}").trim_end())
            .unwrap();
        let text = peer.ask(format!("{ask} {name}")).unwrap().remove(0);
        match self {
            Self::Memory => text.parse::<MemoryHandle>().unwrap().as_bytes().to_vec(),
            Self::Physical => text
                .parse::<PhysicalMemoryHandle>()
                .unwrap()
                .as_bytes()
                .to_vec(),
            Self::Event => text.parse::<EventHandle>().unwrap().as_bytes().to_vec(),
        }
    }
}

/// A generator of reproducible numbers (xorshift).
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            *byte = (self.0 >> 32) as u8;
        }
    }
}

/// Returns how many driver calls this process has made when its last context ended.
fn all_calls() -> u64 {
    let count = |line: &str| {
        line.strip_prefix("calls ")?
            .split_once(' ')?
            .1
            .parse::<u64>()
            .ok()
    };
    report().lines().filter_map(count).sum::<u64>()
}

/// Returns the number of driver calls of a context in which `body` runs.
fn cost(harness: &Harness, body: impl FnOnce(&Context)) -> u64 {
    let before = all_calls();
    let context = harness.context().unwrap();
    body(&context);
    drop(context);
    await_the_end();
    all_calls() - before
}

/// Returns handles with a wrong field and a valid tag.
fn forgeries(kind: Kind, good: &[u8]) -> Vec<Bytes> {
    let long = u64::MAX.to_le_bytes();
    let mut forged = vec![
        with(good, 0, b"Y"),
        with(good, 4, &[99]),
        with(good, 5, &[0]),
        with(good, 5, &[9]),
        with(good, at::BACKEND, &[7]),
        with(good, at::FLAGS, &[0x80]),
        with(good, at::HOST, &[0; 8]),
        with(good, at::HOST, &long),
        with(good, at::EXPORTER, &[0; 8]),
        with(good, at::EXPORTER, &long),
        with(good, at::CONTEXT, &[0; 4]),
        with(good, at::CONTEXT, &[0x77; 4]),
        with(good, at::KEY, &[0; 16]),
        with(good, at::KEY, &[7; 16]),
        with(good, at::RECORD, &0xfffff0_u32.to_le_bytes()),
        with(good, at::RECORD, &u32::MAX.to_le_bytes()),
        with(good, at::GENERATION, &[0; 8]),
        with(good, at::GENERATION, &[good[at::GENERATION] + 4]),
        with(good, at::GENERATION + 4, &[1]),
    ];
    if kind != Kind::Event {
        forged.extend([
            with(good, at::RESERVED, &[1]),
            with(good, at::DEVICE, &[0xee; 16]),
            with(good, at::SEGMENT, &[0x77; 4]),
            with(good, at::OFFSET, &long),
            with(good, at::LENGTH, &long),
            with(good, at::LENGTH, &[0; 8]),
            with(good, at::LENGTH, &(1_u64 << 40).to_le_bytes()),
            with(good, at::OFFSET, &(1_u64 << 40).to_le_bytes()),
        ]);
    }
    forged
}

pub(crate) fn bad_handles_reach_no_driver() {
    let harness = harness();
    let (peer, gone) = (harness.peer().unwrap(), harness.peer().unwrap());
    let all = KINDS.map(|kind| kind.export(&peer, kind.name()));
    let orphaned = KINDS.map(|kind| kind.export(&gone, "orphan"));
    gone.kill();
    let stale = KINDS.map(|kind| {
        let handle = kind.export(&peer, "stale");
        peer.ask("close stale").unwrap();
        handle
    });
    // The first context also finds the devices.
    cost(&harness, |_| {});
    let nothing = cost(&harness, |_| {});
    let (mut random, mut tried) = (Random(0x9e37_79b9_7f4a_7c15), 0);
    let bad = cost(&harness, |context| {
        for (number, kind) in KINDS.into_iter().enumerate() {
            let mut refuse = |bytes: &[u8], what: &str| {
                tried += 1;
                let opened = kind.open(context, bytes);
                assert!(opened.is_err(), "{kind:?}, {what}: {bytes:02x?}");
            };
            let good = &all[number];
            for bit in 0..8 * good.len() {
                let mut flipped = good.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                refuse(&flipped, "one bit flipped");
            }
            let longer = [&good[..], &good[..]].concat();
            for size in (0..longer.len()).filter(|size| *size != good.len()) {
                refuse(&longer[..size], "another size");
            }
            for (other, swapped) in all.iter().enumerate() {
                if other != number {
                    refuse(swapped, "of another kind");
                    let said = with(swapped, 5, &[good[5]]);
                    refuse(&said, "of another kind, said to be this");
                    let generation = [good[at::GENERATION]];
                    let said = with(&said, at::GENERATION, &generation);
                    refuse(&said, "of another kind, and of this one's generation");
                }
            }
            for forged in forgeries(kind, good) {
                refuse(&forged, "forged");
            }
            refuse(&orphaned[number], "of a process that is gone");
            refuse(&stale[number], "of an object that is gone");
            for _ in 0..2000 {
                let mut noise = vec![0; good.len()];
                random.fill(&mut noise);
                refuse(&noise, "random");
                // The exporter, the key, the kind and the tag are correct, and everything else is
                // random.
                let mut claims = vec![0; good.len() - at::GENERATION];
                random.fill(&mut claims);
                claims[0] = claims[0] & !3 | good[at::GENERATION] & 3;
                refuse(&with(good, at::GENERATION, &claims), "random claims");
            }
        }
    });
    assert_eq!(bad, nothing, "calls of the driver: {}", report());
    assert!(tried > 14_000, "{tried}");
}

/// A change that a false exporter makes to a correct reply.
type Lie = Box<dyn Fn(&mut Vec<u8>, &mut Vec<OwnedFd>) + Send>;

/// Offsets in a reply, in bytes.
const SEGMENT: usize = 12;
const BLOB_LEN: usize = 20;
const LEN: usize = 24;
const BLOB: usize = 32;
/// Offsets of the parts of a reply's backend blob, in bytes: subject, driver version, driver
/// handle.
const SUBJECT: usize = BLOB + 4;
const VERSION: usize = BLOB + 8;

/// A false exporter between a genuine exporter and its importers.
struct Impostor {
    thread: Option<JoinHandle<()>>,
    lie: &'static Mutex<Option<Lie>>,
}

impl Impostor {
    const NUMBER: u64 = 0xbad;

    fn new(directory: &Path, truth: &Path) -> Self {
        let path = directory.join(format!("{:016x}.sock", Self::NUMBER));
        let (socket, truth) = (Socket::listen(&path).unwrap(), truth.to_owned());
        let lie: &'static Mutex<Option<Lie>> = Box::leak(Box::default());
        let thread = thread::spawn(move || {
            let importer = socket.accept().unwrap().expect("a process connects");
            let truth = Socket::connect(&truth).unwrap();
            loop {
                let Ok((question, files)) = importer.receive() else {
                    return;
                };
                if question.is_empty() || truth.send(&question, &borrowed(&files)).is_err() {
                    return;
                }
                let (mut answer, mut files) = truth.receive().unwrap();
                let lie = lie.lock().unwrap();
                if matches!(raw::operation(&question), MEMORY | MIRROR)
                    && let Some(lie) = &*lie
                {
                    lie(&mut answer, &mut files);
                }
                drop(lie);
                if importer.send(&answer, &borrowed(&files)).is_err() {
                    return;
                }
            }
        });
        let thread = Some(thread);
        Self { thread, lie }
    }

    fn tell(&self, lie: Option<Lie>) {
        *self.lie.lock().unwrap() = lie;
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn lies() -> Vec<(&'static str, Lie)> {
    fn put(at: usize, bytes: &'static [u8]) -> Lie {
        Box::new(move |answer, _| answer[at..at + bytes.len()].copy_from_slice(bytes))
    }
    fn flip(at: usize) -> Lie {
        Box::new(move |answer, _| answer[at] ^= 0x10)
    }
    let mut lies: Vec<(&str, Lie)> = vec![
        ("no descriptor", Box::new(|_, files| files.clear())),
        (
            "two descriptors",
            Box::new(|_, files| files.push(raw::pipe().unwrap())),
        ),
        (
            "no note",
            Box::new(|answer, _| {
                answer[BLOB_LEN..LEN].fill(0);
                answer[BLOB..].fill(0);
            }),
        ),
        ("a note that is short by one", put(BLOB_LEN, &[79])),
        ("a note that is long by one", put(BLOB_LEN, &[81])),
        ("a note that is too long", put(BLOB_LEN, &[129])),
        ("a note of far too many bytes", put(BLOB_LEN, &[0xff; 4])),
        ("bytes behind the note", put(BLOB + 127, &[1])),
        ("not a note of this driver", flip(BLOB)),
        ("a note about something else", flip(SUBJECT)),
        (
            "a note about the other kind of memory",
            Box::new(|answer, _| answer[SUBJECT] ^= 3),
        ),
        ("another version of the driver", flip(VERSION)),
        ("a later version of the driver", flip(VERSION + 3)),
        (
            "a process that is not in the handle",
            put(BLOB + 12, &[0xf1, 0xf2, 0xf3, 0x7f]),
        ),
        ("half an answer", Box::new(|answer, _| answer.truncate(80))),
        ("a longer answer", Box::new(|answer, _| answer.push(0))),
        ("another version of the protocol", flip(4)),
        ("another segment", flip(SEGMENT)),
    ];
    for seed in 1..200 {
        let lie: Lie = Box::new(move |answer, _| {
            Random(seed * 0x9e37_79b9).fill(&mut answer[BLOB..BLOB + 80]);
        });
        lies.push(("a random note", lie));
    }
    lies
}

pub(crate) fn hostile_answers_reach_no_driver() {
    let harness = harness();
    let peer = harness.peer().unwrap();
    let all = KINDS.map(|kind| kind.export(&peer, kind.name()));
    let truth = raw::only_socket(harness.directory()).unwrap();
    let number = Impostor::NUMBER.to_le_bytes();
    let [memory, physical, event] = all.map(|handle| with(&handle, at::EXPORTER, &number));
    cost(&harness, |_| {});
    let nothing = cost(&harness, |_| {});
    let impostor = Impostor::new(harness.directory(), &truth);
    let lied = cost(&harness, |context| {
        for (what, lie) in lies() {
            impostor.tell(Some(lie));
            for (kind, bytes) in [(Kind::Memory, &memory), (Kind::Physical, &physical)] {
                let opened = kind.open(context, bytes);
                assert!(opened.is_err(), "{kind:?}, {what}");
            }
        }
        for kind in [Kind::Memory, Kind::Physical] {
            let lie: Lie = Box::new(|answer, _| answer[LEN + 3] ^= 1);
            impostor.tell(Some(lie));
            let bytes = if kind == Kind::Memory {
                &memory
            } else {
                &physical
            };
            assert!(kind.open(context, bytes).is_err(), "{kind:?}, another size");
        }
    });
    assert_eq!(lied, nothing, "calls of the driver: {}", report());
    drop(impostor);
    // An importer requests the driver's event when a queue could wait for it, and continues without
    // it if the request fails.
    std::fs::remove_file(harness.directory().join("0000000000000bad.sock")).unwrap();
    let impostor = Impostor::new(harness.directory(), &truth);
    let signalled = |context: &Context| {
        let event = context.open_event(&EventHandle::from_bytes(&event).unwrap());
        let (event, queue) = (event.unwrap(), context.create_queue().unwrap());
        let waiting = context.create_queue().unwrap();
        let wait = Command::barrier().after_value(&event, event.submitted() + 1);
        waiting.submit(wait).unwrap();
        let memory = context.allocate(64).unwrap();
        let fill = Command::fill(memory.all(), &[1]).unwrap();
        queue.submit(fill.signal(&event)).unwrap();
        event.wait_timeout(LONG).unwrap();
        queue.finish_timeout(LONG).unwrap();
        waiting.finish_timeout(LONG).unwrap();
    };
    let opens =
        || calls("zexCounterBasedEventOpenIpcHandle") + calls("zeEventCounterBasedOpenIpcHandle");
    cost(&harness, |context| {
        for (_, lie) in lies() {
            impostor.tell(Some(lie));
            signalled(context);
        }
        assert!(matches!(
            Kind::Memory.open(context, &memory),
            Err(Error::Handle(_) | Error::Protocol(_))
        ));
    });
    assert_eq!(opens(), 0, "{}", report());
    drop(impostor);
    // Unchanged replies do cause driver calls.
    std::fs::remove_file(harness.directory().join("0000000000000bad.sock")).unwrap();
    let impostor = Impostor::new(harness.directory(), &truth);
    cost(&harness, |context| {
        Kind::Memory.open(context, &memory).unwrap();
        Kind::Physical.open(context, &physical).unwrap();
        signalled(context);
    });
    drop(impostor);
    assert_eq!(
        (opens(), calls("zeMemOpenIpcHandle")),
        (1, 1),
        "{}",
        report()
    );
}
