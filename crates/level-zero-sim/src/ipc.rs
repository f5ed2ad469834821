//! Handles for other processes: 64 bytes that contain a descriptor number.
//!
//! As in Intel's driver, the number comes first. The descriptor reaches the opening process in one
//! of two ways:
//!
//! - The opening process has its own descriptor of the same file, and writes that descriptor's
//!   number into the handle.
//! - The driver fetches the descriptor from the exporting process, whose process ID is in the
//!   handle.
//!
//! A driver that fetches compares the number with a second copy in the handle, and so recognises a
//! replaced number for memory. It does not recognise a replaced number for counter-based events.
//! Their number comes after eight zero bytes.
//!
//! For host memory, the driver takes ownership of the descriptor whose number the opening process
//! wrote, and closes it at once. For device memory, the caller keeps its descriptor. Intel's driver
//! has behaved like this since 26.09.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use level_zero_sys::*;
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::call::{INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, Result};
use crate::checks::{Check, misuse};
use crate::ledger::{self, Resource};
use crate::os::Segment;
use crate::switches::{Transport, switches};

/// The first version of a fetching driver that recognises a replaced number (26.18).
const RECOGNISES: u32 = 0x0103_0000 + 38_308;

/// The kind of object that a handle refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Memory = 1,
    CounterEvent = 2,
}

impl Kind {
    /// Returns the result code for opening a bad handle.
    fn refusal(self) -> ze_result_t {
        match self {
            Self::Memory => INVALID_ARGUMENT,
            Self::CounterEvent => OUT_OF_DEVICE_MEMORY,
        }
    }
}

/// The bytes of a handle.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wire {
    /// The descriptor number. An opener may replace it, and the other fields stay as the exporter
    /// wrote them.
    number: c_int,
    original: c_int,
    /// The size of memory in bytes, or the number of events of a pool. For an event it is the
    /// latest signal, if the handle contains that.
    pub(crate) size: u64,
    /// The ID of the process that exported memory, at the same offset as in Intel's driver. It is 0
    /// if the driver does not fetch descriptors.
    memory_pid: u32,
    /// The kind of memory, in the second byte. It is 0 if the driver does not fetch descriptors.
    memory_kind: u32,
    inode: u64,
    /// The driver's version.
    version: u32,
    pub(crate) flags: u32,
    kind: u32,
    spare: u32,
    /// The ID of the process that exported an event, at the same offset as in Intel's driver. It is
    /// 0 if the driver does not fetch descriptors.
    event_pid: u32,
    magic: u32,
    sum: u64,
}

const MAGIC: u32 = u32::from_le_bytes(*b"zes\x02");
const _: () = assert!(size_of::<Wire>() == ZE_MAX_IPC_HANDLE_SIZE as usize);

impl Wire {
    pub(crate) fn new(kind: Kind, exported: &Exported, size: u64, flags: u32) -> Self {
        let number = exported.number();
        let pid = match switches().transport {
            Transport::Pidfd => std::process::id(),
            Transport::Descriptor => 0,
        };
        let mut wire = Self {
            number,
            original: number,
            size,
            memory_pid: if kind == Kind::Memory { pid } else { 0 },
            memory_kind: match kind {
                Kind::Memory if pid != 0 => u32::from_ne_bytes([0, flags as u8, 0, 0]),
                _ => 0,
            },
            inode: exported.inode,
            version: switches().driver_version,
            flags,
            kind: kind as u32,
            spare: 0,
            event_pid: if kind == Kind::Memory { 0 } else { pid },
            magic: MAGIC,
            sum: 0,
        };
        if kind == Kind::CounterEvent && pid != 0 && size == 0 {
            (wire.number, wire.original) = (0, 0);
            (wire.size, wire.spare) = (number as u64, number as u32);
        }
        wire.sum = wire.sum_of_rest();
        wire
    }

    pub(crate) fn into_bytes(self) -> [c_char; 64] {
        // SAFETY: both types are 64 bytes without padding, and any bytes are valid values.
        unsafe { std::mem::transmute(self) }
    }

    /// Reads a handle of the given kind, and checks it.
    pub(crate) fn read(bytes: [c_char; 64], kind: Kind) -> Result<Self> {
        // SAFETY: both types are 64 bytes without padding, and any bytes are valid values.
        let wire: Self = unsafe { std::mem::transmute(bytes) };
        if wire.magic == MAGIC && wire.version != switches().driver_version {
            let (theirs, ours) = (wire.version, switches().driver_version);
            let what = format!("the handle is of driver version {theirs:#x}, this is {ours:#x}");
            misuse(Check::ForeignVersion, &what);
            return Err(kind.refusal());
        }
        if wire.magic != MAGIC || wire.sum != wire.sum_of_rest() || wire.kind != kind as u32 {
            misuse(Check::GarbageHandle, "no driver has made this handle");
            return Err(kind.refusal());
        }
        Ok(wire)
    }

