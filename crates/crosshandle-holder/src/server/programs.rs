//! The connected programs. Each has one request at a time, in one of several stages.

use super::super::identity::Asker;
use super::super::message::{self, MAX_MESSAGE_BYTES, PROTOCOL, Reply, Request, refused};
use super::super::succession::Successor;
use super::Server;
use super::quota::{Resource, Share, Tally, none_left};
use crosshandle_os::socket::{self, Received};
use crosshandle_os::threads::disposer::PeerStream;
use crosshandle_types::error::HolderFault;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Maximum number of connections that the holder accepts before it answers requests. It exceeds the
/// length of the socket's queue, so that a new connection behind a flood waits for only one round
/// of replies.
const MAX_ACCEPTED_AT_ONCE: usize = 256;

/// Time that a program has to send a request after it connected. After that the holder closes the
/// connection.
const REQUEST_TIME: Duration = Duration::from_secs(2);

/// Maximum time that a reply waits until the successor has the change. After that time the reply to
/// a hand-over says that only the holder has the memory.
const SUCCESSOR_TIME: Duration = Duration::from_secs(3);

/// A connected program.
pub(super) struct Program {
    pub(super) stream: PeerStream,
    pub(super) number: u64,
    pub(super) asker: Asker,
    /// The protocol version of its latest request.
    pub(super) protocol: u32,
    pub(super) stage: Stage,
    /// Whether the program is in the queue.
    pub(super) is_queued: bool,
}

/// The stage of a program's request.
pub(super) enum Stage {
    /// The program has no request. Its connection is closed at this time.
    Silent(Instant),
    /// A job for the request runs or is queued.
    Working,
    /// The reply is sent once the successor has the change `serial`, or at the time `late`.
    Promised {
        answer: Reply,
        serial: u64,
        late: Instant,
    },
    /// The program waits for a later version or epoch of a name.
    Waiting(Wait),
}

/// The condition that a program waits for.
#[derive(Clone)]
pub(super) struct Wait {
    pub(super) name: String,
    pub(super) version: u64,
    /// The epoch that must be exceeded. If it is set, the version does not matter.
    pub(super) epoch: Option<u64>,
    pub(super) token: Option<String>,
}

impl Program {
    /// Returns the time at which the program needs attention even if no message arrives.
    pub(super) fn late(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Silent(late) | Stage::Promised { late, .. } => Some(*late),
            Stage::Working | Stage::Waiting(_) => None,
        }
    }

    /// Returns whether the program uses some of a resource.
    pub(super) fn takes(&self, resource: Resource) -> bool {
        match resource {
            Resource::Connections => true,
            Resource::Waits => matches!(self.stage, Stage::Waiting(_)),
            Resource::QueuedJobs => matches!(self.stage, Stage::Working),
            _ => false,
        }
    }

    /// Returns how much would be lost if the program had to repeat its request. A lower value means
    /// less.
    fn progress(&self) -> u8 {
        match self.stage {
            Stage::Silent(_) => 0,
            Stage::Waiting(_) => 1,
            Stage::Working => 2,
            Stage::Promised { .. } => 3,
        }
    }
}

impl Server {
    /// Accepts the pending connections.
    pub(super) fn accept_all(&mut self) {
        // The uses are counted only once, since a flood brings many connections at a time.
        let mut tally = self.tally(Resource::Connections);
        for _ in 0..MAX_ACCEPTED_AT_ONCE {
            if !self.accept(&mut tally) {
                return;
            }
        }
    }

    /// Counts the use of a resource by each process.
    pub(super) fn tally(&self, resource: Resource) -> Tally {
        let taking = (self.connected.iter()).filter(|program| program.takes(resource));
        Tally::from_iter(taking.map(|program| program.asker))
    }

