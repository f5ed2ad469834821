//! Decodes any bytes as a bundle, unchanged and with a valid start and checksums. The rest of the
//! input is a table in shared memory.

#![no_main]

use crosshandle::handle::bundle::{Bundle, BundleError, Unpacked};
use crosshandle_fuzz::{retagged, size_by_start};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = judge(data);
    let bytes = mended(data);
    assert_ne!(judge(&bytes), Err(BundleError::Damaged));
});

/// Decodes bytes, and checks that encoding an accepted bundle again gives the same bytes.
fn judge(bytes: &[u8]) -> Result<(), BundleError> {
    match Bundle::decode(bytes)? {
        Unpacked::Whole(bundle) => {
            assert_eq!(bundle.encode().as_deref(), Ok(bytes));
            for array in &bundle.arrays {
                assert_eq!(array.layout.check(array.handle.len()), Ok(()));
            }
            // Encodes the bundle again with its table in shared memory.
            let table = bundle.encode_table().expect("it was just read");
            let memory = bundle.arrays.iter().map(|array| array.handle);
            if let Some(memory) = memory.max_by_key(|memory| memory.len())
                && let Ok(head) = bundle.encode_head(&memory, &table)
            {
                let Ok(Unpacked::Head(head)) = Bundle::decode(&head) else {
                    panic!("a head of its own making");
                };
                assert_eq!(head.finish(&table).as_ref(), Ok(&bundle));
            }
        }
        Unpacked::Head(head) => {
            assert!(head.len() as u64 <= head.table().len());
            if head.len() < 1 << 16 {
                assert!(head.clone().finish(&vec![0; head.len()]).is_err() || head.len() == 0);
            }
            let _ = head.finish(bytes);
        }
    }
    Ok(())
}

/// Returns the bytes with the start of a bundle and correct checksums, because a fuzzer cannot find
/// a CRC by itself. Bytes that begin like a handle also receive a correct tag.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = [b"xhb4", data].concat();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let start = match rest.starts_with(b"XHDL") {
            true => rest.get(..size_by_start(rest)),
            false => None,
        };
        let tagged = start.and_then(retagged).unwrap_or_default();
        bytes[at..at + tagged.len()].copy_from_slice(&tagged);
        at += tagged.len().max(1);
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}
