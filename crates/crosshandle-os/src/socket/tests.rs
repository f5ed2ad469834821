//! Tests of sockets and their messages.

use super::*;
use crate::memfd;
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::cell::Cell;
use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

const DEADLINE: Duration = Duration::from_secs(20);

fn deadline() -> Deadline {
    Deadline::after(DEADLINE)
}

/// Returns a path in a new directory.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("xh-socket-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir(&directory).expect("a directory");
    directory.join("socket")
}

fn remove(path: &Path) {
    fs::remove_dir_all(path.parent().expect("a directory")).expect("removed");
}

fn files<const N: usize>() -> [OwnedFd; N] {
    [(); N].map(|()| memfd::create("test", 4096).expect("memory"))
}

fn send_files<const N: usize>(stream: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    let files = files::<N>();
    let files = files.each_ref().map(AsFd::as_fd);
    // The buffer holds more descriptors than `send` allows, as a stranger may send them.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = [IoSlice::new(message)];
    net::sendmsg(stream, &parts, &mut control, flags).map(drop)
}

fn receive_files(stream: &OwnedFd) -> Result<Received<Granted<OwnedFd>>, Errno> {
    receive_until(stream, &mut [0; 4], FEW_DESCRIPTORS, deadline())
}

#[test]
fn connections_have_their_listeners_guard() {
    let path = path();
    let (listener, guard) = listen(&path).expect("a listener");
    // One message comes before the connection is accepted, and one after.
    let early = connect(&path, deadline()).expect("connected");
    let sent_early = send_files::<1>(&early, b"1");
    let accepted = accept(&listener).expect("a connection");
    let sent_late = send_files::<1>(&early, b"2");
    match guard {
        Guard::Kernel => {
            assert_eq!(
                (sent_early, sent_late),
                (Err(Errno::PERM), Err(Errno::PERM))
            );
            send(&early, b"3", &[]).expect("sent");
            let received = receive(&accepted, &mut [0; 4], guard);
            assert!(matches!(received, Ok(Received::Message(1, ()))));
        }
        Guard::Look => {
            assert_eq!((sent_early, sent_late), (Ok(()), Ok(())));
            let received = receive(&accepted, &mut [0; 4], guard);
            assert!(matches!(received, Ok(Received::Unwanted)));
        }
    }
    remove(&path);
}

#[test]
fn without_the_kernels_help_descriptors_are_seen_and_left_where_they_are() {
    let (ours, theirs) = pair().expect("two sockets");
    let mut buffer = [0; 4];
    let empty = receive(&ours, &mut buffer, Guard::Look);
    assert!(matches!(empty, Err(Errno::AGAIN)));
    send(&theirs, b"good", &[]).expect("sent");
    // Apart from its descriptors, this message looks like the end of the connection.
    send_files::<8>(&theirs, b"").expect("sent");
    let good = receive(&ours, &mut buffer, Guard::Look);
    assert!(matches!(good, Ok(Received::Message(4, ()))));
    assert_eq!(&buffer, b"good");
    for _ in 0..2 {
        let bad = receive(&ours, &mut buffer, Guard::Look);
        assert!(matches!(bad, Ok(Received::Unwanted)));
    }
    assert!(!end(&ours), "it is in the queue still");
}

#[test]
fn what_is_pending_is_told_and_left_where_it_is() {
    let (ours, theirs) = pair().expect("two sockets");
    assert_eq!(pending(&ours), Pending::Nothing);
    send(&theirs, b"here", &[]).expect("sent");
    drop(theirs);
    assert_eq!(pending(&ours), Pending::Message);
    let message = receive(&ours, &mut [0; 4], Guard::Look);
    assert!(matches!(message, Ok(Received::Message(4, ()))));
    assert_eq!(pending(&ours), Pending::HangUp);
    let (ours, theirs) = pair().expect("two sockets");
    // Apart from its descriptor, this message looks like the end of the connection.
    send_files::<1>(&theirs, b"").expect("sent");
    assert_eq!(pending(&ours), Pending::Message);
    assert!(!end(&ours), "it is in the queue still");
}

#[test]
fn hang_ups_and_long_messages_are_told() {
    for guard in [Guard::Kernel, Guard::Look] {
        let (ours, theirs) = pair().expect("two sockets");
        send(&theirs, b"too long", &[]).expect("sent");
        let long = receive(&ours, &mut [0; 4], guard);
        assert!(matches!(long, Err(Errno::MSGSIZE)));
        drop(theirs);
        let end = receive(&ours, &mut [0; 4], guard);
        assert!(matches!(end, Ok(Received::HungUp)));
    }
    let (ours, theirs) = pair().expect("two sockets");
    send(&theirs, b"too long", &[]).expect("sent");
    assert!(matches!(receive_files(&ours), Err(Errno::MSGSIZE)));
    drop_message(&ours).expect("it was there");
    drop(theirs);
    assert!(matches!(receive_files(&ours), Ok(Received::HungUp)));
}

