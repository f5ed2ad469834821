//! The lies of a hostile linked host.

use crate::tamper::{at, with};
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle_link::control::message::{
    Failure, Hello, MAX_DATA, MAX_FRAME, Message, NamedPart, PREFIX, write_failures, write_parts,
};

/// Lengths that no memory has.
const LENGTHS: [u64; 4] = [1 << 40, 1 << 62, 1 << 63, u64::MAX];
/// Length of the memory of the server's handle.
pub(super) const LEN: usize = 4096;
/// Terminal escapes, C1 and bidirectional control characters.
const ESCAPES: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}txt\r\n";

/// What a server does after its lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Continue,
    HangUp,
    BeSilent,
}

/// A reply to a request.
pub(super) struct Told {
    pub(super) bytes: Vec<u8>,
    pub(super) then: Then,
}

/// What a server has for its lies.
pub(super) struct Material {
    /// A valid handle of memory of [`LEN`] bytes.
    pub(super) memory: [u8; MEMORY_HANDLE_SIZE],
}

type Reply = fn(&Message<'_>, &Material) -> Told;

/// What a server lies about.
pub(super) enum About {
    /// The bytes before TLS.
    Tls(fn() -> Told),
    /// The bytes in place of the greeting.
    Greeting(fn() -> Told),
    /// The first bytes after the greeting. If the server continues, it repeats them many times.
    First(fn(&Material) -> Told),
    Replies(Reply),
    Model(fn() -> String),
}

pub(super) struct Lie {
    pub(super) name: &'static str,
    pub(super) about: About,
}

const fn lie(name: &'static str, about: About) -> Lie {
    Lie { name, about }
}

pub(super) fn lies() -> Vec<Lie> {
    let mut all = vec![
        lie(
            "silent-before-tls",
            About::Tls(|| told(&[], Then::BeSilent)),
        ),
        lie(
            "cut-in-tls",
            About::Tls(|| told(&[22, 3, 3, 0], Then::HangUp)),
        ),
        lie(
            "silent-in-tls",
            About::Tls(|| told(&[22, 3, 3, 0xff], Then::BeSilent)),
        ),
        lie(
            "garbage-for-tls",
            About::Tls(|| told(&[7; 5000], Then::BeSilent)),
        ),
        lie(
            "silent-greeting",
            About::Greeting(|| told(&[], Then::BeSilent)),
        ),
        lie(
            "garbage-for-greeting",
            About::Greeting(|| told(&[255; 64], Then::BeSilent)),
        ),
        lie(
            "cut-greeting",
            About::Greeting(|| told(&greeting()[..30], Then::HangUp)),
        ),
        lie(
            "half-greeting",
            About::Greeting(|| told(&greeting()[..63], Then::BeSilent)),
        ),
        lie(
            "no-keep-alive",
            About::Greeting(|| {
                let hello = Hello {
                    keep_alive_ms: 0,
                    received: u64::MAX,
                    ..hello()
                };
                told(&hello.encode(), Then::BeSilent)
            }),
        ),
        lie(
            "other-version",
            About::Greeting(|| {
                let mut bytes = greeting();
                bytes[7] = 200;
                told(&bytes, Then::BeSilent)
            }),
        ),
        lie(
            "unknown-refusal",
            About::Greeting(|| {
                told(
                    &Hello {
                        refusal: 99,
                        ..hello()
                    }
                    .encode(),
                    Then::BeSilent,
                )
            }),
        ),
        lie(
            "frame-without-bytes",
            About::First(|_| told(&[0; PREFIX], Then::BeSilent)),
        ),
        lie(
            "frame-too-long",
            About::First(|_| told(&(MAX_FRAME as u32 + 1).to_le_bytes(), Then::BeSilent)),
        ),
        lie(
            "frame-of-4-gib",
            About::First(|_| told(&[255; 64], Then::BeSilent)),
        ),
        lie(
            "unknown-kind",
            About::First(|_| told(&[1, 0, 0, 0, 250], Then::BeSilent)),
        ),
        lie(
            "confirms-what-was-not-sent",
            About::First(|_| told(&Message::Ack { received: 1 << 40 }.encode(), Then::BeSilent)),
        ),
        lie(
            "reply-without-request",
            About::First(|_| {
                let reply = Message::Done {
                    request: 1 << 50,
                    value: 7,
                };
                told(&reply.encode(), Then::BeSilent)
            }),
        ),
        lie(
            "signals-of-unknown-events",
            About::First(|_| {
                told(
                    &Message::Reached { number: 1, id: 77 }.encode(),
                    Then::Continue,
                )
            }),
        ),
        lie(
            "failures-of-unknown-events",
            About::First(|_| {
                let failed = Message::Failed {
                    first: 1,
                    id: 77,
                    count: u32::MAX,
                    why: ESCAPES,
                };
                told(&failed.encode(), Then::Continue)
            }),
        ),
        lie(
            "closes-what-is-not-open",
            About::First(|_| told(&Message::Close { id: 7 }.encode(), Then::BeSilent)),
        ),
        lie(
            "writes-what-is-not-open",
            About::First(|_| {
                let write = Message::Write {
                    request: 1,
                    offset: u64::MAX,
                    id: 7,
                    bytes: &[1; 100],
                };
                told(&write.encode(), Then::BeSilent)
            }),
        ),
        lie(
            "endless-opens",
            About::First(|material| {
                let open = Message::Open {
                    request: 1,
                    read_only: false,
                    handle: &material.memory,
                };
                told(&open.encode(), Then::Continue)
            }),
        ),
        lie(
            "endless-names",
            About::First(|_| {
                told(
                    &Message::OpenName {
                        request: 1,
                        name: ESCAPES,
                    }
                    .encode(),
                    Then::Continue,
                )
            }),
        ),
        lie(
            "endless-addresses",
            About::First(|_| {
                let address = Message::Address {
                    generation: u32::MAX,
                    address: &[1; 1000],
                };
                told(&address.encode(), Then::Continue)
            }),
        ),
        lie(
            "says-bye-in-escapes",
            About::First(|_| told(&Message::Bye { why: ESCAPES }.encode(), Then::BeSilent)),
        ),
        lie(
            "silent-to-requests",
            About::Replies(|_, _| told(&[], Then::BeSilent)),
        ),
        lie(
            "hangs-up-on-requests",
            About::Replies(|_, _| told(&[], Then::HangUp)),
        ),
        lie(
            "cut-reply",
            About::Replies(|asked, material| {
                let bytes = memory(asked, material, LEN as u64);
                told(&bytes[..bytes.len() / 2], Then::HangUp)
            }),
        ),
        lie(
            "half-reply",
            About::Replies(|asked, material| {
                let bytes = memory(asked, material, LEN as u64);
                told(&bytes[..bytes.len() - 1], Then::BeSilent)
            }),
        ),
        lie(
            "refuses-in-escapes",
            About::Replies(|asked, _| {
                let why = ESCAPES;
                told(
                    &Message::Refused {
                        request: request(asked),
                        why,
                    }
                    .encode(),
                    Then::Continue,
                )
            }),
        ),
        lie(
            "replies-to-another-request",
            About::Replies(|asked, _| {
                let request = request(asked) ^ 1 << 33;
                told(
                    &Message::Refused { request, why: "no" }.encode(),
                    Then::Continue,
                )
            }),
        ),
        lie(
            "replies-with-data",
            About::Replies(|asked, _| {
                let reply = Message::Data {
                    request: request(asked),
                    bytes: &[5; MAX_DATA],
                };
                told(&reply.encode(), Then::Continue)
            }),
        ),
        lie(
            "replies-done",
            About::Replies(|asked, _| {
                let reply = Message::Done {
                    request: request(asked),
                    value: u64::MAX,
                };
                told(&reply.encode(), Then::Continue)
            }),
        ),
        lie(
            "empty-memory",
            About::Replies(|asked, material| told(&memory(asked, material, 0), Then::Continue)),
        ),
        lie(
            "too-few-bytes",
            About::Replies(|asked, material| {
                reply(asked, material, &|_, len| vec![1; len.saturating_sub(1)])
            }),
        ),
        lie(
            "too-many-bytes",
            About::Replies(|asked, material| reply(asked, material, &|_, _| vec![1; MAX_DATA])),
        ),
        lie(
            "wrong-event",
            About::Replies(|asked, _| {
                let (first, count, why) = (1 << 47, 1 << 30, ESCAPES);
                let failures = write_failures([Failure { first, count, why }]);
                let mut bytes = Message::Event {
                    request: request(asked),
                    completed: 1 << 48,
                    id: 1,
                    failures: &failures,
                }
                .encode();
                for number in [1 << 48, 5, 0] {
                    bytes.extend(Message::Reached { number, id: 1 }.encode());
                }
                bytes.extend(Message::Abandoned { id: 1 }.encode());
                told(&bytes, Then::Continue)
            }),
        ),
        lie(
            "many-parts",
            About::Replies(|asked, material| {
                let parts = vec![part("data", &material.memory); 500];
                name_or_memory(asked, material, &parts)
            }),
        ),
        lie(
            "parts-of-garbage",
            About::Replies(|asked, material| {
                name_or_memory(asked, material, &[part(ESCAPES, &[9; MEMORY_HANDLE_SIZE])])
            }),
        ),
        lie(
            "parts-in-escapes",
            About::Replies(|asked, material| {
                let parts =
                    [ESCAPES, "../../data\0", "", "data"].map(|role| part(role, &material.memory));
                name_or_memory(asked, material, &parts)
            }),
        ),
        lie(
            "model-of-other-bytes",
            About::Model(|| manifest(4096, &[("t", 0, 4096, 4096)])),
        ),
        lie(
            "model-of-overlapping-tensors",
            About::Model(|| {
                manifest(
                    4096,
                    &[
                        ("a", 0, 4096, 4096),
                        ("b", 256, 3840, 3840),
                        ("c", 0, 4096, 4096),
                    ],
                )
            }),
        ),
        lie(
            "model-in-escapes",
            About::Model(|| {
                let name = r"\u001b]0;owned\u0007\u009b2J\u202etxt\u0000/../x";
                manifest(4096, &[(name, 0, 256, 255)])
            }),
        ),
        lie(
            "model-of-many-tensors",
            About::Model(|| {
                let names: Vec<_> = (0..5_000).map(|number| format!("t{number}")).collect();
                let tensors: Vec<_> = names.iter().map(|name| (&**name, 0, 256, 256)).collect();
                manifest(4096, &tensors)
            }),
        ),
        lie("model-of-nothing", About::Model(String::new)),
        lie("model-of-garbage", About::Model(|| "[".repeat(100_000))),
        lie(
            "model-of-long-offsets",
            About::Model(|| manifest(4096, &[("t", !255, 256, 256)])),
        ),
        lie(
            "reconnects-and-hangs-up",
            About::Replies(|_, _| told(&[], Then::HangUp)),
        ),
    ];
    for (index, length) in LENGTHS.into_iter().enumerate() {
        /// A lie for each of [`LENGTHS`].
        fn claims<const INDEX: usize>(asked: &Message<'_>, material: &Material) -> Told {
            told(&memory(asked, material, LENGTHS[INDEX]), Then::Continue)
        }
        fn model<const INDEX: usize>() -> String {
            let len = LENGTHS[INDEX];
            manifest(len, &[("t", 0, len, len)])
        }
        let (reply, manifest): (Reply, fn() -> String) = match index {
            0 => (claims::<0>, model::<0>),
            1 => (claims::<1>, model::<1>),
            2 => (claims::<2>, model::<2>),
            _ => (claims::<3>, model::<3>),
        };
        let names = match length.checked_ilog2() {
            Some(40) => ("memory-of-2-to-40", "model-of-2-to-40"),
            Some(62) => ("memory-of-2-to-62", "model-of-2-to-62"),
            _ if length == 1 << 63 => ("memory-of-2-to-63", "model-of-2-to-63"),
            _ => ("memory-of-2-to-64", "model-of-2-to-64"),
        };
        all.push(lie(names.0, About::Replies(reply)));
        all.push(lie(names.1, About::Model(manifest)));
    }
    all
}

pub(super) fn hello() -> Hello {
    Hello {
        session: [3; 16],
        received: 0,
        host: 1,
        keep_alive_ms: 3_600_000,
        data: 0,
        refusal: 0,
        attempt: 0,
    }
}

fn greeting() -> Vec<u8> {
    hello().encode().to_vec()
}

fn told(bytes: &[u8], then: Then) -> Told {
    let bytes = bytes.to_vec();
    Told { bytes, then }
}

/// Returns the number of a request, or 0 if the message is no request.
fn request(asked: &Message<'_>) -> u64 {
    match *asked {
        Message::Open { request, .. }
        | Message::Signal { request, .. }
        | Message::Read { request, .. }
        | Message::Write { request, .. }
        | Message::WriteAndSignal { request, .. }
        | Message::Stage { request, .. }
        | Message::OpenName { request, .. } => request,
        _ => 0,
    }
}

fn part<'a>(role: &'a str, handle: &'a [u8]) -> NamedPart<'a> {
    let device = ESCAPES;
    NamedPart {
        role,
        device,
        handle,
    }
}

/// Replies to each request as if it were for memory of `len` bytes. A name has one part.
fn memory(asked: &Message<'_>, material: &Material, len: u64) -> Vec<u8> {
    if let Message::OpenName { request, .. } = *asked {
        let handle = with(&material.memory, at::LENGTH, &len.to_le_bytes());
        return name(request, &[part("data", &handle)]);
    }
    let (request, address, staging, key) = (request(asked), 0, 0, &[][..]);
    let memory = Message::Memory {
        request,
        len,
        address,
        id: 1,
        staging,
        key,
    };
    memory.encode()
}

fn name(request: u64, parts: &[NamedPart<'_>]) -> Vec<u8> {
    let parts = write_parts(parts.iter().cloned()).unwrap_or_default();
    Message::Name {
        request,
        version: u64::MAX,
        parts: &parts,
    }
    .encode()
}

fn name_or_memory(asked: &Message<'_>, material: &Material, parts: &[NamedPart<'_>]) -> Told {
    let bytes = match *asked {
        Message::OpenName { request, .. } => name(request, parts),
        _ => memory(asked, material, LEN as u64),
    };
    told(&bytes, Then::Continue)
}

/// Replies as an honest host would, except for the bytes of memory. `bytes` gets the offset and the
/// length of each read.
fn reply(asked: &Message<'_>, material: &Material, bytes: &dyn Fn(u64, usize) -> Vec<u8>) -> Told {
    let bytes = match *asked {
        Message::Read {
            request,
            offset,
            len,
            ..
        } => {
            let bytes = &bytes(offset, len as usize)[..];
            Message::Data { request, bytes }.encode()
        }
        Message::Write { request, .. } | Message::Signal { request, .. } => {
            Message::Done { request, value: 0 }.encode()
        }
        _ => memory(asked, material, LEN as u64),
    };
    told(&bytes, Then::Continue)
}

/// Replies as an honest host would whose holder has a model with this manifest. The manifest is
/// object 2 and the data is object 1.
pub(super) fn model(asked: &Message<'_>, material: &Material, manifest: &[u8]) -> Vec<u8> {
    let len = (manifest.len() as u64).to_le_bytes();
    let listing = with(&material.memory, at::LENGTH, &len);
    let (address, staging, key) = (0, 0, &[][..]);
    match *asked {
        Message::OpenName { request, .. } => name(
            request,
            &[part("data", &material.memory), part("manifest", &listing)],
        ),
        Message::Open {
            request, handle, ..
        } => {
            let (id, len) = match *handle == listing {
                true => (2, manifest.len() as u64),
                false => (1, LEN as u64),
            };
            Message::Memory {
                request,
                len,
                address,
                id,
                staging,
                key,
            }
            .encode()
        }
        Message::Read {
            request,
            offset,
            id: 2,
            len,
        } => {
            let rest = manifest.get(offset as usize..).unwrap_or_default();
            let bytes = &rest[..rest.len().min(len as usize)];
            Message::Data { request, bytes }.encode()
        }
        _ => reply(asked, material, &|_, len| vec![1; len]).bytes,
    }
}

/// Returns the manifest of a model of `bytes` bytes with these tensors, each with its name, offset,
/// length and shape.
fn manifest(bytes: u64, tensors: &[(&str, u64, u64, u64)]) -> String {
    let tensor = |(name, offset, len, shape): &(&str, u64, u64, u64)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"offset":{offset},"bytes":{len}}}"#)
    };
    let tensors: Vec<_> = tensors.iter().map(tensor).collect();
    let (hash, tensors) = ("0".repeat(64), tensors.join(","));
    format!(
        r#"{{"format":1,"bytes":{bytes},"data_hash":"{hash}","metadata":{{}},"tensors":{{{tensors}}}}}"#
    )
}
