//! Strangers, importers and exporters that send descriptors which are dangerous to receive, to close,
//! or to look at.

use super::messages::plausible;
use super::socket::MAX_DESCRIPTORS;
use super::{Attacker, Report, Stop, Victim, fuse, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use crate::raw;
use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Time for which closing a socket with unsent data blocks, unless it is released before.
const LINGER: Duration = Duration::from_secs(600);
/// Time for which a descriptor blocks whoever closes it: far longer than any honest request takes.
pub(crate) const HOLD: Duration = Duration::from_secs(3);
/// Messages before the one with descriptors, which keep the victim busy until it is the only one that
/// has them.
const BUSY: usize = 30;
/// Devices whose drivers decide what opening and closing does. No watchdog: closing one restarts the
/// machine.
const DEVICES: [&str; 6] = [
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/dev/dri/renderD128",
    "/dev/ptmx",
    "/dev/full",
    "/dev/random",
];

/// Sends one nasty descriptor after another, and many at once.
pub(super) struct NastyDescriptors;

impl Attacker for NastyDescriptors {
    fn name(&self) -> &'static str {
        "nasty-descriptors"
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        send_all(victim, stop, None)
    }
}

/// The same, by an importer that was let in.
pub(super) struct NastyImporter;

impl Attacker for NastyImporter {
    fn name(&self) -> &'static str {
        "nasty-importer"
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let attach = raw::Request::attach(&victim.handle()?).bytes();
        send_all(victim, stop, Some(attach))
    }
}

/// Sends every kind on a connection of its own, again and again. `first`: a message to send before.
fn send_all(victim: &Victim, stop: &Stop, first: Option<Vec<u8>>) -> Result<Report, Failure> {
    let (mut random, mut report) = (Random(5), Report::default());
    // Some machines have no FUSE, or no rights for it: all else is sent there.
    let held = fuse::HeldFile::mount().ok();
    while !stop.is_stopped() {
        for make in &KINDS {
            let Ok(connection) = socket::connect(victim, &mut random) else {
                stop.pause(Duration::from_millis(5));
                continue;
            };
            if let Some(first) = &first {
                let _ = socket::send(&connection, first, &[]);
            }
            report.attempts += 1;
            let mut nasty = make(&connection, held.as_ref())?;
            let is_held = !nasty.release.is_empty() || nasty.is_slow;
            nasty.release_later();
            let sent = nasty.send_over(&connection, &mut random);
            nasty.close();
            report.landed += u64::from(sent.is_ok());
            stop.begun();
            if is_held {
                stop.pause(HOLD / 2);
            }
        }
    }
    Ok(report)
}

/// Descriptors of each kind to answer questions with.
pub(crate) struct NastyAnswers {
    held: Option<fuse::HeldFile>,
}

impl NastyAnswers {
    const KINDS: [(&'static str, Make); 6] = [
        ("a socket with unsent data", unsent_data),
        ("a file that is held", held_file),
        ("a FIFO", fifo),
        ("an epoll of the connection", epoll_of_the_connection),
        ("the connection itself", the_connection_itself),
        ("253 files", many),
    ];

    /// Prepares them. `program`: the program of the suite.
    pub(crate) fn new(program: &Path) -> Self {
        Self {
            held: fuse::HeldFile::mount_by(program).ok(),
        }
    }

    /// Returns the names of the kinds that this machine can make.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let names = Self::KINDS.into_iter().map(|(name, _)| name);
        let has_held = self.held.is_some();
        names.filter(move |name| has_held || *name != "a file that is held")
    }

    /// Makes some of a kind, to be sent over a connection.
    pub(crate) fn make(&self, kind: &str, connection: &OwnedFd) -> Result<Nasty, Failure> {
        let make = Self::KINDS.iter().find(|(name, _)| *name == kind);
        let (_, make) = make.ok_or(Failure::new(kind))?;
        make(connection, self.held.as_ref())
    }
}

impl Drop for NastyAnswers {
    fn drop(&mut self) {
        // Its closing is held up, too.
        std::thread::spawn({
            let held = self.held.take();
            move || drop(held)
        });
    }
}

/// Descriptors to send, and what ends their mischief when it is dropped.
#[derive(Default)]
pub(crate) struct Nasty {
    descriptors: Vec<OwnedFd>,
    release: Vec<OwnedFd>,
    /// Every close takes long, also this process's own.
    is_slow: bool,
}

impl Nasty {
    /// Ends the mischief after a while.
    fn release_later(&mut self) {
        let release = std::mem::take(&mut self.release);
        std::thread::spawn(move || {
            std::thread::sleep(HOLD);
            drop(release);
        });
    }