#[test]
fn descriptors_come_with_their_message_and_no_more_than_expected() {
    let (ours, theirs) = pair().expect("two sockets");
    send(&theirs, b"none", &[]).expect("sent");
    send_files::<1>(&theirs, b"one").expect("sent");
    send_files::<2>(&theirs, b"two").expect("sent");
    send_files::<3>(&theirs, b"more").expect("sent");
    for (len, count) in [(4, 0), (3, 1), (3, 2)] {
        let received = receive_files(&ours);
        let Ok(Received::Message(got, files)) = received else {
            panic!("{received:?}");
        };
        assert_eq!((got, files.len()), (len, count));
        assert!(files.iter().all(memfd::is_memory));
    }
    assert!(matches!(receive_files(&ours), Ok(Received::Unwanted)));
    assert!(!end(&ours), "it is in the queue still");
}

#[test]
fn many_descriptors_come_to_who_expects_them() {
    let (ours, theirs) = pair().expect("two sockets");
    for (most, sent, is_wanted) in [(64, 64, true), (7, 7, true), (7, 8, false), (63, 64, false)] {
        let files: Vec<_> = (0..sent).map(|_| files::<1>()).collect();
        let files: Vec<_> = files.iter().map(|[file]| file.as_fd()).collect();
        assert_eq!(has_unread(&theirs), Ok(false));
        send(&theirs, b"many", &files).expect("sent");
        assert_eq!(has_unread(&theirs), Ok(true));
        let received = receive_until::<OwnedFd>(&ours, &mut [0; 4], most, deadline());
        match received {
            Ok(Received::Message(4, files)) if is_wanted => {
                assert_eq!(files.len(), sent);
                assert!(files.iter().all(memfd::is_memory));
            }
            Ok(Received::Unwanted) if !is_wanted => drop_message(&ours).expect("it was there"),
            other => panic!("{sent} of {most}: {other:?}"),
        }
    }
}

#[test]
fn what_arrives_is_of_the_callers_type_also_when_it_is_refused() {
    thread_local! {
        static DROPPED: Cell<u32> = const { Cell::new(0) };
    }
    struct Counted(OwnedFd);
    impl From<OwnedFd> for Counted {
        fn from(file: OwnedFd) -> Self {
            Self(file)
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            assert!(memfd::is_memory(&self.0));
            DROPPED.set(DROPPED.get() + 1);
        }
    }
    let (ours, theirs) = pair().expect("two sockets");
    send_files::<3>(&theirs, b"more").expect("sent");
    let received = receive_until::<Counted>(&ours, &mut [0; 4], FEW_DESCRIPTORS, deadline());
    assert!(matches!(received, Ok(Received::Unwanted)));
    assert_eq!(DROPPED.get(), 2);
}

#[test]
fn an_end_leaves_an_empty_queue_or_says_that_it_is_none() {
    for has_hung_up in [false, true] {
        let (ours, theirs) = pair().expect("two sockets");
        let theirs = (!has_hung_up).then_some(theirs);
        assert!(end(&ours), "nothing was ever sent");
        if let Some(theirs) = theirs {
            assert_eq!(send(&theirs, b"late", &[]), Err(Errno::PIPE));
        }
        assert!(end(&ours), "and nothing comes");
    }
    for has_hung_up in [false, true] {
        let (ours, theirs) = pair().expect("two sockets");
        send(&ours, b"never read", &[]).expect("sent");
        send(&theirs, b"", &[]).expect("sent");
        let _theirs = (!has_hung_up).then_some(theirs);
        assert!(!end(&ours), "an empty message is one");
        drop_message(&ours).expect("it was there");
        assert!(end(&ours));
    }
}

#[test]
fn one_deadline_holds_for_all_that_is_waited_for() {
    let (ours, theirs) = pair().expect("two sockets");
    let talking = thread::spawn(move || {
        // This peer always sends something in time, but never the awaited message.
        while send(&theirs, b"no", &[]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    let deadline = Deadline::at(began + Duration::from_millis(200));
    let end = loop {
        match receive_until::<OwnedFd>(&ours, &mut [0; 4], FEW_DESCRIPTORS, deadline) {
            Ok(Received::Message(2, _)) => {}
            end => break end,
        }
        assert!(began.elapsed() < DEADLINE, "the peer never ends");
    };
    assert!(matches!(end, Err(Errno::TIMEDOUT)));
    assert!(began.elapsed() >= Duration::from_millis(200));
    drop(ours);
    talking.join().expect("the peer");
}

#[test]
fn connecting_has_one_deadline() {
    let path = path();
    let (listener, _) = listen(&path).expect("a listener");
    let mut queued = Vec::new();
    let late = loop {
        let began = Instant::now();
        match connect(&path, Deadline::at(began + Duration::from_millis(100))) {
            Ok(stream) => queued.push(stream),
            late => break late,
        }
        assert!(queued.len() < 1 << 12, "the queue has an end");
    };
    assert_eq!(late.err(), Some(Errno::TIMEDOUT));
    drop(listener);
    let refused = connect(&path, deadline());
    assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
    remove(&path);
}
