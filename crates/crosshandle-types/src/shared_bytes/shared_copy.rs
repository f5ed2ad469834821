//! Copies of bytes where one side or both sides are shared memory.

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use words as machine;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64 as machine;

/// Copies shared bytes to private ones.
///
/// # Safety
/// `len` bytes must be mapped at `from`, in whole pages, and valid for writes at `to`. The two
/// ranges must not overlap.
#[inline]
pub unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { machine::read(from, to, len) }
}

/// Copies private bytes to shared ones.
///
/// # Safety
/// `len` bytes must be valid for reads at `from`, and mapped for writing at `to`, in whole pages.
/// The two ranges must not overlap.
#[inline]
pub unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { machine::write(from, to, len) }
}

/// Copies shared bytes to shared bytes. The two ranges may overlap.
///
/// # Safety
/// `len` bytes must be mapped at `from`, and mapped for writing at `to`, in whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if from.addr().abs_diff(to.addr()) >= len {
        // SAFETY: promised by the caller; they don't overlap.
        return unsafe { machine::copy(from, to, len) };
    }
    let mut buffer = [0; BUFFER_BYTES];
    let mut done = 0;
    while done < len {
        let part = BUFFER_BYTES.min(len - done);
        // If the destination has the higher address, the copy runs backwards, so that no byte is
        // overwritten before it is read.
        let at = if to.addr() > from.addr() {
            len - done - part
        } else {
            done
        };
        // SAFETY: both parts are inside what the caller promised; the buffer is large enough.
        unsafe {
            read(from.add(at), buffer.as_mut_ptr(), part);
            write(buffer.as_ptr(), to.add(at), part);
        }
        done += part;
    }
}

/// Sets all bytes of a range of shared memory to one value.
///
/// # Safety
/// `len` bytes must be mapped for writing at `to`, in whole pages.
pub unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { machine::fill(to, byte, len) }
}

