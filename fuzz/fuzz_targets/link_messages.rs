//! Decodes any bytes as messages of the other host over a link, and as messages of neighbours. A
//! link's messages are a greeting, and frames with their lengths.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/crosshandle-link/src/wire.rs"]
mod wire;

// The link itself uses more of the modules.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/crosshandle-link/src/control/message/mod.rs"]
mod message;
#[allow(dead_code)]
#[path = "../../crates/crosshandle-link/src/neighbour/message.rs"]
mod neighbour;

use message::{
    HELLO_SIZE, Hello, Message, PREFIX, read_failures, read_parts, write_failures, write_parts,
};

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk::<HELLO_SIZE>()
        && let Ok(hello) = Hello::decode(bytes)
    {
        assert_eq!(hello.encode(), *bytes);
    }
    if let Ok(request) = neighbour::Request::decode(data) {
        assert_eq!(request.encode(), data);
    }
    if let Ok(reply) = neighbour::Reply::decode(data) {
        assert_eq!(reply.encode(), data);
    }
    check(data);
    // Decodes the bytes as successive frames.
    let mut rest = data;
    while let Ok(Some(len)) = Message::frame_len(rest) {
        let Some((frame, behind)) = rest.split_at_checked(len) else {
            break;
        };
        check(&frame[PREFIX..]);
        rest = behind;
    }
});

/// Checks that an accepted message is canonical, so that encoding it again gives the same bytes.
fn check(frame: &[u8]) {
    if let Ok(message) = Message::decode(frame) {
        let encoded = message.encode();
        assert_eq!(Message::frame_len(&encoded), Ok(Some(encoded.len())));
        assert_eq!(&encoded[PREFIX..], frame);
        match message {
            Message::Event {
                completed,
                failures,
                ..
            } => {
                let read = read_failures(failures, completed).expect("it was accepted");
                assert_eq!(write_failures(read), failures);
            }
            Message::Name { parts, .. } => {
                let read = read_parts(parts).expect("it was accepted");
                assert_eq!(write_parts(read).as_deref(), Some(parts));
            }
            _ => {}
        }
    }
}
