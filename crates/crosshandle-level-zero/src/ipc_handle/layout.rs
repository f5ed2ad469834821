//! The layout of the IPC handles of Intel's driver, for the fields that this library reads or
//! writes.
//!
//! The specification treats the bytes as opaque. The fields are those of `IpcMemoryData`,
//! `IpcOpaqueMemoryData` and `IpcCounterBasedEventData` in the driver's sources, from 25.05 to
//! 26.31 and the later development branch. The driver has two kinds of handles. For a *legacy*
//! handle, the importer must bring the descriptor. For an *opaque* handle, which exists since
//! 25.35, the driver fetches the descriptor from the exporting process. Only opaque handles contain
//! the id of that process.
//!
//! | handle | descriptor | process | recognised by |
//! |---|---|---|---|
//! | memory, legacy | 0..4 | – | byte 16 is the kind of memory, zeros follow |
//! | memory, opaque | 0..4 | 16..20 | byte 20 is 0 (a descriptor), byte 21 is the kind of memory, never 0 |
//! | event, before 26.14 | 0..4 | – | the version |
//! | event, 26.14 to 26.31 | 8..12 | 48..52 | eight zeros first |
//! | event, later | 0..4 | 20..24 | the descriptor first, and the version |

use super::{IPC_HANDLE_BYTES, Subject};
use std::ops::Range;
use std::os::fd::RawFd;

/// The first build whose memory handles are opaque (25.35).
const OPAQUE_MEMORY: u32 = 35_096;
/// The first build whose event handles are opaque (26.14).
const OPAQUE_EVENTS: u32 = 37_833;
/// The last known build whose opaque event handles begin with eight zeros (26.31).
const LAST_WITH_ZEROS: u32 = 39_395;

type Bytes = [u8; IPC_HANDLE_BYTES];

/// Returns the build number in a driver's version.
fn build(driver_version: u32) -> u32 {
    driver_version & 0xffff
}

fn begins_with_zeros(handle: &Bytes) -> bool {
    handle[..8] == [0; 8]
}

/// Returns the position of the descriptor number.
pub(super) fn place_of_descriptor(subject: Subject, handle: &Bytes) -> Range<usize> {
    match subject {
        Subject::Event if begins_with_zeros(handle) => 8..12,
        _ => 0..4,
    }
}

/// Returns the descriptor number.
pub(super) fn descriptor_in(subject: Subject, handle: &Bytes) -> RawFd {
    RawFd::from_ne_bytes(word(handle, place_of_descriptor(subject, handle)))
}

/// Returns the position of the exporting process's id. Returns `None` if the driver does not fetch
/// the descriptor from that process.
pub(super) fn place_of_process(
    subject: Subject,
    driver_version: u32,
    handle: &Bytes,
) -> Option<Range<usize>> {
    let build = build(driver_version);
    let place = match subject {
        Subject::Memory => {
            let is_opaque = build >= OPAQUE_MEMORY && handle[20] == 0 && handle[21] != 0;
            is_opaque.then_some(16..20)
        }
        Subject::Event if build < OPAQUE_EVENTS => None,
        Subject::Event if begins_with_zeros(handle) => Some(48..52),
        Subject::Event => (build > LAST_WITH_ZEROS).then_some(20..24),
        Subject::Physical => None,
    };
    place.filter(|place| handle[place.clone()] != [0; 4])
}

/// Returns the id of the exporting process, if the driver fetches the descriptor from it.
pub(super) fn process_in(subject: Subject, driver_version: u32, handle: &Bytes) -> Option<u32> {
    let place = place_of_process(subject, driver_version, handle)?;
    Some(u32::from_ne_bytes(word(handle, place)))
}

/// Returns whether the driver might read a process id at a position where [`place_of_process`]
/// finds none. The driver would then fetch a descriptor from that process although nothing permits
/// it. No driver creates such a handle.
pub(super) fn has_hidden_process(subject: Subject, driver_version: u32, handle: &Bytes) -> bool {
    if place_of_process(subject, driver_version, handle).is_some() {
        return false;
    }
    let build = build(driver_version);
    let zeros = match subject {
        // Byte 16 is the kind of memory.
        Subject::Memory if build >= OPAQUE_MEMORY && handle[21] == 0 => 17..20,
        Subject::Memory if build >= OPAQUE_MEMORY => 16..20,
        Subject::Event if build > LAST_WITH_ZEROS => 20..24,
        Subject::Event if build >= OPAQUE_EVENTS => 48..52,
        _ => 0..0,
    };
    handle[zeros].iter().any(|byte| *byte != 0)
}