/// Size in bytes of the buffer through which overlapping ranges are copied. It lies on the stack
/// and fits into the innermost cache. With half the size, the cost of the calls shows. With twice
/// the size, nothing is gained.
const BUFFER_BYTES: usize = 4 << 10;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;

    /// Length in bytes from which copies use the loops for long copies, which take about 10 ns to
    /// start. With half the length, this start is noticeable. With twice the length, the loop of
    /// 16-byte moves is already slower.
    const LONG_BYTES: usize = 256;

    /// Length in bytes from which copies use `rep movsb`, if both sides have the same alignment.
    /// The instruction takes about 30 ns to start. With half the length, this start is noticeable.
    /// With twice the length, nothing is gained.
    const STRING_BYTES: usize = 4 << 10;

    /// Length in bytes from which copies bypass the caches, if the sides have different alignments.
    /// Such long copies gain nothing from the caches. With half the length, data that fits into a
    /// cache is evicted. With twice the length, such copies take half as long again.
    const STREAM_BYTES: usize = 8 << 20;

    pub(super) use copy as read;
    pub(super) use copy as write;

    /// Defines a function that moves one register's width between two addresses with one load and
    /// one store.
    macro_rules! move_one {
        ($name:ident, $class:ident, $modifier:literal, $move:literal) => {
            #[inline(always)]
            unsafe fn $name(from: *const u8, to: *mut u8) {
                // SAFETY: the caller of `copy` promised the bytes on both sides.
                unsafe {
                    asm!(
                        concat!($move, " {value", $modifier, "}, [{from}]"),
                        concat!($move, " [{to}], {value", $modifier, "}"),
                        value = out($class) _,
                        from = in(reg) from,
                        to = in(reg) to,
                        options(nostack, preserves_flags)
                    );
                }
            }
        };
    }

    move_one!(move_1, reg_byte, "", "mov");
    move_one!(move_2, reg, ":x", "mov");
    move_one!(move_4, reg, ":e", "mov");
    move_one!(move_8, reg, ":r", "mov");
    move_one!(move_16, xmm_reg, "", "movups");

    /// Copies bytes that don't overlap. An aligned element of 1, 2, 4 or 8 bytes is copied
    /// atomically.
    ///
    /// # Safety
    /// `len` bytes must be mapped at both addresses, and be writable at `to`.
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: each move is inside the first or the last part of `len` bytes.
        unsafe {
            match len {
                0 => {}
                1 => move_1(from, to),
                2 => move_2(from, to),
                4 => move_4(from, to),
                8 => move_8(from, to),
                3 => {
                    move_2(from, to);
                    move_1(from.add(2), to.add(2));
                }
                5..8 => {
                    move_4(from, to);
                    move_4(from.add(len - 4), to.add(len - 4));
                }
                9..16 => {
                    move_8(from, to);
                    move_8(from.add(len - 8), to.add(len - 8));
                }
                16..LONG_BYTES => {
                    let last = len - 16;
                    let mut done = 0;
                    while done < last {
                        move_16(from.add(done), to.add(done));
                        done += 16;
                    }
                    move_16(from.add(last), to.add(last));
                }
                _ => copy_long(from, to, len),
            }
        }
    }

    unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
        // Aligns the destination, because the processor then stores whole cache lines.
        let first = to.align_offset(64);
        // SAFETY: as for `copy`; there are more than 64 + 16 bytes.
        unsafe {
            for done in (0..first).step_by(16) {
                move_16(from.add(done), to.add(done));
            }
            let (from, to, len) = (from.add(first), to.add(first), len - first);
            // Processors copy long strings slowly if the sides have different alignments, some by a
            // factor of five.
            let is_aligned_alike = from.addr().is_multiple_of(64);
            if is_aligned_alike && len >= STRING_BYTES || !is_x86_feature_detected!("avx") {
                copy_string(from, to, len);
            } else if len >= STREAM_BYTES {
                copy_streaming(from, to, len);
            } else {
                copy_vectors(from, to, len);
            }
        }
    }

    unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as for `copy`. The direction flag is clear.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Defines a copy in vectors of 32 bytes, for processors with AVX. It copies at least 16 bytes
    /// to an address that is a multiple of 32.
    macro_rules! copy_by_vectors {
        ($name:ident, $store:literal, $fence:literal) => {
            unsafe fn $name(from: *const u8, to: *mut u8, len: usize) {
                const BLOCK: usize = 128;
                let mut done = len - len % BLOCK;
                // SAFETY: as for `copy`.
                unsafe {
                    if done > 0 {
                        asm!(
                            "2:",
                            "vmovups ymm0, [{from}]",
                            "vmovups ymm1, [{from} + 32]",
                            "vmovups ymm2, [{from} + 64]",
                            "vmovups ymm3, [{from} + 96]",
                            concat!($store, " [{to}], ymm0"),
                            concat!($store, " [{to} + 32], ymm1"),
                            concat!($store, " [{to} + 64], ymm2"),
                            concat!($store, " [{to} + 96], ymm3"),
                            "add {from}, 128",
                            "add {to}, 128",
                            "sub {left}, 128",
                            "jnz 2b",
                            "vzeroupper",
                            $fence,
                            from = inout(reg) from => _,
                            to = inout(reg) to => _,
                            left = inout(reg) done => _,
                            // `vzeroupper` changes all these registers.
                            out("xmm0") _,
                            out("xmm1") _,
                            out("xmm2") _,
                            out("xmm3") _,
                            out("xmm4") _,
                            out("xmm5") _,
                            out("xmm6") _,
                            out("xmm7") _,
                            out("xmm8") _,
                            out("xmm9") _,
                            out("xmm10") _,
                            out("xmm11") _,
                            out("xmm12") _,
                            out("xmm13") _,
                            out("xmm14") _,
                            out("xmm15") _,
                            options(nostack)
                        );
                    }
                    while done + 16 < len {
                        move_16(from.add(done), to.add(done));
                        done += 16;
                    }
                    move_16(from.add(len - 16), to.add(len - 16));
                }
            }
        };
    }

    copy_by_vectors!(copy_vectors, "vmovups", "");
    // The fence orders later stores after the copy, as they are after any other copy.
    copy_by_vectors!(copy_streaming, "vmovntps", "sfence");

    /// # Safety
    /// `len` bytes must be mapped for writing at `to`.
    pub(super) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        // SAFETY: promised by the caller. The direction flag is clear.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") len => _,
                inout("rdi") to => _,
                in("al") byte,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
mod words {
    use std::ptr;
    use std::sync::atomic::{AtomicU64, Ordering};

    const WORD: usize = size_of::<u64>();

    /// Returns the word that contains an address, and the offset of the address in the word.
    unsafe fn word_at<'a>(address: *const u8) -> (&'a AtomicU64, usize) {
        let place = address.addr() % WORD;
        // SAFETY: the word is aligned. The page that contains the address is mapped, so the word is
        // mapped too.
        (unsafe { &*address.sub(place).cast() }, place)
    }

    pub(super) unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            // SAFETY: inside the source, which the caller promised; and inside `to`, of which
            // `part` bytes are left.
            unsafe {
                let (word, place) = word_at(from.add(done));
                let part = (WORD - place).min(len - done);
                let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                ptr::copy_nonoverlapping(bytes.as_ptr().add(place), to.add(done), part);
                done += part;
            }
        }
    }

    pub(super) unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            // SAFETY: as for `read`, with the two sides exchanged.
            unsafe {
                let (word, place) = word_at(to.add(done));
                let part = (WORD - place).min(len - done);
                let from = from.add(done);
                if part == WORD {
                    word.store(from.cast::<u64>().read_unaligned(), Ordering::Relaxed);
                } else {
                    // Keeps the word's other bytes, even if they change during the update.
                    let replace = |word: u64| {
                        let mut bytes = word.to_ne_bytes();
                        let place = bytes.as_mut_ptr().add(place);
                        ptr::copy_nonoverlapping(from, place, part);
                        Some(u64::from_ne_bytes(bytes))
                    };
                    let order = Ordering::Relaxed;
                    let _ = word.fetch_update(order, order, replace);
                }
                done += part;
            }
        }
    }

    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let mut buffer = [0; super::BUFFER_BYTES];
        for done in (0..len).step_by(buffer.len()) {
            let part = buffer.len().min(len - done);
            // SAFETY: inside what the caller promised.
            unsafe {
                read(from.add(done), buffer.as_mut_ptr(), part);
                write(buffer.as_ptr(), to.add(done), part);
            }
        }
    }

    pub(super) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        let buffer = [byte; super::BUFFER_BYTES];
        for done in (0..len).step_by(buffer.len()) {
            let part = buffer.len().min(len - done);
            // SAFETY: inside what the caller promised.
            unsafe { write(buffer.as_ptr(), to.add(done), part) };
        }
    }

    #[cfg(test)]
    #[test]
    fn words_copy_every_part() {
        super::tests::check_copies(read, write, copy, fill);
    }
}