    /// Closes this process's copies: at once, so that the victim is the last to close what it was sent.
    fn close(self) {
        match self.is_slow {
            true => drop(std::thread::spawn(move || drop(self))),
            false => drop(self),
        }
    }

    /// Sends `count` of them with a message, all if it is `None`, and again behind it; then closes this
    /// process's copies.
    pub(crate) fn answer(
        mut self,
        connection: &OwnedFd,
        message: &[u8],
        count: Option<usize>,
    ) -> rustix::io::Result<()> {
        self.release_later();
        let borrowed: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        // As many as the answer should have, so that they are looked at, or else all of them.
        let first = match (count, borrowed.first()) {
            (Some(count), Some(first)) => vec![*first; count],
            _ => borrowed.clone(),
        };
        let sent = socket::send(connection, message, &first)
            .and_then(|()| socket::send(connection, message, &borrowed));
        drop((first, borrowed));
        self.close();
        sent
    }

    /// Sends them with a request, and again behind it with a message that may stay unread.
    fn send_over(&self, connection: &OwnedFd, random: &mut Random) -> rustix::io::Result<()> {
        let borrowed: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        let request = plausible(random);
        for _ in 0..BUSY {
            socket::send(connection, &request, &[])?;
        }
        socket::send(connection, &request, &borrowed)?;
        socket::send(connection, b"and once more", &borrowed)
    }
}

impl From<OwnedFd> for Nasty {
    fn from(descriptor: OwnedFd) -> Self {
        Self {
            descriptors: vec![descriptor],
            ..Self::default()
        }
    }
}

type Make = fn(&OwnedFd, Option<&fuse::HeldFile>) -> Result<Nasty, Failure>;

const KINDS: [Make; 8] = [
    unsent_data,
    held_file,
    fifo,
    epoll_of_the_connection,
    the_connection_itself,
    devices,
    many,
    huge_file,
];

/// A TCP socket with unsent data: closing it waits until the data is sent.
fn unsent_data(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    while net::send(&sender, &[0; 1 << 16], SendFlags::DONTWAIT).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(LINGER))?;
    Ok(Nasty {
        descriptors: vec![sender.into()],
        release: vec![receiver.into()],
        is_slow: false,
    })
}

/// A file of a file system in user space, which doesn't answer when the file is closed.
fn held_file(_: &OwnedFd, held: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    match held {
        Some(held) => Ok(Nasty {
            descriptors: vec![held.descriptor()?],
            release: Vec::new(),
            is_slow: true,
        }),
        None => Ok(Nasty::default()),
    }
}

/// A pipe that nobody writes: reading it waits for ever.
fn fifo(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(Nasty {
        descriptors: vec![reader],
        release: vec![writer],
        is_slow: false,
    })
}

/// An epoll that watches the connection it is sent over, inside of another one.
fn epoll_of_the_connection(
    connection: &OwnedFd,
    _: Option<&fuse::HeldFile>,
) -> Result<Nasty, Failure> {
    let make = || epoll::create(epoll::CreateFlags::CLOEXEC);
    let (inner, outer) = (make()?, make()?);
    let all = epoll::EventFlags::IN | epoll::EventFlags::OUT;
    epoll::add(&inner, connection, epoll::EventData::new_u64(0), all)?;
    epoll::add(&outer, &inner, epoll::EventData::new_u64(0), all)?;
    let mut nasty = Nasty::from(outer);
    nasty.descriptors.push(inner);
    Ok(nasty)
}

/// The connection it is sent over, and sockets in flight inside of each other: garbage that only the
/// kernel's collector finds.
fn the_connection_itself(
    connection: &OwnedFd,
    _: Option<&fuse::HeldFile>,
) -> Result<Nasty, Failure> {
    let flags = SocketFlags::CLOEXEC;
    let (one, two) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    socket::send(&one, b"itself", &[two.as_fd(), connection.as_fd()])?;
    socket::send(&two, b"itself", &[one.as_fd()])?;
    let mut nasty = Nasty::from(connection.try_clone()?);
    nasty.descriptors.extend([one, two]);
    Ok(nasty)
}

/// Devices, whose drivers may do anything when they are closed.
fn devices(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |path: &&str| rustix::fs::open(*path, flags, Mode::empty()).ok();
    Ok(Nasty {
        descriptors: DEVICES.iter().filter_map(open).collect(),
        ..Nasty::default()
    })
}

/// As many as the kernel lets go at once.
fn many(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let files = (0..MAX_DESCRIPTORS).map(|_| raw::memfd(4096, false));
    Ok(Nasty {
        descriptors: files.collect::<Result<_, _>>()?,
        ..Nasty::default()
    })
}

/// A file of 8 EiB with nothing in it.
fn huge_file(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    Ok(raw::memfd(i64::MAX as u64, true)?.into())
}
