//! Hashes of memory that only the device can access. Kernels of the device compute them, so that no
//! byte crosses to the host.

use super::hash::{PIECE_BYTES, PieceHash};
use crosshandle::kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage};
use crosshandle::{AllocationOptions, Command, Context, Memory, MemoryKind, Queue, Result};

/// The kernels of `kernels.cu`, compiled by `compile_ptx.py`.
const KERNELS: &str = include_str!("kernels.ptx");
/// The language of [`KERNELS`].
const LANGUAGE: &str = "PTX";
/// Bytes that a block of `hash_groups` hashes, and its threads. `kernels.cu` has the same numbers.
const GROUP_BYTES: u64 = 256 << 10;
const GROUP_THREADS: u32 = 256;
/// Size of a chunk of BLAKE3, in bytes.
const CHUNK_BYTES: u64 = 1024;
const PIECE_GROUPS: u32 = (PIECE_BYTES / GROUP_BYTES) as u32;
const HASH_BYTES: usize = 32;

/// Maximum number of pieces that one launch hashes. With fewer, the device is idle more often.
/// With more, progress is reported less often.
const RUN_PIECES: usize = 64;

/// The kernels that hash, a queue for them, and memory for their results.
pub(crate) struct DeviceHasher<'a> {
    memory: &'a Memory,
    queue: Queue,
    hash_groups: Kernel,
    combine_groups: Kernel,
    groups: Memory,
    /// The hashes of one run's pieces, which the host can read.
    pieces: Memory,
}

impl<'a> DeviceHasher<'a> {
    /// Returns whether the device of the context can load the kernels.
    pub(crate) fn is_for(context: &Context) -> bool {
        let limits = context.device().kernels();
        limits.is_ok_and(|limits| {
            let mut languages = limits.intermediate_languages.split(' ');
            languages.any(|language| language == LANGUAGE)
        })
    }

    /// Loads the kernels. The driver compiles them the first time on a machine.
    pub(crate) fn new(context: &Context, memory: &'a Memory) -> Result<Self> {
        let program = Program::new(context, ProgramImage::text(KERNELS))?;
        let groups = RUN_PIECES * PIECE_GROUPS as usize * HASH_BYTES;
        let pieces = AllocationOptions::new(RUN_PIECES * HASH_BYTES).kind(MemoryKind::Host);
        Ok(Self {
            memory,
            queue: context.create_queue()?,
            hash_groups: program.kernel("hash_groups")?,
            combine_groups: program.kernel("combine_groups")?,
            groups: context.allocate(groups)?,
            pieces: context.allocate_with(pieces)?,
        })
    }

    /// Hashes pieces of the memory, in ascending order. Calls `put` with the index of each piece in
    /// `pieces`, and with its hash.
    pub(crate) fn hash(
        &self,
        pieces: &[u64],
        mut put: impl FnMut(usize, &PieceHash) -> crate::Result<()>,
    ) -> crate::Result<()> {
        let mut done = 0;
        for run in pieces.chunk_by(|one, next| one + 1 == *next) {
            for run in run.chunks(RUN_PIECES) {
                self.launch(run)?;
                self.queue.finish()?;
                let mut hashes = [0; RUN_PIECES * HASH_BYTES];
                self.pieces.read(0, &mut hashes)?;
                let (hashes, _) = hashes.as_chunks::<HASH_BYTES>();
                let bytes = self.memory.len() as u64;
                for hash in &hashes[..run.len()] {
                    put(done, &PieceHash::of_bytes(*hash, bytes))?;
                    done += 1;
                }
            }
        }
        Ok(())
    }

