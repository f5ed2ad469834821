//! Successors of another release, and successors that cannot take something over.

use super::super::identity::Asker;
use super::super::message::{HeldPart, Hold};
use super::super::segment::Drivers;
use super::super::state::{Holdings, Name, RecordKey, key_of};
use super::super::{ServeOptions, serve, serve_as_successor};
use super::*;
use crosshandle::holder::{HoldOptions, Holder};
use crosshandle::{Context, ContextOptions, Device};
use crosshandle_handle::{BackendKind, DeviceUuid, Fields, Key, MemoryHandle};
use crosshandle_ipc::broker::PeerPolicy;
use crosshandle_os::memfd;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// A generous limit for every step.
const DEADLINE: Duration = Duration::from_secs(60);
const ROLE: &str = "CROSSHANDLE_TEST_ROLE";
const DIRECTORY: &str = "CROSSHANDLE_TEST_DIRECTORY";
const SUCCESSORS_VERSION: &str = "CROSSHANDLE_TEST_SUCCESSORS_VERSION";
const VERSION_OF_TEST: &str = "CROSSHANDLE_TEST_SUCCESSION";

/// A directory that is removed when it is dropped.
struct Sandbox(PathBuf);

impl Sandbox {
    fn new(of: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xh-{of}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn handle(exporter: u64, number: u32, key: u8, read_only: bool) -> MemoryHandle {
    MemoryHandle::new(&Fields {
        backend: BackendKind::Host,
        read_only,
        isolated: false,
        exporter,
        pid: 1,
        context: 1,
        key: Key::from_bytes([key; 16]),
        device: DeviceUuid::from_bytes([1; 16]),
        generation: 5,
        record: number,
        segment: number,
        offset: 0,
        length: 4096,
        host: 1,
    })
}

fn record_of(handle: MemoryHandle, maker: u32) -> Change {
    Change::Record {
        handle,
        device: "host".into(),
        kind: ObjectKind::Device,
        name: "test".into(),
        len: 4096,
        note: String::new(),
        maker: Maker::new(0, maker),
    }
}

fn name_of(name: &str, version: u64, writes: MemoryHandle, reads: MemoryHandle) -> Name {
    let part = HeldPart::new("memory", "host", ObjectKind::Device, 4096, [writes, reads]);
    let hold = Hold {
        name: name.into(),
        parts: vec![part],
        request: 1,
        ..Hold::default()
    };
    Name {
        version,
        ..Name::new(hold, None, Asker { uid: 0, pid: 0 }, 0)
    }
}

/// The holder's end of a connection to a successor that runs on another thread.
struct Told {
    stream: OwnedFd,
    serial: u64,
}

impl Told {
    /// Sends a change, and returns the confirmation.
    fn tell(&mut self, change: Change, files: &[BorrowedFd<'_>]) -> Confirmed {
        self.serial += 1;
        let serial = self.serial;
        let bytes = serde_json::to_vec(&Message { serial, change }).expect("plain data");
        self.send(&bytes, files)
    }

    fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Confirmed {
        socket::send(&self.stream, bytes, files).expect("sent");
        let mut buffer = [0; MAX_CONFIRMED_BYTES];
        let deadline = crosshandle_types::sync::Deadline::after(DEADLINE);
        let heard: Received<socket::Granted<crosshandle_os::threads::disposer::PeerDescriptor>> =
            socket::receive_until(&self.stream, &mut buffer, 0, deadline).expect("in time");
        let Received::Message(len, _) = heard else {
            panic!("the successor has ended");
        };
        serde_json::from_slice(&buffer[..len]).expect("a confirmation")
    }
}

#[test]
fn a_successor_drops_what_it_cannot_take_and_keeps_all_else() {
    let (ours, theirs) = socket::pair().expect("two sockets");
    let follower = std::thread::spawn(move || {
        follow(
            theirs.as_fd(),
            None,
            Holdings::new(PeerPolicy::SameUser),
            Drivers::OF_TESTS,
        )
    });
    let mut told = Told {
        stream: ours,
        serial: 0,
    };
    let own = std::process::id();
    let file = memfd::create("test", 4096).expect("memory");
    let begin = Change::Begin {
        directory: "/nowhere".into(),
        is_given: false,
        takeovers: 3,
        version: version(),
    };
    assert_eq!(told.tell(begin, &[]).version, version());
    let sockets = Change::Sockets {
        programs: None,
        importers: None,
    };
    told.tell(sockets, &[file.as_fd(), file.as_fd()]);
    told.tell(Change::Lock { file: None }, &[file.as_fd()]);
    let good = [handle(7, 1, 1, false), handle(7, 2, 2, true)];
    for handle in good {
        told.tell(record_of(handle, own), &[file.as_fd()]);
    }
    let taken = told.tell(
        Change::Name(name_of("good", 1, good[0], good[1]).into()),
        &[],
    );
    assert_eq!((taken.dropped, taken.drops), (0, None));
    // The bad cases are: records of another process under the same exporter, records without a
    // descriptor, and a new version with records that the successor refused.
    let other = std::os::unix::process::parent_id();
    let bad = [handle(7, 3, 3, false), handle(7, 4, 4, true)];
    for handle in bad {
        told.tell(record_of(handle, other), &[file.as_fd()]);
    }
    let drops = told.tell(Change::Name(name_of("bad", 1, bad[0], bad[1]).into()), &[]);
    let (name, why) = drops.drops.expect("it says so");
    assert_eq!((&*name, drops.dropped), ("bad", 1));
    assert!(why.contains("another process answers"), "{why}");
    let bare = [handle(8, 1, 5, false), handle(8, 2, 6, true)];
    for handle in bare {
        told.tell(record_of(handle, own), &[]);
    }
    let drops = told.tell(
        Change::Name(name_of("bare", 1, bare[0], bare[1]).into()),
        &[],
    );
    assert!(drops.drops.expect("it says so").1.contains("no descriptor"));
    // If the successor cannot take a new version of a name, it does not keep the previous version.
    let drops = told.tell(Change::Name(name_of("good", 2, bad[0], bad[1]).into()), &[]);
    assert_eq!(
        (drops.drops.expect("it says so").0, drops.dropped),
        ("good".into(), 3)
    );
    let taken = told.tell(
        Change::Name(name_of("good", 3, good[0], good[1]).into()),
        &[],
    );
    assert_eq!(taken.dropped, 2);
    assert_eq!(
        told.tell(
            Change::Forget {
                name: "bare".into()
            },
            &[]
        )
        .dropped,
        1
    );
    drop(told);
    let inherited = follower.join().expect("it did not panic");
    let inherited = inherited.expect("it goes on").expect("it was told enough");
    assert_eq!(inherited.dropped.keys().collect::<Vec<_>>(), ["bad"]);
    assert!(inherited.lost.is_none(), "the journal tells of it");
    let names: BTreeMap<&String, u64> = (inherited.holdings.names().iter())
        .map(|(name, it)| (name, it.version))
        .collect();
    assert_eq!(names, BTreeMap::from([(&"good".to_owned(), 3)]));
    let keys: Vec<RecordKey> = good.iter().map(key_of).collect();
    assert!(inherited.holdings.records().keys().eq(keys.iter()));
}

/// Runs this process as a holder or a successor, if it was started as one. Returns whether it was.
fn role(test: &str) -> bool {
    match std::env::var(ROLE).as_deref() {
        Ok("holder") => {
            let directory = std::env::var_os(DIRECTORY).expect("a directory");
            let successors = std::env::var(SUCCESSORS_VERSION).expect("a version");
            let program = std::env::current_exe().expect("this program");
            let arguments = [
                format!("{ROLE}=successor").into(),
                format!("{VERSION_OF_TEST}={successors}").into(),
                program.into_os_string(),
                test.into(),
                "--exact".into(),
                "--nocapture".into(),
            ];
            let options = ServeOptions::new()
                .socket_dir(directory)
                .successor("/usr/bin/env", arguments)
                .log(|_, line| eprintln!("{line}"));
            serve(options, Drivers::OF_TESTS, || ()).expect("it held");
        }
        Ok("successor") => {
            let options = ServeOptions::new().log(|_, line| eprintln!("{line}"));
            // A successor that refuses its holder tells the holder why.
            let _ = serve_as_successor(options, Drivers::OF_TESTS, || ());
        }
        _ => return false,
    }
    true
}

/// A holder of one version with successors of another one. Dropping it ends the holder.
struct Release {
    holder: Holder,
    child: Child,
    says: BufReader<std::process::ChildStderr>,
}

impl Release {
    fn start(test: &str, place: &Path, version: u32, successors: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([test, "--exact", "--nocapture"])
            .env(ROLE, "holder")
            .env(DIRECTORY, place)
            .env(VERSION_OF_TEST, version.to_string())
            .env(SUCCESSORS_VERSION, successors.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a holder");
        let says = BufReader::new(child.stderr.take().expect("piped"));
        let holder = Holder::new().socket_dir(place).timeout(DEADLINE);
        Self {
            holder,
            child,
            says,
        }
    }

    /// Waits for a log line of the holder or of a successor that contains `with`.
    fn await_line(&mut self, with: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.says.read_line(&mut line).expect("text");
            assert!(len > 0, "it ended before it said: {with}");
            if line.contains(with) {
                return line;
            }
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let _ = self.holder.stop();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_holder_takes_over_from_one_of_the_release_before() {
    const TEST: &str = "succession::tests::a_holder_takes_over_from_one_of_the_release_before";
    if role(TEST) {
        return;
    }
    let place = Sandbox::new("upgrade");
    let mut release = Release::start(TEST, &place.0, VERSION - 1, VERSION);
    release.await_line("holds in");
    let options = ContextOptions::new().pooling(false).socket_dir(&place.0);
    let context = Context::with_options(&Device::find("host").expect("a host"), options);
    let context = context.expect("a context");
    let memory = context.allocate(4096).expect("memory");
    memory.write(0, b"of the release before").expect("written");
    let done = release
        .holder
        .hand_over("name", &[("memory", &memory)], HoldOptions::new());
    assert!(done.expect("handed over").is_safe, "the newer one has it");
    let before = release.holder.status().expect("a holder");
    release.child.kill().expect("it lives");
    release.await_line("as successor number 1");
    let held = release.holder.open("name").expect("held");
    let handle = held.parts[0].read_only.expect("for reading");
    let opened = context.open_memory_read_only(&handle).expect("opened");
    let mut bytes = [0; 21];
    opened.read(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"of the release before");
    let after = release.holder.status().expect("a holder");
    assert_eq!(Some(after.pid), before.successor);
}

#[test]
fn releases_too_far_apart_say_so() {
    const TEST: &str = "succession::tests::releases_too_far_apart_say_so";
    if role(TEST) {
        return;
    }
    for (version, successors) in [(VERSION + 1, VERSION), (VERSION - 1, VERSION + 1)] {
        let place = Sandbox::new(&format!("apart-{version}"));
        let mut release = Release::start(TEST, &place.0, version, successors);
        let line = release.await_line("does not follow this holder");
        assert!(line.contains("upgrade one release at a time"), "{line}");
        let status = release.holder.status().expect("it holds alone");
        assert!(!status.is_safe && status.why_unsafe.is_some(), "{status:?}");
    }
}
