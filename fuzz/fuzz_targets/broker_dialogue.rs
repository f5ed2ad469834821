//! Sends an importer's messages to the broker of a real exporter. Messages are any bytes, or
//! requests with the numbers of handles, correct or altered. The broker must send only what the
//! shown key opens.
//!
//! The messages pass through sockets and the broker's own code, without the broker's thread.

#![no_main]

use crosshandle::{Context, ContextOptions, Device, Event, EventOptions, Memory};
use crosshandle_fuzz::{Dialogue, ReplyKind, RequestKind, Shown, answer, encode, request, shown};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::any::Any;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const MESSAGES: usize = 16;
/// Number of requests that a connection may send before it is attached. The broker closes it at the
/// next one.
const UNATTACHED_REQUESTS: u32 = 8;
/// Number of objects that the exporter creates before the tested ones, so that some tested objects
/// are in another chunk.
const OTHERS: usize = 1020;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Memory { writable: bool },
    Event,
    Freed,
}

/// An object of the exporter, and the credential in its handle.
#[derive(Clone, Copy)]
struct Object {
    kind: Kind,
    shown: Shown,
    context: u32,
}

/// The exporter, with two contexts whose objects stay alive.
struct Exporter {
    objects: Vec<Object>,
    _kept: Vec<Box<dyn Any>>,
}

fn exporter() -> crosshandle::Result<Exporter> {
    let directory = std::env::temp_dir().join(format!("xhf-{}", std::process::id()));
    let device = Device::find("host")?;
    let mut exporter = Exporter {
        objects: Vec::new(),
        _kept: Vec::new(),
    };
    for pooling in [true, false] {
        let options = ContextOptions::new()
            .socket_dir(&directory)
            .pooling(pooling);
        let context = Context::with_options(&device, options)?;
        for number in 0..if pooling { OTHERS } else { 0 } {
            let event = context.create_event()?;
            event.handle()?;
            // Some events are dropped, so that some records are free.
            if number % 100 != 0 {
                exporter._kept.push(Box::new(event));
            }
        }
        for len in [100, 5000, 100_000] {
            exporter.add_memory(context.allocate(len)?)?;
        }
        exporter.add_event(context.create_event()?)?;
        exporter.add_event(context.create_event_with(EventOptions::new().isolated(true))?)?;
        let freed = context.allocate(100)?;
        let handle = freed.handle()?;
        drop(freed);
        exporter.add(Kind::Freed, handle.as_bytes());
        exporter._kept.push(Box::new(context));
    }
    Ok(exporter)
}

impl Exporter {
    fn add(&mut self, kind: Kind, handle: &[u8]) {
        let (shown, context) = shown(handle).expect("a handle");
        self.objects.push(Object {
            kind,
            shown,
            context,
        });
    }

    fn add_memory(&mut self, memory: Memory) -> crosshandle::Result<()> {
        let writable = memory.handle()?;
        self.add(Kind::Memory { writable: true }, writable.as_bytes());
        let read_only = memory.handle_read_only()?;
        self.add(Kind::Memory { writable: false }, read_only.as_bytes());
        self._kept.push(Box::new(memory));
        Ok(())
    }

    fn add_event(&mut self, event: Event) -> crosshandle::Result<()> {
        self.add(Kind::Event, event.handle()?.as_bytes());
        self._kept.push(Box::new(event));
        Ok(())
    }
}

thread_local! {
    static EXPORTER: Exporter = exporter().expect("an exporter");
}

fuzz_target!(|data: &[u8]| {
    EXPORTER.with(|exporter| dialogue(exporter, data));
});

fn dialogue(exporter: &Exporter, mut data: &[u8]) {
    let mut connection = Dialogue::begin().expect("it is admitted");
    let mut importer = Importer::default();
    for serial in 1..=MESSAGES as u32 {
        let Some(([form, number, change, with], rest)) = data.split_first_chunk::<4>() else {
            break;
        };
        data = rest;
        let may_ask = importer.context.is_some() || serial <= UNATTACHED_REQUESTS;
        if form & 0xe0 == 0xe0 {
            let len = usize::from(*number).min(data.len());
            let (bytes, rest) = data.split_at(len);
            data = rest;
            if request(bytes) == Some(encode(RequestKind::Describe, NOTHING, serial_of(bytes))) {
                // The reply comes later.
                return;
            }
            let may_be_understood = bytes.len() == encode(RequestKind::Describe, NOTHING, 1).len();
            if !connection.send(bytes, &[]) || !connection.serve() {
                assert!(!may_be_understood || !may_ask);
                return;
            }
            let (reply, files) = receive(&connection);
            let (reply, _) = answer(&reply).expect("a reply");
            assert!(may_be_understood || reply == ReplyKind::Refused);
            assert!(reply != ReplyKind::Refused || files.is_empty());
            continue;
        }
        let objects = &exporter.objects;
        let object = objects[usize::from(*number) % objects.len()];
        let other = objects[usize::from(*with) % objects.len()];
        let (question, shown) = (ask(*form, object, other), alter(object, other, *change));
        if question == RequestKind::Describe {
            // The reply comes later, or never.
            return;
        }
        let message = encode(question, shown, serial);
        if form & 0x10 != 0 && *with > 0xf0 {
            let file = connection.importer().as_fd();
            let file = rustix::io::dup(file).expect("a copy");
            assert!(connection.send(&message, &[file.as_fd()]));
            assert!(!connection.serve(), "importers send no descriptors");
            return;
        }
        assert!(connection.send(&message, &[]));
        assert_eq!(connection.serve(), may_ask, "request {serial}");
        if !may_ask {
            return;
        }
        let (reply, files) = receive(&connection);
        let (reply, of) = answer(&reply).expect("a reply");
        assert_eq!(of, serial);
        let credential = objects.iter().find(|object| object.shown == shown);
        importer.check(question, credential, reply, &files);
    }
}

