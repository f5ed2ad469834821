//! Commands that fail or panic must not damage their queue.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, alone};
use crosshandle::{Command, Error, Queue};
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An error whose text cannot be formatted.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("as asked: in Display");
    }
}

impl std::error::Error for Unspeakable {}

/// A value that panics when it is dropped.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("as asked: in Drop");
    }
}

/// Submits a command that must fail, on a queue that must survive it.
fn fails(directory: &Directory, queue: &Queue, command: Command) {
    let event = directory.context().create_event().expect("an event");
    queue.submit(command.signal(&event)).expect("submitted");
    let failed = event.wait_timeout(DEADLINE);
    assert!(matches!(failed, Err(Error::CommandFailed(_))), "{failed:?}");
    let next = Command::call(|| Ok::<_, Infallible>(())).signal(&event);
    queue.submit(next).expect("submitted");
    event.wait_timeout(DEADLINE).expect("the queue continues");
    queue.finish_timeout(DEADLINE).expect("an empty queue");
}

#[test]
fn an_error_that_panics_when_told_fails_its_command_alone() {
    let directory = Directory::new();
    let queue = directory.context().create_queue().expect("a queue");
    fails(&directory, &queue, Command::call(|| Err(Unspeakable)));
}

#[test]
fn a_panic_that_panics_when_dropped_fails_its_command_alone() {
    let directory = Directory::new();
    let queue = directory.context().create_queue().expect("a queue");
    let panics = || -> Result<(), Infallible> { std::panic::panic_any(Explosive) };
    fails(&directory, &queue, Command::call(panics));
}

#[test]
fn a_skipped_command_whose_drop_panics_fails_alone() {
    let directory = Directory::new();
    let context = directory.context();
    let other = context.create_queue().expect("a queue");
    let failed = context.create_event().expect("an event");
    let failing = Command::call(|| Err::<(), _>("no paper")).signal(&failed);
    other.submit(failing).expect("submitted");
    let queue = context.create_queue().expect("a queue");
    let captured = Explosive;
    let skipped = Command::call(move || {
        std::mem::forget(captured);
        Ok::<_, Infallible>(())
    });
    fails(&directory, &queue, skipped.after_value(&failed, 1));
}

#[test]
fn a_short_command_that_panics_when_it_is_dropped_is_done() {
    let directory = Directory::new();
    let context = directory.context();
    let queue = context.create_queue().expect("a queue");
    let memory = context.allocate(64).expect("memory");
    let event = context.create_event().expect("an event");
    for value in [1, 2] {
        let kept = memory.all().keeping(Arc::new(Explosive));
        let fill = Command::fill(kept, &[value]).expect("valid").signal(&event);
        // The command runs at once, and is dropped here.
        let submitted = catch_unwind(AssertUnwindSafe(|| queue.submit(fill)));
        submitted.expect_err("the panic is the caller's");
        event.wait_timeout(DEADLINE).expect("it is done");
        assert_eq!(event.submitted(), u64::from(value));
        let mut found = [0; 64];
        memory.read(0, &mut found).expect("read");
        assert_eq!(found, [value; 64]);
        queue.finish_timeout(DEADLINE).expect("the queue continues");
    }
}

#[test]
fn any_number_of_empty_rows_is_nothing_to_copy() {
    // This runs in a separate process, because copying the rows one by one would never end.
    alone("any_number_of_empty_rows_is_nothing_to_copy", |directory| {
        let context = directory.context();
        let memory = context.allocate(64).expect("memory");
        let queue = context.create_queue().expect("a queue");
        let all = || memory.all();
        let empty = Command::copy_2d(all(), 0, all(), 0, 0, usize::MAX).expect("valid");
        queue.submit(empty).expect("submitted");
        queue.finish_timeout(DEADLINE).expect("done");
    });
}

fn nap() -> Result<(), Infallible> {
    std::thread::sleep(Duration::from_millis(1));
    Ok(())
}

#[test]
fn finishing_waits_for_nothing_that_comes_later() {
    let directory = Directory::new();
    let queue = directory.context().create_queue().expect("a queue");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each command takes longer than the time until the next one arrives, so the queue is never
        // empty.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                queue.submit(Command::call(nap)).expect("submitted");
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        while queue.is_idle() {
            std::thread::yield_now();
        }
        let finished = queue.finish_timeout(DEADLINE);
        is_over.store(true, Ordering::Relaxed);
        finished.expect("what there was is done");
    });
}
