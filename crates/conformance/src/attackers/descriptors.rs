//! Attackers that send descriptors that are dangerous to receive, close or examine. They act as
//! importers, as exporters, or have no handle.

use super::messages::plausible;
use super::socket::MAX_DESCRIPTORS;
use super::{Report, Stop, Victim, fuse, socket};
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

/// Maximum time for which closing a socket with unsent data blocks. The attacker usually ends the
/// block earlier.
const LINGER: Duration = Duration::from_secs(600);
/// Time for which a descriptor blocks the process that closes it. Far longer than any regular
/// request takes.
pub(crate) const HOLD: Duration = Duration::from_secs(3);
/// Number of messages that precede the message with descriptors. They keep the victim busy until it
/// has the only copies of the descriptors.
const BUSY: usize = 30;
/// Devices whose drivers decide what happens on open and close. The list has no watchdog, because
/// closing a watchdog restarts the machine.
const DEVICES: [&str; 6] = [
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/dev/dri/renderD128",
    "/dev/ptmx",
    "/dev/full",
    "/dev/random",
];

/// Sends one dangerous descriptor after another, and many at once.
pub(super) fn nasty_descriptors(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    send_all(victim, stop, None)
}

/// Sends dangerous descriptors as an importer that has attached.
pub(super) fn nasty_importer(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    send_all(victim, stop, Some(victim.handle()?))
}

/// Repeatedly sends each kind of descriptor on its own connection. `handle`, if present, is used to
/// attach first.
fn send_all(victim: &Victim, stop: &Stop, handle: Option<Vec<u8>>) -> Result<Report, Failure> {
    let (mut random, mut report) = (Random(5), Report::default());
    // Some machines have no FUSE, or no permission to use it. There, only the other kinds are sent.
    let held = fuse::HeldFile::mount().ok();
    while !stop.is_stopped() {
        for make in &KINDS {
            let connected = match &handle {
                Some(handle) => socket::connect_to(&socket::path_of(victim, handle)),
                None => socket::connect(victim, &mut random),
            };
            let Ok(connection) = connected else {
                stop.pause(Duration::from_millis(5));
                continue;
            };
            if let Some(handle) = &handle {
                let attach = raw::Request::attach(handle).bytes();
                let _ = socket::send(&connection, &attach, &[]);
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

/// Dangerous descriptors of each kind, to be sent with replies.
pub(crate) struct NastyAnswers {
    held: Option<fuse::HeldFile>,
}

impl NastyAnswers {
    pub(crate) const MOST: usize = Self::KINDS.len();
    const KINDS: [(&'static str, Make); 6] = [
        ("a socket with unsent data", unsent_data),
        ("a file that is held", held_file),
        ("a FIFO", fifo),
        ("an epoll of the connection", epoll_of_the_connection),
        ("the connection itself", the_connection_itself),
        ("253 files", many),
    ];

    /// Prepares the descriptors. `program` is the program of the test suite.
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

    /// Creates descriptors of a kind, to be sent over a connection.
    pub(crate) fn make(&self, kind: &str, connection: &OwnedFd) -> Result<Nasty, Failure> {
        let make = Self::KINDS.iter().find(|(name, _)| *name == kind);
        let (_, make) = make.ok_or(Failure::new(kind))?;
        make(connection, self.held.as_ref())
    }
}

impl Drop for NastyAnswers {
    fn drop(&mut self) {
        // Closing this file blocks too.
        std::thread::spawn({
            let held = self.held.take();
            move || drop(held)
        });
    }
}

/// Descriptors to send. `release` contains the files that end the blocking when they are dropped.
#[derive(Default)]
pub(crate) struct Nasty {
    descriptors: Vec<OwnedFd>,
    release: Vec<OwnedFd>,
    /// Whether every close takes long, including those of this process.
    is_slow: bool,
}

impl Nasty {
    /// Ends the blocking after [`HOLD`].
    fn release_later(&mut self) {
        let release = std::mem::take(&mut self.release);
        std::thread::spawn(move || {
            std::thread::sleep(HOLD);
            drop(release);
        });
    }

    /// Closes this process's copies at once, so that the victim has the last copy of each
    /// descriptor.
    fn close(self) {
        match self.is_slow {
            true => drop(std::thread::spawn(move || drop(self))),
            false => drop(self),
        }
    }

    /// Sends `count` descriptors with a message, or all if `count` is `None`. Sends them again in a
    /// later message, and then closes this process's copies.
    pub(crate) fn answer(
        mut self,
        connection: &OwnedFd,
        message: &[u8],
        count: Option<usize>,
    ) -> rustix::io::Result<()> {
        self.release_later();
        let borrowed: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        // Sends as many descriptors as the reply should have, so that the victim examines them, or
        // all of them.
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

    /// Sends the descriptors with a request, and again in a later message that may remain unread.
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

/// Creates a TCP socket with unsent data. Closing it blocks until the data is sent.
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

/// Returns a file of a user-space file system that does not reply when the file is closed.
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

/// Creates a pipe in which nothing is written. Reading it blocks until the write end is closed.
fn fifo(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(Nasty {
        descriptors: vec![reader],
        release: vec![writer],
        is_slow: false,
    })
}

/// Creates an epoll instance, inside another one, that watches the connection over which it is
/// sent.
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

/// Returns a copy of `connection`, and sockets that are in flight inside each other.
/// Only the kernel's garbage collector can find these sockets.
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

/// Opens devices, whose drivers may do anything on close.
fn devices(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |path: &&str| rustix::fs::open(*path, flags, Mode::empty()).ok();
    Ok(Nasty {
        descriptors: DEVICES.iter().filter_map(open).collect(),
        ..Nasty::default()
    })
}

/// Creates as many descriptors as the kernel sends in one message.
fn many(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    let files = (0..MAX_DESCRIPTORS).map(|_| raw::memfd(4096, false));
    Ok(Nasty {
        descriptors: files.collect::<Result<_, _>>()?,
        ..Nasty::default()
    })
}

/// Creates an empty file of 8 EiB.
fn huge_file(_: &OwnedFd, _: Option<&fuse::HeldFile>) -> Result<Nasty, Failure> {
    Ok(raw::memfd(i64::MAX as u64, true)?.into())
}