#[cfg(test)]
mod tests {
    type Copy = unsafe fn(*const u8, *mut u8, usize);
    type Fill = unsafe fn(*mut u8, u8, usize);

    /// Memory allocated as whole words, so that no part shares a word with another object.
    fn pattern(len: usize, seed: u8) -> Vec<u64> {
        let word = |index| u64::from_ne_bytes([index as u8 ^ seed, seed, 3, 4, 5, 6, 7, 8]);
        (0..len / 8).map(word).collect()
    }

    pub(super) fn check_copies(read: Copy, write: Copy, copy: Copy, fill: Fill) {
        const LEN: usize = 8 << 10;
        let lens = (0..140).chain([255, 256, 257, 383, 511, 1000, 2047, 4096, 4159, 4160, 5003]);
        for (number, len) in lens.enumerate() {
            for (from_offset, to_offset) in [(0, 0), (1, 0), (0, 3), (5, 2), (number % 64, 9)] {
                for (name, copy) in [("read", read), ("write", write), ("copy", copy)] {
                    let from = pattern(LEN, 1);
                    let mut to = pattern(LEN, 2);
                    let source = from.as_ptr().cast::<u8>();
                    let target = to.as_mut_ptr().cast::<u8>();
                    // SAFETY: both are long enough.
                    let (mut wanted, found) = unsafe {
                        let wanted = std::slice::from_raw_parts(target, LEN).to_vec();
                        copy(source.add(from_offset), target.add(to_offset), len);
                        (wanted, std::slice::from_raw_parts(target, LEN))
                    };
                    // SAFETY: as above.
                    let source = unsafe { std::slice::from_raw_parts(source, LEN) };
                    wanted[to_offset..][..len].copy_from_slice(&source[from_offset..][..len]);
                    assert!(found == wanted, "{name} {len} {from_offset} {to_offset}");
                }
            }
            let mut to = pattern(LEN, 2);
            let target = to.as_mut_ptr().cast::<u8>();
            // SAFETY: long enough.
            let (mut wanted, found) = unsafe {
                let wanted = std::slice::from_raw_parts(target, LEN).to_vec();
                fill(target.add(7), 0xA5, len);
                (wanted, std::slice::from_raw_parts(target, LEN))
            };
            wanted[7..][..len].fill(0xA5);
            assert!(found == wanted, "fill {len}");
        }
    }

    #[test]
    fn copies_are_exact() {
        check_copies(super::read, super::write, super::copy, super::fill);
    }

    #[test]
    fn long_copies_are_exact() {
        const LEN: usize = 9 << 20;
        let from = pattern(LEN, 1);
        // SAFETY: as long as that.
        let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), LEN) };
        for (from_offset, to_offset, rest) in [(0, 0, 64), (1, 3, 64), (5, 60, 77)] {
            let mut to = vec![0; LEN];
            let len = LEN - rest;
            let (source, wanted) = (from[from_offset..].as_ptr(), &from[from_offset..][..len]);
            // SAFETY: both are long enough.
            unsafe { super::copy(source, to[to_offset..].as_mut_ptr(), len) };
            assert!(to[to_offset..][..len] == *wanted);
            let around = to[..to_offset].iter().chain(&to[to_offset + len..]);
            assert!(around.copied().all(|byte| byte == 0));
        }
    }

    #[test]
    fn copies_may_overlap() {
        const LEN: usize = 40_000;
        for (from, to) in [(0, 1), (1, 0), (0, 5000), (5000, 0), (0, 64), (100, 100)] {
            for len in [1, 63, 4096, 4097, 30_000] {
                let mut bytes: Vec<u8> = (0..LEN).map(|index| (index % 251) as u8).collect();
                let mut wanted = bytes.clone();
                wanted.copy_within(from..from + len, to);
                let start = bytes.as_mut_ptr();
                // SAFETY: both parts are inside.
                unsafe { super::copy(start.add(from), start.add(to), len) };
                assert!(bytes == wanted, "{from} {to} {len}");
            }
        }
    }
}