/// Returns the serial number in a request.
fn serial_of(bytes: &[u8]) -> u32 {
    let at = bytes.get(44..48).and_then(|bytes| bytes.try_into().ok());
    at.map_or(0, u32::from_le_bytes)
}

const NOTHING: Shown = Shown {
    record: 0,
    generation: 0,
    key: [0; 16],
};

fn ask(form: u8, object: Object, other: Object) -> RequestKind {
    match form % 8 {
        0 | 1 => RequestKind::Attach {
            context: object.context,
        },
        2 => RequestKind::Chunk,
        3 | 4 => RequestKind::Memory {
            writable: form & 8 == 0,
        },
        5 => RequestKind::Arena,
        6 if form & 8 == 0 => RequestKind::Mirror,
        6 if form & 0x10 == 0 => RequestKind::Describe,
        _ => RequestKind::Attach {
            context: other.context ^ u32::from(form & 8),
        },
    }
}

/// Returns a handle's credential, or one that an attacker might guess from it and another handle.
fn alter(object: Object, other: Object, change: u8) -> Shown {
    let mut shown = object.shown;
    match change {
        0..0x80 => {}
        0x80..0xa0 => shown.key[usize::from(change) % 16] ^= 1 << (change / 16 % 8),
        0xa0..0xb0 => shown.key = other.shown.key,
        0xb0..0xc0 => shown.generation = shown.generation.wrapping_add(4),
        0xc0..0xd0 => shown.generation ^= u64::from(change % 4),
        0xd0..0xe0 => shown.record = other.shown.record,
        0xe0..0xf0 => shown.record = shown.record.wrapping_add(1 << (change % 16)),
        _ => {
            shown = Shown {
                key: [0; 16],
                ..shown
            }
        }
    }
    shown
}

/// What the importer has received so far.
#[derive(Default)]
struct Importer {
    /// The context to which the importer is attached.
    context: Option<u32>,
    has_second_chunk: bool,
}

impl Importer {
    /// Checks that a reply contains what the credential opens, and nothing else.
    fn check(
        &mut self,
        question: RequestKind,
        credential: Option<&Object>,
        reply: ReplyKind,
        files: &[OwnedFd],
    ) {
        let Some(object) = credential.filter(|object| object.kind != Kind::Freed) else {
            assert_eq!(
                (reply, files.len()),
                (ReplyKind::Refused, 0),
                "{question:?}"
            );
            return;
        };
        let is_given = match question {
            RequestKind::Attach { context } => self.context.is_none() && context == object.context,
            _ if self.context != Some(object.context) => false,
            RequestKind::Chunk => object.shown.record >= 1024 && !self.has_second_chunk,
            RequestKind::Memory { writable } => match object.kind {
                Kind::Memory {
                    writable: may_write,
                } => may_write || !writable,
                _ => false,
            },
            RequestKind::Arena => object.kind == Kind::Event,
            RequestKind::Mirror | RequestKind::Describe => false,
        };
        if !is_given {
            assert_eq!(
                (reply, files.len()),
                (ReplyKind::Refused, 0),
                "{question:?}"
            );
            return;
        }
        let seals: Vec<_> = files.iter().map(fcntl_get_seals).collect();
        for seals in seals {
            let seals = seals.expect("memory");
            assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW));
        }
        let is_read_only = |file: &OwnedFd| {
            let flags = fcntl_getfl(file).expect("its flags");
            flags & OFlags::RWMODE == OFlags::RDONLY
        };
        match question {
            RequestKind::Attach { context } => {
                assert!(matches!(reply, ReplyKind::Attached(owner) if owner > 1));
                assert_eq!(files.len(), 2);
                self.context = Some(context);
            }
            RequestKind::Memory { writable } => {
                assert!(
                    matches!(reply, ReplyKind::Fetched(len) if len > 0),
                    "{reply:?}"
                );
                assert_eq!(files.len(), 1);
                assert_eq!(is_read_only(&files[0]), !writable);
            }
            _ => {
                assert_eq!((reply, files.len()), (ReplyKind::Sent, 2), "{question:?}");
                self.has_second_chunk |= question == RequestKind::Chunk;
            }
        }
    }
}

/// Receives the broker's reply.
fn receive(connection: &Dialogue) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 512];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(
        connection.importer(),
        &mut [std::io::IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    );
    let len = received.expect("an answer").bytes;
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    (bytes[..len].to_vec(), files.collect())
}
