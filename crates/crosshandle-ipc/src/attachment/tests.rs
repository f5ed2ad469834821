//! Tests of memory that is shared by a driver's handle: what its importer learns, and when.

use super::testing::{DEADLINE, Exporting, HandleOnly};
use super::*;
use crate::broker::{FetchedHandle, FetchedPieces};
use crosshandle_handle::{Fields, Key};
use crosshandle_types::Access;
use std::time::Instant;

/// Opens memory. Returns the handles from the catalog before the exporter's reply, and the reply.
fn fetch(
    attachment: &Arc<Attachment>,
    fields: &Fields,
    access: Access,
) -> (Vec<FetchedHandle>, Result<FetchedHandle>) {
    let mut ahead = Vec::new();
    let take = |_: FetchedPieces| -> Result<()> { panic!("it does not consist of pieces") };
    let deadline = OpenDeadline::after(DEADLINE);
    let note = || ahead.extend(attachment.driver_handle(fields).map(|ahead| ahead.found));
    let delivery = attachment.fetch_segment(fields, access, &deadline, note, take);
    let answer = delivery.map(|delivery| match delivery {
        Some(Delivery::DriverHandle(found)) => found,
        _ => panic!("it has no descriptor"),
    });
    (ahead, answer)
}

fn found(number: u8) -> FetchedHandle {
    HandleOnly(number).found()
}

#[test]
fn a_drivers_handle_is_there_before_the_answer_that_says_that_it_may_be_used() {
    let exporting = Exporting::new("ahead");
    let first = exporting.share(1, Access::ReadWrite);
    let read_only = exporting.share(2, Access::ReadOnly);
    let attachment = exporting.attach(&first);
    for (fields, access, number) in [
        (&first, Access::ReadWrite, 1),
        (&first, Access::ReadOnly, 1),
        (&read_only, Access::ReadOnly, 2),
    ] {
        let (ahead, answer) = fetch(&attachment, fields, access);
        assert_eq!(ahead, [found(number)]);
        assert_eq!(answer.unwrap(), found(number));
    }
    // The exporter's reply decides.
    let (_, answer) = fetch(&attachment, &read_only, Access::ReadWrite);
    assert!(matches!(answer, Err(Error::ReadOnly)), "{answer:?}");
    // Only descriptors can be held.
    let deadline = OpenDeadline::after(DEADLINE);
    let held = attachment.fetch(&first, Access::ReadWrite, &deadline);
    assert!(matches!(held.map(drop), Err(Error::Unsupported(_))));
}

#[test]
fn many_are_handed_on_ahead_each_before_its_answer() {
    let exporting = Exporting::new("many");
    let all: Vec<_> = (0..100)
        .map(|number| exporting.share(number, Access::ReadWrite))
        .collect();
    let attachment = exporting.attach(&all[0]);
    let deadline = OpenDeadline::after(DEADLINE);
    let ahead: RefCell<Vec<_>> = RefCell::default();
    let mut answers = Vec::new();
    let note = |fields: &Fields| {
        let found = attachment.driver_handle(fields).map(|ahead| ahead.found);
        ahead.borrow_mut().extend(found);
    };
    let take = |_: &Fields, delivery: Option<Delivery>| {
        let Some(Delivery::DriverHandle(found)) = delivery else {
            panic!("it has no descriptor");
        };
        answers.push(found);
        assert_eq!(*ahead.borrow(), answers);
        Ok(())
    };
    let access = Access::ReadWrite;
    attachment
        .fetch_each(&all, access, &deadline, note, take)
        .unwrap();
    assert_eq!(answers, Vec::from_iter((0..100).map(found)));
}

#[test]
fn without_its_key_a_drivers_handle_is_neither_read_nor_given() {
    let exporting = Exporting::new("key");
    let own = exporting.share(1, Access::ReadWrite);
    let mut other = exporting.share(2, Access::ReadWrite);
    let attachment = exporting.attach(&own);
    other.key = own.key;
    let (ahead, answer) = fetch(&attachment, &other, Access::ReadWrite);
    assert!(matches!(answer, Err(Error::WrongKey)), "{answer:?}");
    assert_eq!(ahead, []);
    other.key = Key::from_bytes([9; 16]);
    assert_eq!(fetch(&attachment, &other, Access::ReadWrite).0, []);
    // The catalog does not contain the handle in unencrypted form.
    let sealed = attachment.catalog.sealed_handle(other.record).unwrap();
    assert!(!sealed.windows(4).any(|bytes| bytes == [2; 4]));
}

#[test]
fn the_handles_of_freed_memory_can_be_read_no_more() {
    let exporting = Exporting::new("freed");
    let (freed, kept) = (
        exporting.share(1, Access::ReadWrite),
        exporting.share(2, Access::ReadWrite),
    );
    let attachment = exporting.attach(&kept);
    let is_cleared = |fields: &Fields| {
        let sealed = attachment.catalog.sealed_handle(fields.record).unwrap();
        sealed.iter().all(|byte| *byte == 0)
    };
    assert!(!is_cleared(&freed) && !is_cleared(&kept));
    let record = Credential::of(&freed).record;
    exporting.exporter.retire(record, true, None);
    let (ahead, answer) = fetch(&attachment, &freed, Access::ReadWrite);
    assert_eq!(ahead, []);
    assert!(matches!(answer, Err(Error::Stale)), "{answer:?}");
    assert!(is_cleared(&freed) && !is_cleared(&kept));
    // The catalog outlives its context, which ends in the background if it has just replied.
    drop(exporting);
    let end = Instant::now() + DEADLINE;
    while !is_cleared(&kept) {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}

#[test]
fn memory_whose_handle_is_known_is_open_until_that_is_dropped() {
    let exporting = Exporting::new("counted");
    let fields = exporting.share(1, Access::ReadWrite);
    let attachment = exporting.attach(&fields);
    let is_open = || Exporting::is_open(&attachment, &fields);
    assert!(!is_open());
    let ahead = attachment.driver_handle(&fields).expect("sealed");
    assert!(is_open());
    drop(ahead);
    assert!(!is_open());
    // A rejected open is not counted either.
    let mut stale = fields;
    stale.generation += 4;
    assert!(attachment.driver_handle(&stale).is_none());
    assert!(!is_open());
}

#[test]
fn a_holders_memory_is_not_in_its_makers_catalog() {
    let exporting = Exporting::new("handed");
    let (moved, kept) = (
        exporting.share(1, Access::ReadWrite),
        exporting.share(2, Access::ReadWrite),
    );
    let attachment = exporting.attach(&moved);
    let record = Credential::of(&moved).record;
    assert!(exporting.exporter.hand_over(record).is_some());
    assert!(attachment.driver_handle(&moved).is_none());
    assert!(attachment.driver_handle(&kept).is_some());
    exporting.exporter.retire(record, true, None);
    let sealed = attachment.catalog.sealed_handle(moved.record).unwrap();
    assert!(sealed.iter().all(|byte| *byte == 0));
}
