use super::super::super::message::{HeldPart, Hold};
use super::super::super::segment::{Drivers, HeldSegment};
use super::super::super::state::Record;
use super::super::Terms;
use super::*;
use crosshandle_handle::{BackendKind, DeviceUuid, Fields, MemoryHandle};
use crosshandle_ipc::broker::PeerPolicy;
use crosshandle_ipc::broker::protocol::BackendBlob;
use crosshandle_os::memfd;
use crosshandle_os::threads::disposer::PeerDescriptor;
use crosshandle_types::report::ObjectKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType, connect, recv, socket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// A holder on this thread, with one connected program of this process and one name.
pub(in super::super) struct Bench {
    pub(in super::super) server: Server,
    program: OwnedFd,
    directory: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Creates a record of `file`. `maker` is the process id of its exporter, and 0 stands for an
/// invisible one.
pub(in super::super) fn record(number: u32, file: OwnedFd, maker: u32) -> Record {
    let fields = Fields {
        backend: BackendKind::Host,
        read_only: number == 2,
        isolated: false,
        exporter: 7,
        pid: 1,
        context: 1,
        key: Key::from_bytes([number as u8; 16]),
        device: DeviceUuid::from_bytes([1; 16]),
        generation: 5,
        record: number,
        segment: 1,
        offset: 0,
        length: 4096,
        host: 1,
    };
    let memory = HeldSegment::received(PeerDescriptor::from(file), 4096, BackendBlob::NONE, false);
    Record {
        handle: MemoryHandle::new(&fields),
        device: "host".into(),
        kind: ObjectKind::Device,
        name: "test".into(),
        memory: Arc::new(memory),
        maker: super::super::super::identity::Maker::new(0, maker),
        names: std::collections::BTreeSet::new(),
    }
}

impl Bench {
    pub(in super::super) fn new(of: &str, file: &OwnedFd, maker: u32) -> Self {
        let own = std::process::id();
        let directory = std::env::temp_dir().join(format!("xh-{of}-{own}"));
        std::fs::create_dir(&directory).expect("a directory");
        let terms = Terms {
            policy: PeerPolicy::SameUser,
            successor: None,
            stop: None,
            log: Arc::new(|_, _| ()),
            drivers: Drivers::OF_TESTS,
        };
        let mut server = Server::begin(directory.clone(), None, terms).expect("a holder");
        let handles = [1, 2].map(|number| {
            let record = record(number, file.try_clone().expect("a copy"), maker);
            let handle = record.handle;
            server.holdings.add_record(record).expect("held");
            handle
        });
        let part = HeldPart::new("memory", "host", ObjectKind::Device, 4096, handles);
        let hold = Hold {
            name: "region".into(),
            parts: vec![part],
            request: 1,
            ..Hold::default()
        };
        let owner = Asker { uid: 0, pid: 0 };
        server.holdings.set_name(Name::new(hold, None, owner, 0));
        let program = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(directory.join("holder.sock")).expect("an address");
        connect(&program, &address).expect("connected");
        assert!(server.accept(&mut server.tally(Resource::Connections)));
        assert_eq!(server.connected.len(), 1);
        Self {
            server,
            program,
            directory,
        }
    }

    fn name(&self) -> &Name {
        &self.server.holdings.names()["region"]
    }

    fn number(&self) -> u64 {
        self.server.connected[0].number
    }

    fn claim(&mut self, request: u64) {
        let number = self.number();
        let refused = self.server.claim(number, "region", false, request, None);
        assert!(refused.is_none(), "{refused:?}");
    }

    /// Runs the next job, and the work that follows it.
    fn work(&mut self) {
        self.server.start_jobs();
        let late = Timespec::try_from(DEADLINE).expect("a time");
        let mut wake = [PollFd::new(self.server.jobs.wake(), PollFlags::IN)];
        assert_eq!(poll(&mut wake, Some(&late)), Ok(1), "the job is late");
        self.server.take_finished_jobs();
    }

    /// Returns the refusal that the program received.
    fn refusal(&self) -> String {
        let mut text = vec![0; 4096];
        let (len, _) = recv(&self.program, &mut text[..], RecvFlags::DONTWAIT).expect("an answer");
        let text = String::from_utf8_lossy(&text[..len]).into_owned();
        assert!(text.contains("has_writer"), "{text}");
        text
    }