    /// Accepts the next connection. `tally` counts all connections. Returns whether there was one.
    pub(super) fn accept(&mut self, tally: &mut Tally) -> bool {
        let stream = match socket::accept(&self.programs) {
            Ok(stream) => stream,
            Err(Errno::MFILE | Errno::NFILE) => {
                // Programs that wait for a version can repeat their requests.
                self.connected
                    .retain(|program| !matches!(program.stage, Stage::Waiting(_)));
                *tally = self.tally(Resource::Connections);
                return false;
            }
            Err(_) => return false,
        };
        let peer = socket::peer(&stream).ok();
        let asker = peer.map(|peer| Asker {
            uid: peer.uid,
            pid: peer.pid,
        });
        let asker = asker.filter(|asker| self.terms.policy.admits(asker.uid));
        let stream = PeerStream::new(stream, self.guard, ());
        let Some(asker) = asker else {
            let why = "this user is not admitted; start the holder with a wider policy";
            send(&stream, &refused(HolderFault::NotAllowed, why));
            return true;
        };
        if !self.makes_room(Resource::Connections, asker, tally) {
            send(&stream, &none_left(Resource::Connections));
            return true;
        }
        tally.add(asker, 1);
        self.next_number += 1;
        self.connected.push(Program {
            stream,
            number: self.next_number,
            asker,
            protocol: PROTOCOL,
            stage: Stage::Silent(Instant::now() + REQUEST_TIME),
            is_queued: false,
        });
        true
    }

    /// Returns whether a process may use one more unit of a resource. If the resource is exhausted,
    /// the process with the largest share gives one up. Users are compared first.
    pub(super) fn has_room(&mut self, resource: Resource, asker: Asker) -> bool {
        let mut tally = self.tally(resource);
        self.makes_room(resource, asker, &mut tally)
    }

    /// Like [`has_room`](Self::has_room), with a known `tally`. Subtracts the units that programs
    /// give up from it.
    fn makes_room(&mut self, resource: Resource, asker: Asker, tally: &mut Tally) -> bool {
        let limit = self.quota.limit(resource);
        match tally.admits(limit, asker, 1, self.quota.has_users) {
            Ok(()) => return true,
            Err(Share::Process) => {}
            Err(_) => {
                if let Some(fullest) = tally.gives_way_to(asker) {
                    let is_it = |program: &Program| program.asker == fullest;
                    return self.put_off(resource, tally, is_it);
                }
            }
        }
        // A connection without a request keeps its place only as long as no other one needs it.
        resource == Resource::Connections
            && self.put_off(resource, tally, |program| {
                program.asker.uid == asker.uid && matches!(program.stage, Stage::Silent(_))
            })
    }

    /// Makes one of the matching programs give up its unit of a resource. Returns whether a program
    /// matched.
    fn put_off(
        &mut self,
        resource: Resource,
        tally: &mut Tally,
        is_it: impl Fn(&Program) -> bool,
    ) -> bool {
        let programs = self.connected.iter().enumerate();
        let found = programs
            .filter(|(_, program)| program.takes(resource) && is_it(program))
            .filter(|(_, program)| {
                resource != Resource::QueuedJobs || self.jobs.is_queued(program.number)
            })
            .min_by_key(|(_, program)| (program.progress(), program.number));
        let Some((index, program)) = found else {
            return false;
        };
        let number = program.number;
        tally.take(program.asker, 1);
        if !matches!(program.stage, Stage::Silent(_)) {
            self.reply(number, &none_left(resource));
        }
        if resource == Resource::Connections && index < self.connected.len() {
            self.connected.retain(|program| program.number != number);
        }
        true
    }

    pub(super) fn hang_up_late(&mut self) {
        let now = Instant::now();
        self.connected
            .retain(|program| !matches!(&program.stage, Stage::Silent(late) if *late <= now));
    }

    pub(super) fn position(&self, number: u64) -> Option<usize> {
        self.connected
            .iter()
            .position(|program| program.number == number)
    }

    /// Takes the next program out of the queue, and returns its position. Skips programs that have
    /// been disconnected.
    pub(super) fn next_turn(&mut self) -> Option<usize> {
        while let Some(number) = self.queue.pop() {
            if let Some(index) = self.position(number) {
                self.connected[index].is_queued = false;
                return Some(index);
            }
        }
        None
    }

