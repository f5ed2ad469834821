//! The programs that are connected: one question at a time each, and how far its answer is.

use super::super::identity::Asker;
use super::super::message::{
    Answer, OLDEST_PROTOCOL, PROTOCOL, Question, Request, not_understood, refused,
};
use super::super::succession::Successor;
use super::super::tuning::{
    MAX_ACCEPTED_AT_ONCE, MAX_MESSAGE_BYTES, QUESTION_TIME, SUCCESSOR_TIME,
};
use super::Server;
use super::quota::{Resource, Share, Tally, none_left};
use crate::error::HolderFault;
use crate::os::socket::{self, Received};
use crate::threads::disposer::PeerStream;
use rustix::io::Errno;
use std::time::Instant;

/// A program that is connected.
pub(super) struct Program {
    pub(super) stream: PeerStream,
    pub(super) number: u64,
    pub(super) asker: Asker,
    /// The version of the protocol that it has last asked in.
    pub(super) protocol: u32,
    pub(super) stage: Stage,
}

/// How far a program's question is.
pub(super) enum Stage {
    /// It has not asked yet, and is hung up on at this time.
    Silent(Instant),
    /// A job is done for it, or waits for its turn.
    Working,
    /// It is answered once the successor has this change, or at this time.
    Promised {
        answer: Answer,
        serial: u64,
        late: Instant,
    },
    /// It waits for a version or an epoch of a name beyond this one.
    Waiting(Wait),
}

/// What a program waits for.
#[derive(Clone)]
pub(super) struct Wait {
    pub(super) name: String,
    pub(super) version: u64,
    /// If it is there, the version does not matter.
    pub(super) epoch: Option<u64>,
    pub(super) token: Option<String>,
}

impl Program {
    /// Returns when something is to be done about it whoever says what.
    pub(super) fn late(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Silent(late) | Stage::Promised { late, .. } => Some(*late),
            Stage::Working | Stage::Waiting(_) => None,
        }
    }

    /// Returns whether it takes some of a resource.
    pub(super) fn takes(&self, resource: Resource) -> bool {
        match resource {
            Resource::Connections => true,
            Resource::Waits => matches!(self.stage, Stage::Waiting(_)),
            Resource::QueuedJobs => matches!(self.stage, Stage::Working),
            _ => false,
        }
    }

    /// Returns how little is lost if it must ask again: the least first.
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
    /// Takes the connections that have come.
    pub(super) fn accept_all(&mut self) {
        // Once: a flood brings many connections at a time.
        let mut tally = self.tally(Resource::Connections);
        for _ in 0..MAX_ACCEPTED_AT_ONCE {
            if !self.accept(&mut tally) {
                return;
            }
        }
    }

    /// Adds up who takes how much of a resource.
    pub(super) fn tally(&self, resource: Resource) -> Tally {
        let taking = (self.connected.iter()).filter(|program| program.takes(resource));
        Tally::from_iter(taking.map(|program| program.asker))
    }

    /// Takes the next connection, with `tally` of all connections. Returns whether there was one.
    pub(super) fn accept(&mut self, tally: &mut Tally) -> bool {
        let stream = match socket::accept(&self.programs) {
            Ok(stream) => stream,
            Err(Errno::MFILE | Errno::NFILE) => {
                // Whoever waits for a version can ask again.
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
            stage: Stage::Silent(Instant::now() + QUESTION_TIME),
        });
        true
    }

    /// Returns whether a process may take one more of a resource. Where all of it is taken, the process that has
    /// most gives one up, users first.
    pub(super) fn has_room(&mut self, resource: Resource, asker: Asker) -> bool {
        let mut tally = self.tally(resource);
        self.makes_room(resource, asker, &mut tally)
    }

    /// Does so where `tally` is known, and takes from it what was given up.
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
        // Who says nothing has its place for as long as it is not needed.
        resource == Resource::Connections
            && self.put_off(resource, tally, |program| {
                program.asker.uid == asker.uid && matches!(program.stage, Stage::Silent(_))
            })
    }

    /// Has one of the programs give up what it takes of a resource. Returns whether there was one.
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

    /// Takes a program's question or hang-up. Returns whether it wants the holder to end.
    pub(super) fn attend(&mut self, number: u64) -> bool {
        let Some(index) = self.position(number) else {
            return false;
        };
        let program = &self.connected[index];
        self.turns.note(program.asker);
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let len = match socket::receive(&program.stream, &mut buffer, self.guard) {
            Ok(Received::Message(len, ())) => len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => return false,
            _ => {
                self.connected.swap_remove(index);
                return false;
            }
        };
        // One question at a time.
        if !matches!(program.stage, Stage::Silent(_)) {
            self.connected.swap_remove(index);
            return false;
        }
        let answer = match serde_json::from_slice::<Request>(&buffer[..len]) {
            Ok(request) if (OLDEST_PROTOCOL..=PROTOCOL).contains(&request.protocol) => {
                self.connected[index].protocol = request.protocol;
                let is_stop = matches!(request.question, Question::Stop);
                match self.answer(number, request) {
                    Some(answer) if is_stop => {
                        if matches!(answer, Answer::Done) {
                            // First: who has the answer may end this process, too.
                            self.end();
                        }
                        if let Some(index) = self.position(number) {
                            send(&self.connected[index].stream, &answer);
                        }
                        return matches!(answer, Answer::Done);
                    }
                    answer => answer,
                }
            }
            _ => Some(not_understood(&buffer[..len])),
        };
        if let Some(answer) = answer {
            self.reply(number, &answer);
        }
        false
    }

    /// Answers a program that waits for it.
    pub(super) fn reply(&mut self, number: u64, answer: &Answer) {
        let Some(index) = self.position(number) else {
            return;
        };
        let program = &mut self.connected[index];
        program.stage = Stage::Silent(Instant::now() + QUESTION_TIME);
        let answer = answer.clone().in_version(program.protocol);
        if !send(&program.stream, &answer) {
            self.connected.swap_remove(index);
        }
    }

    /// Answers once the successor has all changes so far.
    pub(super) fn promise(&mut self, number: u64, answer: Answer) {
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

    /// Gives the answers whose promise is kept, or late.
    pub(super) fn keep_promises(&mut self) {
        let now = Instant::now();
        let is_alone = self.terms.successor.is_none();
        // If both processes died at once, it would not come back.
        let is_noted = self.journal.failure().is_none();
        let mut due = Vec::new();
        for program in &mut self.connected {
            let Stage::Promised { serial, late, .. } = &program.stage else {
                continue;
            };
            // A successor that was started since has told it among what came first.
            let is_kept = self
                .successor
                .as_ref()
                .is_some_and(|it| it.has(*serial.min(&it.changed())));
            if !(is_kept || is_alone || *late <= now) {
                continue;
            }
            let silent = Stage::Silent(now + QUESTION_TIME);
            let Stage::Promised { answer, .. } = std::mem::replace(&mut program.stage, silent)
            else {
                continue;
            };
            let answer = match answer {
                Answer::HandedOver { version, .. } => Answer::HandedOver {
                    version,
                    is_safe: is_kept && is_noted,
                },
                // Its successor could let in another writer.
                Answer::Claimed(_) if !is_kept && !is_alone => refused(
                    HolderFault::Fenced,
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

/// Sends an answer. Returns whether that was possible.
fn send(stream: &PeerStream, answer: &Answer) -> bool {
    let text = serde_json::to_vec(answer).expect("plain data");
    socket::send(stream, &text, &[]).is_ok()
}
