//! Sleeping on any number of futexes at once, by io_uring(7).
//!
//! Needs Linux 6.7 or later, and no sandbox that forbids it, as container runtimes usually do.

use super::{UPPER, process_bits};
use crate::tuning::POLL_INTERVAL;
use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Number of entries that one system call submits.
const ENTRIES: u32 = 256;
/// Number of completions that the kernel keeps without allocating, more than the usual number of
/// doorbells in a process.
const COMPLETIONS: u32 = 4096;
/// `FUTEX2_SIZE_U32` of `linux/futex.h`, for a shared word of 32 bits.
const SIZE_U32: u32 = 2;
/// Token of cancellations, which are not reported.
const CANCELLATION: u64 = u64::MAX;
/// Token of the trial sleep.
const TRIAL: u64 = u64::MAX - 1;

/// An io_uring instance for sleeps on futexes. Belongs to the thread that made it.
pub(super) struct Ring {
    ring: IoUring,
    /// Entries for which the submission queue has no room.
    waiting: VecDeque<Entry>,
    /// Sleeps that the kernel refused because it was out of memory.
    refused: Vec<u64>,
    /// Makes the type `!Send`, because the kernel refuses calls from other threads.
    _of_one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// Makes an instance for the calling thread. Returns `None` if the system does not support or
    /// permit sleeping on futexes.
    pub(super) fn new() -> Option<Self> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
            .ok()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return None;
        }
        let mut ring = Self {
            ring,
            waiting: VecDeque::new(),
            refused: Vec::new(),
            _of_one_thread: PhantomData,
        };
        // A sandbox may permit an instance, but no operations.
        let mut woken = Vec::new();
        let word = AtomicU64::new(0);
        ring.begin(TRIAL, ptr::from_ref(&word).addr(), 1);
        ring.sleep(Duration::from_secs(1), &mut woken).ok()?;
        (woken == [TRIAL]).then_some(ring)
    }

    /// Adds a sleep on the upper half of the word at an address. If nothing is mapped there, the
    /// sleep ends at once.
    pub(super) fn begin(&mut self, token: u64, word: usize, expected: u32) {
        let word = ptr::without_provenance(word + UPPER * size_of::<AtomicU32>());
        let mask = process_bits().get().into();
        let sleep = opcode::FutexWait::new(word, expected.into(), mask, SIZE_U32);
        self.push(sleep.build().user_data(token));
    }

    /// Cancels a sleep.
    pub(super) fn end(&mut self, token: u64) {
        let cancellation = opcode::AsyncCancel::new(token);
        self.push(cancellation.build().user_data(CANCELLATION));
    }

    fn push(&mut self, entry: Entry) {
        self.waiting.push_back(entry);
    }

    /// Blocks until a sleep ends, for at most `limit`, and appends the tokens of ended sleeps to
    /// `woken`.
    pub(super) fn sleep(&mut self, limit: Duration, woken: &mut Vec<u64>) -> io::Result<()> {
        let mut refused = std::mem::take(&mut self.refused);
        let limit = match refused.is_empty() {
            true => limit,
            false => limit.min(POLL_INTERVAL),
        };
        let limit = Timespec::from(limit);
        loop {
            self.fill();
            let is_last = self.waiting.is_empty();
            let submitter = self.ring.submitter();
            let submitted = match is_last {
                true => submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit)),
                false => submitter.submit(),
            };
            self.collect(woken);
            match submitted.map_err(|error| (Errno::from_io_error(&error), error)) {
                Ok(_) | Err((Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY), _)) => {}
                Err((_, error)) => {
                    // The refused tokens must still be reported.
                    self.refused.append(&mut refused);
                    return Err(error);
                }
            }
            if is_last {
                woken.append(&mut refused);
                return Ok(());
            }
        }
    }

    /// Moves entries to the submission queue as far as it has room.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.waiting.front() {
            // SAFETY: a sleep names the word to the kernel, which checks itself whether it is
            // mapped. The other entries name no memory.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    fn collect(&mut self, woken: &mut Vec<u64>) {
        for ended in self.ring.completion() {
            let token = ended.user_data();
            if token == CANCELLATION {
                continue;
            }
            match -ended.result() {
                // These sleeps are retried after the next call, because retrying at once could loop
                // forever.
                libc::ENOMEM | libc::EMFILE => self.refused.push(token),
                _ => woken.push(token),
            }
        }
    }
}