fn word(handle: &Bytes, place: Range<usize>) -> [u8; 4] {
    handle[place].try_into().expect("four bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V25_31: u32 = 0x0103_0000 + 34_666;
    const V26_09: u32 = 0x0103_0000 + 37_435;
    const V26_27: u32 = 0x0103_0000 + 39_122;
    const LATER: u32 = 0x0103_0000 + 39_500;

    fn handle(words: &[(usize, u32)]) -> Bytes {
        let mut bytes = [0; IPC_HANDLE_BYTES];
        for (place, word) in words {
            bytes[*place..place + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn descriptors_are_found_where_drivers_have_them() {
        let event = handle(&[(8, 7)]);
        assert_eq!(descriptor_in(Subject::Event, &event), 7);
        // For memory, bytes 8 to 12 hold the offset in a pool.
        assert_eq!(descriptor_in(Subject::Memory, &event), 0);
        let first = handle(&[(0, 5), (8, 7)]);
        assert_eq!(descriptor_in(Subject::Event, &first), 5);
        assert_eq!(descriptor_in(Subject::Memory, &first), 5);
    }

    #[test]
    fn processes_1_and_2_are_found_in_opaque_handles() {
        for pid in [1, 2] {
            // The descriptor, the offset in a pool, the process id, and the kinds of handle and
            // memory. Two other fields happen to hold the process id too.
            let memory = handle(&[(0, pid), (8, pid), (16, pid), (20, 2 << 8)]);
            for version in [V26_09, V26_27, LATER] {
                let found = process_in(Subject::Memory, version, &memory);
                assert_eq!(found, Some(pid));
                let place = place_of_process(Subject::Memory, version, &memory);
                assert_eq!(place, Some(16..20));
            }
            // Zeros, descriptor, counter, offset, partitions, flags, scopes, process id.
            let event = handle(&[(8, 5), (24, pid), (32, pid), (36, pid), (48, pid)]);
            let place = place_of_process(Subject::Event, V26_27, &event);
            assert_eq!(place, Some(48..52));
            // Descriptor, counter, offset, process id, partitions and flags.
            let event = handle(&[(0, 5), (16, pid), (20, pid), (24, pid)]);
            let place = place_of_process(Subject::Event, LATER, &event);
            assert_eq!(place, Some(20..24));
        }
    }

    #[test]
    fn a_process_where_another_layout_has_it_is_noticed() {
        let is_hidden = |subject, version, words: &[(usize, u32)]| {
            has_hidden_process(subject, version, &handle(words))
        };
        // The descriptor comes first, so these drivers' own position of the process id is not
        // checked.
        assert!(is_hidden(
            Subject::Event,
            V26_27,
            &[(0, 5), (8, 7), (48, 9)]
        ));
        assert!(!is_hidden(Subject::Event, V26_27, &[(0, 5), (8, 7)]));
        assert!(!is_hidden(Subject::Event, V26_27, &[(8, 7), (48, 9)]));
        assert!(!is_hidden(Subject::Event, V26_09, &[(0, 5), (48, 9)]));
        // Zeros come first, so the later position of the process id is not checked.
        assert!(is_hidden(Subject::Event, LATER, &[(8, 7), (20, 9)]));
        // The kind of handle is not a descriptor, or there is no kind of memory.
        for kind in [0, 1, 1 | 2 << 8] {
            let words = [(0, 5), (16, 999), (20, kind)];
            assert!(is_hidden(Subject::Memory, V26_27, &words));
            assert!(!is_hidden(Subject::Memory, V25_31, &words));
        }
        assert!(!is_hidden(Subject::Memory, V26_27, &[(0, 5), (16, 2)]));
        assert!(!is_hidden(
            Subject::Memory,
            V26_27,
            &[(0, 5), (16, 999), (20, 2 << 8)]
        ));
    }

    #[test]
    fn a_field_that_holds_1_or_2_is_no_process() {
        for pid in [1, 2] {
            // A legacy memory handle: the offset in a pool, and the kind of memory (2 on devices).
            let memory = handle(&[(0, 5), (8, pid), (16, pid)]);
            for version in [V25_31, V26_09, V26_27, LATER] {
                assert_eq!(process_in(Subject::Memory, version, &memory), None);
            }
            // An event handle before 26.14: host descriptor, counter, device index, partitions.
            let event = handle(&[(0, 5), (8, pid), (16, pid), (24, pid), (32, pid), (48, pid)]);
            assert_eq!(process_in(Subject::Event, V26_09, &event), None);
            // A handle of an event whose descriptor the driver does not fetch.
            let event = handle(&[(0, 5), (24, pid), (32, pid), (40, pid)]);
            assert_eq!(process_in(Subject::Event, V26_27, &event), None);
            let physical = handle(&[(16, pid), (20, 2 << 8), (48, pid)]);
            assert_eq!(process_in(Subject::Physical, V26_27, &physical), None);
            for (subject, handle) in [(Subject::Memory, memory), (Subject::Event, event)] {
                assert!(!has_hidden_process(subject, V26_27, &handle));
            }
        }
    }
}
