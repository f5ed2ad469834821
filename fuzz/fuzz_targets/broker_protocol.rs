//! Any bytes, as they are and behind a right beginning, are read as messages of both sides.

#![no_main]

use crosshandle::fuzzing::{reply, request};
use libfuzzer_sys::fuzz_target;

/// What every message starts with: magic number and version.
const BEGINNING: [u8; 6] = *b"XHBR\x03\0";

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut message = data.to_vec();
    if let Some(beginning) = message.get_mut(..BEGINNING.len()) {
        beginning.copy_from_slice(&BEGINNING);
        check(&message);
    }
});

/// What is taken for a message has no other form: not a bit of it was passed over.
fn check(message: &[u8]) {
    let (asked, answered) = (request(message), reply(message));
    assert!(
        asked.is_none() || answered.is_none(),
        "both a question and an answer"
    );
    for understood in asked.into_iter().chain(answered) {
        assert_eq!(understood, message);
    }
}