    /// Returns a checksum of all bytes that an opener may not change.
    fn sum_of_rest(&self) -> u64 {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let words = [
            pair(self.original as u32, self.spare),
            if self.is_displaced() { 0 } else { self.size },
            // A process that replaces the number may also erase the exporting process's ID.
            pair(self.memory_kind, self.event_pid),
            self.inode,
            pair(self.version, self.flags),
            u64::from(self.kind),
        ];
        words.iter().fold(u64::from(MAGIC), |sum, word| {
            (sum ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23)
        })
    }

    /// Returns whether the handle begins with zeros, with the number after them.
    fn is_displaced(&self) -> bool {
        self.kind == Kind::CounterEvent as u32 && self.original == 0 && self.spare != 0
    }

    /// Returns the current descriptor number, and the one that the exporting process wrote.
    fn numbers(&self) -> (c_int, c_int) {
        match self.is_displaced() {
            true => (self.size as c_int, self.spare as c_int),
            false => (self.number, self.original),
        }
    }

    /// Opens the handle's file in this process.
    pub(crate) fn open(&self, kind: Kind) -> Result<Segment> {
        if switches().refuse_descriptors {
            return Err(kind.refusal());
        }
        let pid = self.memory_pid | self.event_pid;
        let (number, original) = self.numbers();
        let recognises = kind != Kind::CounterEvent && switches().driver_version >= RECOGNISES;
        let recognised = recognises && number != original;
        let fetches = pid != 0 && !recognised;
        let is_host = self.flags == ze_memory_type_t::ZE_MEMORY_TYPE_HOST.0;
        let takes = kind == Kind::Memory && is_host && number != original;
        let file = match fetches && pid != std::process::id() {
            true => fetch(pid, number),
            false if takes => take(number),
            false => duplicate(number),
        };
        match file.and_then(Segment::from_file) {
            Some(segment) if segment.inode() == self.inode => return Ok(segment),
            // The kernel denied access, or the exporter has ended. This is no mistake of the
            // caller.
            _ if fetches && number == original => {}
            found => {
                let what = match found {
                    Some(_) => "leads to something else",
                    None => "is not open there, or not the driver's",
                };
                let whose = if fetches { "the exporting" } else { "this" };
                let what = format!("descriptor {number} of {whose} process {what}");
                misuse(Check::ForeignDescriptor, &what);
            }
        }
        Err(kind.refusal())
    }
}

/// Duplicates a descriptor of the exporting process. The kernel allows this only if the calling
/// process may trace the exporter.
fn fetch(pid: u32, number: c_int) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid as i32)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()
}

/// Duplicates a descriptor of this process by its number.
pub(crate) fn duplicate(number: c_int) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is borrowed for one system call, which fails if the number is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(descriptor, 0).ok()
}

/// Takes over a descriptor whose ownership the caller has passed to the driver.
pub(crate) fn take(number: c_int) -> Option<OwnedFd> {
    let file = duplicate(number)?;
    // SAFETY: the descriptor is open, and its owner has passed it to the driver.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Some(file)
}

/// A descriptor of the driver whose number handles contain. Only the driver may close it.
pub(crate) struct Exported {
    /// The descriptor, which is `None` only during drop.
    file: Option<OwnedFd>,
    inode: u64,
}

impl Exported {
    pub(crate) fn new(segment: &Segment) -> Result<Self> {
        let file = segment.descriptor()?;
        ledger::add(Resource::Descriptor);
        Ok(Self {
            file: Some(file),
            inode: segment.inode(),
        })
    }

    pub(crate) fn number(&self) -> c_int {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns whether the number still refers to the same file.
    fn is_intact(&self) -> bool {
        let status = self.file.as_ref().map(fstat);
        status.is_some_and(|status| status.is_ok_and(|status| status.st_ino == self.inode))
    }

    /// Reports a wrong use if the program has closed the descriptor.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_intact() {
            true => Ok(()),
            false => {
                let number = self.number();
                misuse(
                    Check::DescriptorClosed,
                    &format!("descriptor {number} of a handle"),
                );
                Err(INVALID_ARGUMENT)
            }
        }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        ledger::remove(Resource::Descriptor);
        if self.check().is_err() {
            // The number may belong to another file now, so it is not closed.
            let _ = self.file.take().map(IntoRawFd::into_raw_fd);
        }
    }
}
