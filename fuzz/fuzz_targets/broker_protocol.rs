//! Decodes any bytes as a request and as a reply of the broker, unchanged and with a valid header.

#![no_main]

use crosshandle_fuzz::{reply, request};
use libfuzzer_sys::fuzz_target;

/// The header of every message, with magic number and version.
const HEADER: [u8; 6] = *b"XHBR\x09\0";

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut message = data.to_vec();
    if let Some(header) = message.get_mut(..HEADER.len()) {
        header.copy_from_slice(&HEADER);
        check(&message);
    }
});

/// Checks that an accepted message is canonical, so that encoding it again gives the same bytes.
fn check(message: &[u8]) {
    let (as_request, as_reply) = (request(message), reply(message));
    assert!(
        as_request.is_none() || as_reply.is_none(),
        "both a request and a reply"
    );
    for encoded in as_request.into_iter().chain(as_reply) {
        assert_eq!(encoded, message);
    }
}