    /// Submits the kernels for consecutive pieces.
    fn launch(&self, run: &[u64]) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let bytes = self.memory.len() as u64;
        let start = first * PIECE_BYTES;
        let len = ((last + 1) * PIECE_BYTES).min(bytes) - start;
        let is_whole = u32::from(bytes <= PIECE_BYTES);
        let groups = len.div_ceil(GROUP_BYTES);
        let range = self.memory.range(start as usize..(start + len) as usize)?;
        let arguments = KernelArguments::new()
            .with(&self.groups.all())
            .with(&range)
            .value(len)
            .value(start / CHUNK_BYTES)
            .value(is_whole);
        let shape = LaunchShape::new([groups as u32, 1, 1], [GROUP_THREADS, 1, 1]);
        // SAFETY: the kernel reads the `len` bytes of `range`, and writes 32 bytes for each block
        // to `groups`. That memory has room for the groups of `RUN_PIECES` pieces, and `run` is not
        // longer. The arguments keep both. Host code has no reference to them.
        #[allow(unsafe_code)]
        let hashes = unsafe { Command::launch(&self.hash_groups, shape, arguments) }?;
        self.queue.submit(hashes)?;
        let arguments = KernelArguments::new()
            .with(&self.pieces.all())
            .with(&self.groups.all())
            .value(groups)
            .value(is_whole);
        let shape = LaunchShape::new([run.len() as u32, 1, 1], [PIECE_GROUPS, 1, 1]);
        // SAFETY: the kernel reads 32 bytes for each of `groups` groups, which the kernel before it
        // has written, and writes 32 bytes for each block to `pieces`. That memory has room for
        // `RUN_PIECES` pieces. The arguments keep both. Host code has no reference to them.
        #[allow(unsafe_code)]
        let combined = unsafe { Command::launch(&self.combine_groups, shape, arguments) }?;
        self.queue.submit(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::hash::PieceHasher;
    use std::io::Write;
    use std::path::Path;
    use std::process::Stdio;

    const PIECE: usize = PIECE_BYTES as usize;
    const GROUP: usize = GROUP_BYTES as usize;
    /// Lengths next to the borders of blocks, chunks, groups and pieces.
    const LENGTHS: [usize; 20] = [
        1,
        63,
        64,
        65,
        1023,
        1024,
        1025,
        2047,
        3 * 1024 + 1,
        GROUP - 1,
        GROUP,
        GROUP + 1,
        3 * GROUP,
        3 * GROUP + 1025,
        (5 << 20) + 12_345,
        PIECE - 1,
        PIECE,
        PIECE + 1,
        2 * PIECE + 7 * GROUP + 1023,
        3 * PIECE,
    ];

    fn bytes(len: usize) -> Vec<u8> {
        let words = (0_u64..).map(|i| (i ^ 0x5851).wrapping_mul(0x5851_F42D_4C95_7F2D) >> 13);
        let mut bytes: Vec<u8> = words
            .flat_map(u64::to_ne_bytes)
            .take(len.next_multiple_of(8))
            .collect();
        bytes.truncate(len);
        bytes
    }

    /// Returns the hashes that the pieces of contents must have.
    fn expected(bytes: &[u8]) -> Vec<[u8; HASH_BYTES]> {
        let len = bytes.len() as u64;
        let parts = (0..).zip(bytes.chunks(PIECE));
        parts
            .map(|(piece, part)| {
                let mut hasher = PieceHasher::new(piece, len);
                hasher.update(part);
                hasher.finish().to_bytes()
            })
            .collect()
    }

    #[test]
    fn the_compiled_kernels_are_those_of_the_source() {
        // The FNV-1a hash, which `compile_ptx.py` writes.
        let step =
            |value: u64, byte: &u8| (value ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        let source = include_bytes!("kernels.cu");
        let checksum = source.iter().fold(0xCBF2_9CE4_8422_2325, step);
        let first = KERNELS.lines().next().expect("a line");
        assert!(
            first.ends_with(&format!("{checksum:016x}.")),
            "kernels.cu has changed ({checksum:016x}): run compile_ptx.py"
        );
    }

    #[test]
    fn the_kernels_compute_the_hash_on_the_host() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/contents/device_hash");
        let program = std::env::temp_dir().join(format!("xh-hash-{}", std::process::id()));
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let built = std::process::Command::new(compiler)
            .args([
                "-std=c++20",
                "-O1",
                "-Wall",
                "-Wno-unknown-pragmas",
                "-pthread",
                "-o",
            ])
            .arg(&program)
            .arg(source.join("on_host.cpp"))
            .status();
        assert!(built.expect("a C++ compiler").success());
        let run = |bytes: &[u8], first_chunk: u64, is_whole: bool| -> Vec<[u8; HASH_BYTES]> {
            let mut child = std::process::Command::new(&program)
                .args([first_chunk.to_string(), u8::from(is_whole).to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all(bytes).expect("it reads");
            drop(input);
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).expect("text");
            text.lines()
                .map(|line| *blake3::Hash::from_hex(line).expect("a hash").as_bytes())
                .collect()
        };
        assert_eq!(run(&[], 0, true), [*blake3::hash(b"").as_bytes()]);
        // Larger contents take long, because each thread of a block is a thread of the host.
        for len in LENGTHS.into_iter().filter(|len| *len <= PIECE / 2) {
            let bytes = bytes(len);
            let found = run(&bytes, 0, len <= PIECE);
            assert!(found == expected(&bytes), "{len}");
        }
        // Pieces that are not the first ones.
        let bytes = bytes(2 * PIECE + 99_999);
        let found = run(&bytes[PIECE..], PIECE_BYTES / CHUNK_BYTES, false);
        assert_eq!(found, expected(&bytes)[1..]);
        std::fs::remove_file(program).expect("removed");
    }

    mod on_a_gpu {
        use super::*;
        use crate::contents::hash;
        use crosshandle::Device;

        #[test]
        #[ignore = "needs an NVIDIA GPU"]
        fn the_device_computes_the_hash() {
            let device = Device::find("cuda:0").expect("a GPU");
            let context = Context::new(&device).expect("a context");
            assert!(DeviceHasher::is_for(&context));
            let many = (RUN_PIECES + 3) * PIECE + 54_321;
            for len in LENGTHS.into_iter().chain([many]) {
                let bytes = bytes(len);
                let memory = context.allocate(len).expect("memory");
                let kind = AllocationOptions::new(len).kind(MemoryKind::Host);
                let staging = context.allocate_with(kind).expect("memory");
                staging.write(0, &bytes).expect("inside");
                let queue = context.create_queue().expect("a queue");
                let copy = Command::copy(staging.all(), memory.all()).expect("a copy");
                queue.submit(copy).expect("submitted");
                queue.finish().expect("copied");
                let hasher = DeviceHasher::new(&context, &memory).expect("kernels");
                let expected = expected(&bytes);
                let every: Vec<u64> = (0..hash::pieces(len as u64)).collect();
                let some: Vec<u64> = every.iter().copied().filter(|it| it % 3 != 1).collect();
                for pieces in [every, some] {
                    let mut indices = Vec::new();
                    let hashed = hasher.hash(&pieces, |at, hash| {
                        assert_eq!(hash.to_bytes(), expected[pieces[at] as usize], "{len}");
                        indices.push(at);
                        Ok(())
                    });
                    hashed.expect("hashed");
                    assert!(indices.into_iter().eq(0..pieces.len()));
                }
            }
        }
    }
}
