//! Detection of fork(2), and protection of descriptors that a forked child must not keep.
//!
//! A child made by `fork` has all descriptors of its parent. A copy of a listening socket would
//! make importers wait for a reply from a dead exporter. A copy of a connection would hide the
//! parent's death from the peer. A handler therefore runs in the child before `fork` returns there.
//! It replaces every such descriptor by an inert file. The number stays occupied, so a later close
//! in the child cannot close an unrelated file.
//!
//! Three cases are not covered: a child of a raw clone(2), for which no handler runs; a descriptor
//! that another thread makes at the very moment of the fork; and numbers of [`TABLE_NUMBERS`] and
//! above. A peer that connects to such a child learns of the exporter's death from its liveness
//! lock, which a child does not inherit.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Number of forks between this process and the first process that watched for forks.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Makes [`is_forked`], [`Birth`] and [`PerProcess`] notice forks from now on.
pub fn watch_forks() {
    // This is not a `Once`, because a child that is forked while another thread runs it would wait
    // forever.
    static IS_WATCHING: AtomicBool = AtomicBool::new(false);
    if IS_WATCHING.load(Ordering::Relaxed) || IS_WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the handler stores to atomics and makes system calls, which a forked child may do.
    let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if result != 0 {
        tracing::warn!(result, "a fork will not be noticed");
    }
}

/// Runs in a forked child, in which no other thread exists.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    KEPT.replace_all();
}

/// Returns whether this process is a child made by `fork` without `exec`. Such a child has copies
/// of its parent's objects, but the resources that they share with other processes still belong to
/// the parent. The child must not release them. Their locks may be held by threads that do not
/// exist in the child.
#[inline]
pub fn is_forked() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// The process in which an object was made. A forked child has copies of its parent's objects. It
/// must neither use them nor release the resources that they share with other processes. Their
/// locks may be held by threads that do not exist in the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth(u32);

impl Birth {
    /// Returns the birth of an object that this process makes now.
    #[inline]
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether the object was made by a process that this one was forked from.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self != Self::here()
    }
}

/// A static value that each process makes for itself. A forked child makes a new value. Its copy of
/// the parent's value is leaked, and the locks in that copy are never touched.
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Own<T>>,
    make: fn() -> T,
}

/// A value and the process that made it.
struct Own<T> {
    birth: Birth,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Makes the static. Each process that uses it calls `make` at least once.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
            make,
        }
    }

    #[cold]
    fn replace(&self, former: *mut Own<T>) -> &'static T {
        watch_forks();
        let own = Box::into_raw(Box::new(Own {
            birth: Birth::here(),
            value: (self.make)(),
        }));
        let exchanged =
            self.current
                .compare_exchange(former, own, Ordering::AcqRel, Ordering::Acquire);
        let current = match exchanged {
            Ok(_) => own,
            Err(others) => {
                // SAFETY: `own` came from a box, and no other thread has it.
                drop(unsafe { Box::from_raw(own) });
                others
            }
        };
        // SAFETY: a stored value is never freed, and is only borrowed from then on.
        unsafe { &(*current).value }
    }
}

impl<T: Send + Sync + 'static> Deref for PerProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or came from a box that is never freed and is only borrowed.
        match unsafe { current.as_ref() } {
            Some(own) if !own.birth.is_inherited() => &own.value,
            _ => self.replace(current),
        }
    }
}

/// A descriptor that is replaced by an inert file in forked children. Dropping it in a child closes
/// nothing.
#[derive(Debug)]
pub struct KeptFromChildren {
    file: ManuallyDrop<OwnedFd>,
    birth: Birth,
}

impl KeptFromChildren {
    /// Protects a descriptor in children of later forks. Call it as soon as the descriptor exists,
    /// because a fork before the call gives the child a copy.
    pub fn new(file: OwnedFd) -> Self {
        watch_forks();
        KEPT.insert(file.as_raw_fd());
        Self {
            file: ManuallyDrop::new(file),
            birth: Birth::here(),
        }
    }
}

