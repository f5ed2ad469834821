//! Bytes that other processes, devices and threads may read and write at the same time.
//!
//! No reference to them is ever made, only copies by value: whatever a peer writes meanwhile, every
//! copy is some bytes, and types are limited to those for which any bytes are valid.
//!
//! # Why racing copies are sound
//! Two threads of one process may copy to and from the same bytes at once, from safe code. Plain
//! copies would be a data race, which the language does not define. So the shared side of every copy
//! is accessed by machine instructions in `asm!`, of which the compiler knows only that memory changes:
//! for it they are what another process or a device does, which this memory is open to anyway. On
//! other architectures than x86-64 the shared side is accessed by relaxed atomic operations on whole
//! aligned words of 64 bits, all of one size.

use super::byte_range;
use super::pod::Pod;
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

/// A range of shared memory that the host can access.
///
/// # Races
/// Any thread of any process may read and write the same bytes at the same time. That is never
/// undefined, but a copy is not atomic: each byte that it gets from a racing write is the old or the
/// new one, in any mixture. A copy orders nothing: use events, or [`atomics`](Self::atomics).
/// [`TypedSlice`] says for which elements an access is whole.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    _memory: PhantomData<&'a ()>,
}

// SAFETY: all access is by copies of plain bytes, which any thread may make: see above.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// The range must stay mapped for `'a`, writable if `writable`, in whole pages (parts of which
    /// may lie outside the range), and be accessed by others only as shared memory, never through
    /// Rust references that exclude that.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            start,
            len,
            writable,
            _memory: PhantomData,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the start.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the part in a range of bytes, counted from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(Self {
            // SAFETY: `start` ≤ `self.len`.
            start: unsafe { self.start.add(start) },
            len: end - start,
            ..*self
        })
    }

    /// Copies bytes out, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        byte_range::check(offset, into.len(), self.len)?;
        // SAFETY: the source is mapped and long enough; `into` is the caller's alone, so the two
        // don't overlap.
        unsafe { shared_copy::read(self.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        byte_range::check(offset, from.len(), self.len)?;
        self.check_writable()?;
        // SAFETY: the destination is mapped, writable and long enough; no Rust reference to it
        // exists, so the two don't overlap.
        unsafe { shared_copy::write(from.as_ptr(), self.as_ptr().add(offset), from.len()) };
        Ok(())
    }

    /// Returns the range as elements of a type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the start is not aligned for `T` or the length is not a
    /// multiple of its size.
    pub fn typed<T: Pod>(&self) -> Result<TypedSlice<'a, T>> {
        check_elements::<T>(self.start.addr().get(), self.len)?;
        Ok(TypedSlice {
            bytes: *self,
            _type: PhantomData,
        })
    }

    /// Returns the range as 64-bit words for atomic access, by several processes at once. A copy that
    /// races with them is as [above](Self): it may see a part of a word.
    ///
    /// # Errors
    /// As [`typed`](Self::typed); [`Error::ReadOnly`] if the memory was opened read-only.
    pub fn atomics(&self) -> Result<&'a [AtomicU64]> {
        self.check_writable()?;
        let words = self.typed::<u64>()?;
        // SAFETY: aligned, mapped and writable for 'a; atomics may be shared with any thread.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), words.len()) })
    }

    fn check_writable(&self) -> Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(Error::ReadOnly)
        }
    }
}

/// Refuses bytes that are no slice of `T`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a start that is not aligned for `T`, a length that is not a multiple
/// of its size, and a type without bytes.
pub(crate) fn check_elements<T>(start: usize, len: usize) -> Result<()> {
    let fits = size_of::<T>() != 0
        && len.is_multiple_of(size_of::<T>())
        && start.is_multiple_of(align_of::<T>());
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{len} bytes at {start:#x} are no slice of a type of {} bytes with alignment {}",
        size_of::<T>(),
        align_of::<T>()
    )))
}

/// Elements in shared memory, accessed by value.
///
/// [`get`](Self::get) and [`set`](Self::set) access an element of 1, 2, 4 or 8 bytes that is aligned
/// to its size as a whole: a racing access sees the old or the new element, not a mixture. Larger
/// elements and copies of several are as [`SharedBytes`] says. No access orders others.
#[derive(Clone, Copy)]
pub struct TypedSlice<'a, T> {
    bytes: SharedBytes<'a>,
    _type: PhantomData<T>,
}

impl<'a, T: Pod> TypedSlice<'a, T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len / size_of::<T>()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first element.
    pub fn as_ptr(&self) -> *mut T {
        self.bytes.as_ptr().cast()
    }

    /// Returns a copy of an element; `None` behind the end.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        let mut element = MaybeUninit::<T>::uninit();
        // SAFETY: the element is in bounds; every byte of `element` is written, and any bytes are a
        // T.
        unsafe {
            let place = self.as_ptr().add(index).cast();
            shared_copy::read(place, element.as_mut_ptr().cast(), size_of::<T>());
            Some(element.assume_init())
        }
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] behind the end, [`Error::ReadOnly`] if the memory was opened
    /// read-only.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.bytes
            .write(index.saturating_mul(size_of::<T>()), value.as_bytes())
    }

    /// Copies elements out, starting at element `first`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside.
    pub fn read(&self, first: usize, into: &mut [T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.read(offset, into.as_mut_bytes())
    }

    /// Copies elements in, starting at element `first`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.write(offset, from.as_bytes())
    }

    /// Returns the elements in place.
    ///
    /// # Safety
    /// Until the slice is last used, no process, queue or thread may write to the memory.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: mapped and aligned for 'a; any bytes are a T; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Returns the elements in place, to be changed.
    ///
    /// # Safety
    /// Until the slice is last used, no other process, queue or thread may read or write the memory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory was opened read-only.
    pub unsafe fn as_mut_slice(&self) -> Result<&'a mut [T]> {
        self.bytes.check_writable()?;
        // SAFETY: mapped, writable and aligned for 'a; any bytes are a T; the caller keeps
        // all others away.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }
}

