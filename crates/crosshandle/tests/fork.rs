//! A child made by `fork` has copies of its parent's objects and must take nothing from the parent.

use crosshandle::{Command, Context, Device, Error};
use std::time::{Duration, Instant};

#[test]
fn what_a_forked_child_drops_stays_with_its_parent() {
    let device = Device::find("host").expect("there is always a host");
    let context = Context::new(&device).expect("a context");
    let memory = context.allocate(4096).expect("memory");
    let handle = memory.handle().expect("a handle");
    let event = context.create_event().expect("an event");
    let event_handle = event.handle().expect("a handle");
    let queue = context.create_queue().expect("a queue");
    let opener = Context::new(&device).expect("a second context");
    let opened = opener.open_memory(&handle).expect("opened");
    opened.write(0, b"before").expect("written");

    // SAFETY: the child runs only code of this crate that is made for it, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = queue.submit(Command::marker()).is_err()
            && queue.finish().is_err()
            && context.allocate(4096).is_err()
            && context.create_event().is_err()
            && opener.open_memory(&handle).is_err();
        drop((opened, memory, event, queue, context, opener));
        let refused = Context::new(&device);
        let as_expected = is_refused && matches!(refused, Err(Error::Unsupported(_)));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if as_expected { 0 } else { 1 }) };
    }
    assert_eq!(wait_for(child), 0, "the child's exit status");

    queue.finish().expect("the parent's queue");
    // Everything is as it was, and the parent's broker still answers.
    let mut bytes = [0; 6];
    let again = opener.open_memory(&handle).expect("not stale");
    again.read(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"before");
    opener.open_event(&event_handle).expect("not stale");
    drop((opened, again, memory, event));
    assert!(
        opener
            .open_memory(&handle)
            .is_err_and(|error| error.is_stale())
    );
}

/// The exit status of a child, which must end within ten seconds.
fn wait_for(child: libc::pid_t) -> libc::c_int {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable for the call.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::yield_now(),
            0 => {
                // SAFETY: our own child, not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the forked child hangs");
            }
            _ => return status,
        }
    }
}