impl AsFd for KeptFromChildren {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for KeptFromChildren {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            return;
        }
        // This comes first, because another file may get the number once the descriptor is closed.
        KEPT.remove(self.file.as_raw_fd());
        // SAFETY: this is the drop of the value, so the file is not used again.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// Number of descriptors that the table can hold. By default, the kernel allows a process no more
/// (`fs.nr_open`).
const TABLE_NUMBERS: usize = 1 << 20;
const WORD_BITS: usize = u64::BITS as usize;

/// A lock-free set of descriptor numbers. Untouched pages take no memory.
struct Table {
    words: [AtomicU64; TABLE_NUMBERS / WORD_BITS],
    /// Number of words that have ever been used.
    used: AtomicUsize,
}

static KEPT: Table = Table::new();

impl Table {
    const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; TABLE_NUMBERS / WORD_BITS],
            used: AtomicUsize::new(0),
        }
    }

    /// Returns the word and the bit of a number, or `None` if the number is too large.
    fn place(&self, number: RawFd) -> Option<(usize, u64)> {
        let number = usize::try_from(number).ok()?;
        (number < TABLE_NUMBERS).then_some((number / WORD_BITS, 1 << (number % WORD_BITS)))
    }

    fn insert(&self, number: RawFd) {
        if let Some((word, bit)) = self.place(number) {
            self.used.fetch_max(word + 1, Ordering::Relaxed);
            self.words[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn remove(&self, number: RawFd) {
        if let Some((word, bit)) = self.place(number) {
            self.words[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Replaces every descriptor of the table by an inert file, and empties the table. A child that
    /// closes these descriptors and forks again may have its own files there. Takes no lock and
    /// allocates no memory.
    fn replace_all(&self) {
        let mut inert = inert_file();
        // Whether the inert file itself has a number of the table, and keeps it.
        let mut is_in_place = false;
        let used = self.used.load(Ordering::Relaxed);
        for (index, word) in self.words.iter().take(used).enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number = (index * WORD_BITS + bits.trailing_zeros() as usize) as RawFd;
                bits &= bits - 1;
                // SAFETY: the number belonged to a `KeptFromChildren`, which closes nothing in a
                // child, and the parent's descriptor is a different one. So nothing else owns this
                // descriptor.
                let mut kept = unsafe { OwnedFd::from_raw_fd(number) };
                let Some(file) = &inert else {
                    // There was no free descriptor for the inert file. The closed descriptor now
                    // leaves one free.
                    drop(kept);
                    inert = inert_file();
                    is_in_place = inert.as_ref().is_some_and(|it| it.as_raw_fd() == number);
                    continue;
                };
                // The call fails if the descriptor limit was lowered below the number. Then the
                // descriptor is closed.
                if dup3(file, &mut kept, DupFlags::CLOEXEC).is_ok() {
                    let _ = kept.into_raw_fd();
                }
            }
        }
        if is_in_place && let Some(file) = inert {
            let _ = file.into_raw_fd();
        }
    }
}

/// Makes a file that no other process has and that never becomes readable.
fn inert_file() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use rustix::fs::{FileType, fstat};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// Runs `check` in a forked child, and returns whether it was true there.
    fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes only system calls, and ends without running anything else.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1, "a child");
        if child == 0 {
            let status = i32::from(!check());
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable for the call.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        status == 0
    }

    fn is_socket(file: impl AsFd) -> bool {
        fstat(file).is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Socket)
    }

    fn is_inert(number: RawFd) -> bool {
        // SAFETY: the number is not -1, and the borrow lasts for one system call.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        fstat(file).is_ok() && !is_socket(file)
    }

    #[test]
    fn a_child_gets_an_inert_file_and_the_parent_keeps_its_own() {
        let (ours, theirs) = socket::pair().expect("two sockets");
        let (free, _other) = socket::pair().expect("two sockets");
        let kept = KeptFromChildren::new(ours);
        let number = kept.as_fd().as_raw_fd();
        assert!(holds_in_child(|| is_forked()
            && is_inert(number)
            && is_socket(&free)));
        assert!(is_socket(&kept) && is_socket(&theirs) && !is_forked());
    }

    #[test]
    fn what_a_child_drops_stays_taken() {
        let (ours, _theirs) = socket::pair().expect("two sockets");
        let kept = KeptFromChildren::new(ours);
        let number = kept.as_fd().as_raw_fd();
        assert!(holds_in_child(|| {
            drop(kept);
            is_inert(number)
        }));
    }

    #[test]
    fn what_was_taken_out_is_left_alone() {
        let (ours, theirs) = socket::pair().expect("two sockets");
        // In the meantime, other tests may use the numbers of the real table.
        static TABLE: Table = Table::new();
        TABLE.insert(ours.as_raw_fd());
        TABLE.insert(theirs.as_raw_fd());
        TABLE.remove(ours.as_raw_fd());
        for number in [-1, TABLE_NUMBERS as RawFd, RawFd::MAX] {
            TABLE.insert(number);
        }
        assert!(holds_in_child(|| {
            TABLE.replace_all();
            is_socket(&ours) && is_inert(theirs.as_raw_fd())
        }));
    }

    #[test]
    fn a_child_of_a_child_keeps_its_own_files() {
        let (ours, _theirs) = socket::pair().expect("two sockets");
        let number = KeptFromChildren::new(ours);
        let number = ManuallyDrop::new(number).as_fd().as_raw_fd();
        assert!(holds_in_child(|| {
            // A daemon closes all descriptors and then opens its own files.
            // SAFETY: in this child the number is an inert file's, which nothing uses.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            let Ok((own, _)) = socket::pair() else {
                return false;
            };
            own.as_raw_fd() == number && holds_in_child(|| is_socket(&own))
        }));
    }

    #[test]
    fn a_child_without_a_free_descriptor_keeps_none_of_them_either() {
        static TABLE: Table = Table::new();
        let files = [(); 3].map(|()| socket::pair().expect("two sockets").0);
        let numbers = files.each_ref().map(|file| file.as_raw_fd());
        let limit = |current| {
            let maximum = getrlimit(Resource::Nofile).maximum;
            let current = Some(current);
            setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok()
        };
        for number in numbers {
            TABLE.insert(number);
        }
        // There is room only for the existing files, so the inert file takes the first number.
        let highest = numbers.iter().max().expect("three") + 1;
        assert!(holds_in_child(|| {
            let is_limited = limit(highest as u64);
            while let Some(filler) = inert_file() {
                std::mem::forget(filler);
            }
            TABLE.replace_all();
            is_limited && numbers.iter().all(|number| is_inert(*number))
        }));
        // The limit leaves no room at all, so even the descriptor numbers of the files cannot be
        // reused.
        assert!(holds_in_child(|| {
            let is_limited = limit(0);
            TABLE.replace_all();
            is_limited && !files.iter().any(is_socket)
        }));
    }
}