    /// Repeats the claim until no other process of the machine ends during a scan.
    fn claim_in_peace(&mut self, request: u64) {
        let begin = Instant::now();
        while self.name().epoch == 0 {
            assert!(begin.elapsed() < DEADLINE, "not granted");
            self.claim(request);
            self.work();
            if self.name().is_being_claimed() {
                self.work();
            }
            if self.name().epoch == 0 {
                let refusal = self.refusal();
                assert!(refusal.contains("come and go"), "{refusal}");
            }
        }
        assert!(!self.name().is_being_claimed());
    }
}

fn sleeper(stdin: Stdio) -> Child {
    let mut command = Command::new("sleep");
    let process = command.arg("60").stdin(stdin).spawn().expect("a process");
    // A process that sends requests already runs its program, but this child may not have started
    // its own yet.
    let begin = Instant::now();
    while Status::of(process.id()).is_none_or(|status| status.image.is_none()) {
        assert!(begin.elapsed() < DEADLINE, "it does not begin to run");
        std::thread::yield_now();
    }
    process
}

fn end(mut process: Child) {
    process.kill().expect("it lives");
    process.wait().expect("our child");
}

#[test]
fn who_opens_between_the_look_and_the_grant_is_found() {
    let memory = memfd::create("test", 4096).expect("memory");
    let mut bench = Bench::new("between", &memory, std::process::id());
    let before = bench.name().parts[0].handle;
    let begin = Instant::now();
    while !bench.name().is_being_claimed() {
        assert!(begin.elapsed() < DEADLINE, "never proven");
        bench.claim(5);
        bench.work();
    }
    // After the first check, the holder gives out no handles, and earlier handles open nothing.
    assert_eq!(bench.name().epoch, 0);
    assert_ne!(bench.name().parts[0].handle, before);
    let number = bench.number();
    let refused = bench.server.open_to_write(number, "region", None);
    assert!(
        matches!(refused, Some(Reply::Refused { .. })),
        "{refused:?}"
    );
    // Another process has opened the memory in the meantime.
    let writer = sleeper(memory.try_clone().expect("a copy").into());
    bench.work();
    let refusal = bench.refusal();
    let expected = format!("process {}", writer.id());
    assert!(
        refusal.contains(&expected) || refusal.contains("come and go"),
        "{refusal}"
    );
    assert_eq!(
        (bench.name().epoch, bench.name().is_being_claimed()),
        (0, false)
    );
    assert_eq!(
        bench.name().parts[0].handle,
        before,
        "as if nobody had claimed it"
    );
    end(writer);
    bench.claim_in_peace(6);
    assert_eq!(bench.name().epoch, 1);
}

#[test]
fn a_claim_that_is_given_up_leaves_no_mark() {
    let memory = memfd::create("test", 4096).expect("memory");
    let mut bench = Bench::new("given-up", &memory, std::process::id());
    let begin = Instant::now();
    while !bench.name().is_being_claimed() {
        assert!(begin.elapsed() < DEADLINE, "never proven");
        bench.claim(5);
        bench.work();
    }
    bench.server.connected.clear();
    bench.server.start_jobs();
    assert!(!bench.name().is_being_claimed());
}

#[test]
fn who_was_given_a_drivers_memory_must_have_ended() {
    let memory: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    let mut bench = Bench::new("given", &memory, std::process::id());
    let writer = sleeper(Stdio::null());
    // The request appears to come from that process.
    let (number, own) = (bench.number(), bench.server.connected[0].asker);
    bench.server.connected[0].asker.pid = writer.id();
    for _ in 0..2 {
        let answer = bench.server.open_to_write(number, "region", None);
        assert!(answer.is_none(), "it is promised: {answer:?}");
    }
    assert_eq!(bench.name().earlier.len(), 1, "a process counts once");
    bench.server.connected[0].asker = own;
    bench.claim(5);
    bench.work();
    let refusal = bench.refusal();
    assert!(refusal.contains("has not ended"), "{refusal}");
    end(writer);
    bench.claim_in_peace(6);
    assert!(bench.name().earlier.is_empty());
}

#[test]
fn who_was_given_it_by_another_name_must_have_ended_too() {
    let memory: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    let mut bench = Bench::new("other", &memory, std::process::id());
    let other = Name {
        name: "other".into(),
        ..bench.name().clone()
    };
    bench.server.holdings.set_name(other);
    let writer = sleeper(Stdio::null());
    let (number, own) = (bench.number(), bench.server.connected[0].asker);
    bench.server.connected[0].asker.pid = writer.id();
    let answer = bench.server.open_to_write(number, "other", None);
    assert!(answer.is_none(), "it is promised: {answer:?}");
    bench.server.connected[0].asker = own;
    // A third name of the memory knows the writer at once. The first name learns of it when the
    // second one is removed.
    let mut third = Name {
        name: "third".into(),
        ..bench.name().clone()
    };
    bench.server.holdings.share_earlier(&mut third);
    assert_eq!(third.earlier.len(), 1);
    bench.server.spread_earlier("other");
    bench.server.holdings.remove_name("other");
    bench.claim(5);
    bench.work();
    let refusal = bench.refusal();
    assert!(refusal.contains("has not ended"), "{refusal}");
    end(writer);
    bench.claim_in_peace(6);
}

#[test]
fn a_maker_that_cannot_be_seen_is_not_proven_over() {
    let memory = memfd::create("test", 4096).expect("memory");
    let mut bench = Bench::new("unseen", &memory, 0);
    bench.claim(5);
    bench.work();
    let refusal = bench.refusal();
    assert!(
        refusal.contains("cannot see the process that made it"),
        "{refusal}"
    );
}
