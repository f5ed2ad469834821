//! Parses any bytes with every handle type, unchanged and with a valid tag.

#![no_main]

use crosshandle::handle::HandleError;
use crosshandle_fuzz::{parse_bytes, retagged};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = parse_bytes(data);
    if let Some(bytes) = retagged(data) {
        assert_ne!(parse_bytes(&bytes), Err(HandleError::Corrupt));
        // Every type must detect one flipped bit, which the tag in the input chooses.
        let mut damaged = bytes;
        let bit = usize::from(data[data.len() - 1]) * 4 + usize::from(data[data.len() - 2] % 4);
        let at = bit / 8 % damaged.len();
        damaged[at] ^= 1 << (bit % 8);
        assert!(parse_bytes(&damaged).is_err());
    }
});
