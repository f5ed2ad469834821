use super::*;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use data_encoding::HEXLOWER;
use std::sync::LazyLock;

static FAILURES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let failure = |first, count, why| Failure { first, count, why };
    write_failures([failure(1, 1, "no"), failure(2, 2, "why")])
});
static PARTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let part = |role| NamedPart {
        role,
        device: "host",
        handle: &[9; MEMORY_HANDLE_SIZE],
    };
    write_parts([part("data"), part("manifest")]).unwrap()
});

fn all() -> Vec<Message<'static>> {
    let handle = &[7; MEMORY_HANDLE_SIZE];
    vec![
        Message::Ack { received: 3 },
        Message::Open {
            request: 1,
            read_only: true,
            handle,
        },
        Message::Memory {
            request: 1,
            id: 2,
            len: 3,
            address: 4,
            staging: 5,
            key: b"key",
        },
        Message::Event {
            request: 1,
            id: 2,
            completed: 3,
            failures: &FAILURES,
        },
        Message::Close { id: 9 },
        Message::Signal { request: 1, id: 2 },
        Message::Done {
            request: 1,
            value: 2,
        },
        Message::Refused {
            request: 1,
            why: "no",
        },
        Message::Reached { id: 1, number: 2 },
        Message::Failed {
            id: 1,
            first: 2,
            count: 3,
            why: "no",
        },
        Message::Abandoned { id: 1 },
        Message::Address {
            generation: 1,
            address: b"there",
        },
        Message::Read {
            request: 1,
            id: 2,
            offset: 3,
            len: 4,
        },
        Message::Data {
            request: 1,
            bytes: b"bytes",
        },
        Message::Write {
            request: 1,
            id: 2,
            offset: 3,
            bytes: b"bytes",
        },
        Message::WriteAndSignal {
            request: 1,
            id: 2,
            event: 3,
            offset: 4,
            bytes: b"bytes",
        },
        Message::Stage {
            request: 1,
            id: 2,
            into_memory: true,
            offset: 3,
            at: 4,
            len: 5,
        },
        Message::OpenName {
            request: 1,
            name: "model",
        },
        Message::Name {
            request: 1,
            version: 2,
            parts: &PARTS,
        },
        Message::Bye { why: "enough" },
    ]
}

/// `frames.txt` contains the bytes of each message in `all`. These bytes must not change within a
/// version of the protocol.
#[test]
fn every_message_has_the_bytes_of_this_version() {
    let lines = include_str!("frames.txt").lines();
    assert_eq!(lines.clone().count(), all().len());
    for (message, line) in all().into_iter().zip(lines) {
        let frame = message.encode();
        assert_eq!(HEXLOWER.encode(&frame), line, "{message:?}");
        assert_eq!(Message::frame_len(&frame), Ok(Some(frame.len())));
        assert_eq!(Message::decode(&frame[PREFIX..]), Ok(message));
    }
}

#[test]
fn a_message_that_is_cut_off_is_refused_or_a_shorter_one() {
    for message in all() {
        let frame = message.encode();
        for end in PREFIX..frame.len() {
            let cut = &frame[PREFIX..end];
            if let Ok(shorter) = Message::decode(cut) {
                assert_eq!(&shorter.encode()[PREFIX..], cut, "{message:?} cut at {end}");
            }
        }
    }
}

#[test]
fn lengths_that_no_message_has_are_refused_before_the_message_is_there() {
    assert_eq!(Message::frame_len(&[1, 0, 0]), Ok(None));
    for len in [0, MAX_FRAME as u32 + 1, u32::MAX] {
        assert!(Message::frame_len(&len.to_le_bytes()).is_err());
    }
}

#[test]
fn signals_beyond_all_counting_are_refused() {
    let first = MAX_SIGNAL + 1;
    let (request, id, count, why) = (1, 2, 1, "no");
    for message in [
        Message::Reached { id, number: first },
        Message::Failed {
            id,
            first,
            count,
            why,
        },
        Message::Event {
            request,
            id,
            completed: u64::MAX,
            failures: &[],
        },
    ] {
        assert!(Message::decode(&message.encode()[PREFIX..]).is_err());
    }
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let why = "é".repeat(MAX_TEXT);
    let frame = Message::Bye { why: &why }.encode();
    let Ok(Message::Bye { why }) = Message::decode(&frame[PREFIX..]) else {
        panic!("not as it was written");
    };
    assert_eq!(why.len(), MAX_TEXT);
}

#[test]
fn greetings_of_other_protocols_are_refused() {
    let hello = Hello {
        session: [3; 16],
        received: 4,
        host: 5,
        keep_alive_ms: 6,
        data: 1,
        refusal: 0,
        attempt: 7,
    };
    let bytes = hello.encode();
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    for place in (0..8).chain([44]).chain(50..HELLO_SIZE) {
        let mut other = bytes;
        other[place] ^= 0x42;
        assert!(Hello::decode(&other).is_err(), "byte {place}");
    }
    let mut older = bytes;
    older[7] = VERSION - 1;
    assert_eq!(Hello::decode(&older), Err(NoHello::Version(VERSION - 1)));
}

#[test]
fn failures_out_of_order_or_beyond_the_last_signal_are_refused() {
    let failure = |first, count| Failure {
        first,
        count,
        why: "no",
    };
    let written = write_failures([failure(1, 2), failure(3, 1)]);
    assert_eq!(
        read_failures(&written, 3),
        Ok(vec![failure(1, 2), failure(3, 1)])
    );
    assert!(read_failures(&written, 2).is_err());
    assert!(read_failures(&written[..written.len() - 1], 3).is_err());
    for wrong in [
        vec![failure(0, 1)],
        vec![failure(1, 0)],
        vec![failure(2, 2), failure(3, 1)],
        vec![failure(u64::MAX, u32::MAX)],
    ] {
        assert!(read_failures(&write_failures(wrong), u64::MAX).is_err());
    }
}

#[test]
fn parts_are_read_as_they_were_written() {
    let parts = read_parts(&PARTS).unwrap();
    assert_eq!((parts.len(), parts[1].role), (2, "manifest"));
    // Each of these lengths ends inside the first part.
    for cut in 1..MEMORY_HANDLE_SIZE {
        assert!(read_parts(&PARTS[..cut]).is_err());
    }
    // Opening a part takes one request, so the number of parts is limited.
    let many = |pairs: usize| PARTS.repeat(pairs);
    assert_eq!(read_parts(&many(MAX_PARTS / 2)).unwrap().len(), MAX_PARTS);
    assert!(read_parts(&many(MAX_PARTS / 2 + 1)).is_err());
}