/// Copies of bytes of which one side, or both, are shared.
pub(crate) mod shared_copy {
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    use words as machine;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    use x86_64 as machine;

    /// Copies shared bytes to private ones.
    ///
    /// # Safety
    /// `len` bytes are mapped at `from`, in whole pages, and valid for writes at `to`. The two don't
    /// overlap.
    #[inline]
    pub(crate) unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: promised by the caller.
        unsafe { machine::read(from, to, len) }
    }

    /// Copies private bytes to shared ones.
    ///
    /// # Safety
    /// `len` bytes are valid for reads at `from`, and mapped for writing at `to`, in whole pages. The
    /// two don't overlap.
    #[inline]
    pub(crate) unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: promised by the caller.
        unsafe { machine::write(from, to, len) }
    }

    /// Copies shared bytes to shared ones, which may overlap.
    ///
    /// # Safety
    /// `len` bytes are mapped at `from`, and mapped for writing at `to`, in whole pages.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        if from.addr().abs_diff(to.addr()) >= len {
            // SAFETY: promised by the caller; they don't overlap.
            return unsafe { machine::copy(from, to, len) };
        }
        let mut buffer = [0; BUFFER_BYTES];
        let mut done = 0;
        while done < len {
            let part = BUFFER_BYTES.min(len - done);
            // From the end, if the destination is behind: what is written was read before.
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

    /// Sets shared bytes.
    ///
    /// # Safety
    /// `len` bytes are mapped for writing at `to`, in whole pages.
    pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        // SAFETY: promised by the caller.
        unsafe { machine::fill(to, byte, len) }
    }

    /// Bytes of the buffer through which overlapping ranges are copied: it lies on the stack and in
    /// the innermost cache. Half as many would show the cost of the calls, twice as many gain nothing.
    const BUFFER_BYTES: usize = 4 << 10;

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    mod x86_64 {
        use std::arch::asm;

        /// Copies from this many bytes on use the loops for long copies, whose start costs some 10 ns.
        /// At half of it that start shows; at twice, the loop of 16-byte moves has lost more.
        const LONG_BYTES: usize = 256;

        /// Copies from this many bytes on use `rep movsb`, if both sides are aligned alike. At half of
        /// it the instruction's start of some 30 ns shows; at twice, nothing is gained.
        const STRING_BYTES: usize = 4 << 10;

        /// Copies from this many bytes on bypass the caches, if the sides are aligned differently:
        /// they would find nothing there. At half of it, what fits a cache is evicted; at twice, such
        /// copies take half as long again.
        const STREAM_BYTES: usize = 8 << 20;

        pub(super) use copy as read;
        pub(super) use copy as write;

        /// Moves one register's width between two addresses by one load and one store.
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

        /// Copies bytes that don't overlap. An aligned element of 1, 2, 4 or 8 bytes moves as one.
        ///
        /// # Safety
        /// `len` bytes are mapped at both addresses, and writable at `to`.
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
            // The destination is aligned, since the processor then stores whole cache lines.
            let first = to.align_offset(64);
            // SAFETY: as for `copy`; there are more than 64 + 16 bytes.
            unsafe {
                for done in (0..first).step_by(16) {
                    move_16(from.add(done), to.add(done));
                }
                let (from, to, len) = (from.add(first), to.add(first), len - first);
                // Processors are slow, some by five times, at long strings aligned differently.
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

        /// Defines a copy in vectors of 32 bytes, of at least 16 bytes to an address that is a multiple
        /// of 32, for processors with AVX.
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
                                // `vzeroupper` changes them all.
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
        // Later stores come after the copy, as after any other.
        copy_by_vectors!(copy_streaming, "vmovntps", "sfence");

        /// # Safety
        /// `len` bytes are mapped for writing at `to`.
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

        /// Returns the word that contains an address, and the address's place in it.
        unsafe fn word_at<'a>(address: *const u8) -> (&'a AtomicU64, usize) {
            let place = address.addr() % WORD;
            // SAFETY: aligned; the page that contains the address is mapped, and so the word.
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
                // SAFETY: as for `read`, the other way round.
                unsafe {
                    let (word, place) = word_at(to.add(done));
                    let part = (WORD - place).min(len - done);
                    let from = from.add(done);
                    if part == WORD {
                        word.store(from.cast::<u64>().read_unaligned(), Ordering::Relaxed);
                    } else {
                        // The word's other bytes stay as they are, also if they change meanwhile.
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

        /// Memory in words, so that no part shares a word with something else.
        fn pattern(len: usize, seed: u8) -> Vec<u64> {
            let word = |index| u64::from_ne_bytes([index as u8 ^ seed, seed, 3, 4, 5, 6, 7, 8]);
            (0..len / 8).map(word).collect()
        }

        pub(super) fn check_copies(read: Copy, write: Copy, copy: Copy, fill: Fill) {
            const LEN: usize = 8 << 10;
            let lens =
                (0..140).chain([255, 256, 257, 383, 511, 1000, 2047, 4096, 4159, 4160, 5003]);
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
}
