//! Hints about memory that will be needed.

use std::mem::size_of;

const CACHE_LINE: usize = 64;

/// Has the CPU fetch a place that is about to be written, also from other CPUs, while the caller goes
/// on. A hint: any address will do.
#[inline]
pub(crate) fn for_writing<T>(place: *const T) {
    for offset in (0..size_of::<T>()).step_by(CACHE_LINE) {
        let line = place.cast::<u8>().wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // The standard library's fetches lines for reading only, unless built for newer CPUs.
        // SAFETY: it accesses nothing and never faults; CPUs that don't know it ignore it.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