    /// Reads a program's request or notices its hang-up. Returns whether the program wants the
    /// holder to end.
    pub(super) fn attend(&mut self, index: usize) -> bool {
        let program = &self.connected[index];
        let number = program.number;
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let len = match socket::receive(&program.stream, &mut buffer, self.guard) {
            Ok(Received::Message(len, ())) => len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => return false,
            _ => {
                self.connected.swap_remove(index);
                return false;
            }
        };
        // A program that sends a second request before its reply is disconnected.
        if !matches!(program.stage, Stage::Silent(_)) {
            self.connected.swap_remove(index);
            return false;
        }
        let reply = match message::parse(&buffer[..len]) {
            Ok(envelope) => {
                self.connected[index].protocol = envelope.protocol;
                let is_stop = matches!(envelope.request, Request::Stop);
                match self.answer(number, envelope) {
                    Some(reply) if is_stop => {
                        if matches!(reply, Reply::Done) {
                            // The holder ends first, since the program that has the reply may kill
                            // this process.
                            self.end();
                        }
                        if let Some(index) = self.position(number) {
                            send(&self.connected[index].stream, &reply);
                        }
                        return matches!(reply, Reply::Done);
                    }
                    reply => reply,
                }
            }
            Err(refusal) => Some(refusal),
        };
        if let Some(reply) = reply {
            self.reply(number, &reply);
        }
        false
    }

    /// Sends a program its reply.
    pub(super) fn reply(&mut self, number: u64, answer: &Reply) {
        let Some(index) = self.position(number) else {
            return;
        };
        let program = &mut self.connected[index];
        program.stage = Stage::Silent(Instant::now() + REQUEST_TIME);
        let answer = answer.clone().in_version(program.protocol);
        if !send(&program.stream, &answer) {
            self.connected.swap_remove(index);
        }
    }

    /// Schedules a reply for when the successor has all changes so far.
    pub(super) fn promise(&mut self, number: u64, answer: Reply) {
        let serial = self.successor.as_ref().map_or(0, Successor::changed);
        if let Some(index) = self.position(number) {
            self.connected[index].stage = Stage::Promised {
                answer,
                serial,
                late: Instant::now() + SUCCESSOR_TIME,
            };
        }
        self.attend_successor();
    }

    /// Sends the scheduled replies that are due.
    pub(super) fn keep_promises(&mut self) {
        let now = Instant::now();
        let is_alone = self.terms.successor.is_none();
        // Without the journal, the memory would not come back after both processes died at the same
        // time.
        let is_noted = self.journal.failure().is_none();
        let mut due = Vec::new();
        for program in &mut self.connected {
            let Stage::Promised { serial, late, .. } = &program.stage else {
                continue;
            };
            // A successor that was started later received the change with its initial messages.
            let is_kept = self
                .successor
                .as_ref()
                .is_some_and(|it| it.has(*serial.min(&it.changed())));
            if !(is_kept || is_alone || *late <= now) {
                continue;
            }
            let silent = Stage::Silent(now + REQUEST_TIME);
            let Stage::Promised { answer, .. } = std::mem::replace(&mut program.stage, silent)
            else {
                continue;
            };
            let answer = match answer {
                Reply::HandedOver { version, .. } => Reply::HandedOver {
                    version,
                    is_safe: is_kept && is_noted,
                },
                // Without a confirmation, a successor that takes over could admit another writer.
                Reply::Claimed(_) if !is_kept && !is_alone => refused(
                    HolderFault::HasWriter,
                    "no successor has confirmed the claim yet; ask again",
                ),
                answer => answer,
            };
            due.push((program.number, answer));
        }
        for (number, answer) in due {
            self.reply(number, &answer);
        }
    }
}

/// Sends a reply. Returns whether that succeeded.
fn send(stream: &PeerStream, answer: &Reply) -> bool {
    let text = serde_json::to_vec(answer).expect("plain data");
    socket::send(stream, &text, &[]).is_ok()
}
