//! The checked-in PTX files belong to their CUDA sources and to `crosshandle.cuh`.

use std::fs;
use std::path::Path;

const SOURCES: [&str; 3] = [
    "benches/src/cuda/kernels/kernels",
    "crates/conformance/kernels/device_signals",
    "crates/crosshandle/src/api/event/device/nodes",
];

/// The FNV-1a hash, which `compile_ptx.py` writes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[test]
fn the_ptx_was_made_from_the_sources() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_dir.ancestors().nth(2).expect("the workspace");
    let header = fs::read(crate_dir.join("include/crosshandle.cuh")).expect("the header");
    for source in SOURCES {
        let mut text = fs::read(root.join(source).with_extension("cu")).expect("a source");
        text.extend_from_slice(&header);
        let ptx = fs::read_to_string(root.join(source).with_extension("ptx")).expect("a PTX file");
        let first = ptx.lines().next().unwrap_or_default();
        let checksum = checksum(&text);
        assert!(
            first.ends_with(&format!(": {checksum:016x}.")),
            "{source}.cu or the header has changed ({checksum:016x}): run compile_ptx.py"
        );
    }
}
