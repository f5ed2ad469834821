//! The programs that are connected: one question at a time each, and how far its answer is.

use super::super::message::{Answer, PROTOCOL, Question, Request, refused};
use super::super::successor::Successor;
use super::super::tuning::{
    MAX_MESSAGE_BYTES, MAX_PROGRAMS, MAX_WAITING, MAX_WAITING_OF_PROCESS, MAX_WORKING,
    QUESTION_TIME, SUCCESSOR_TIME,
};
use super::Server;
use crate::error::HolderFault;
use crate::os::socket::{self, Received};
use crate::threads::disposer::PeerStream;
use rustix::io::Errno;
use std::time::Instant;

/// The process that a program runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asker {
    pub(super) uid: u32,
    /// Its number in this process's PID namespace; 0 if it has none there.
    pub(super) pid: u32,
}

impl Asker {
    /// Returns whether both are known to be one process.
    pub(super) fn is_same_process(&self, other: &Self) -> bool {
        self.pid != 0 && self == other
    }
}

/// A program that is connected.
pub(super) struct Program {
    pub(super) stream: PeerStream,
    pub(super) number: u64,
    pub(super) asker: Asker,
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

    fn waits(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }

    fn works(&self) -> bool {
        matches!(self.stage, Stage::Working)
    }
}

impl Server {
    pub(super) fn accept(&mut self) {
        let stream = match socket::accept(&self.programs) {
            Ok(stream) => stream,
            Err(Errno::MFILE | Errno::NFILE) => {
                // Whoever waits for a version can ask again.
                self.connected
                    .retain(|program| !matches!(program.stage, Stage::Waiting(_)));
                return;
            }
            Err(_) => return,
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
            return;
        };
        if self.connected.len() >= MAX_PROGRAMS {
            let silent = |program: &Program| matches!(program.stage, Stage::Silent(_));
            match self.connected.iter().position(silent) {
                Some(oldest) => drop(self.connected.remove(oldest)),
                None => {
                    let why = "too many programs ask this holder at once; try again";
                    send(&stream, &refused(HolderFault::Refused, why));
                    return;
                }
            }
        }
        self.next_number += 1;
        self.connected.push(Program {
            stream,
            number: self.next_number,
            asker,
            stage: Stage::Silent(Instant::now() + QUESTION_TIME),
        });
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
            Ok(request) if request.protocol == PROTOCOL => {
                let is_stop = matches!(request.question, Question::Stop);
                match self.answer(number, request) {
                    Some(answer) if is_stop => {
                        if matches!(answer, Answer::Done) {
                            // First: who has the answer may end this process, too.
                            self.end();
                        }
                        let program = &self.connected[index];
                        send(&program.stream, &answer);
                        return matches!(answer, Answer::Done);
                    }
                    answer => answer,
                }
            }
            Ok(_) => Some(refused(
                HolderFault::Refused,
                "the holder is of another version of crosshandle",
            )),
            Err(_) => Some(refused(
                HolderFault::Refused,
                "the holder does not understand the question; both sides need one version of crosshandle",
            )),
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
        if !send(&program.stream, answer) {
            self.connected.swap_remove(index);
        }
    }

    /// Answers once the successor has all changes so far.
    pub(super) fn promise(&mut self, number: u64, answer: Answer) {
        let serial = self.successor.as_ref().map_or(0, Successor::serial);
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
        let mut due = Vec::new();
        for program in &mut self.connected {
            let Stage::Promised { serial, late, .. } = &program.stage else {
                continue;
            };
            // A successor that was started since has told it among what came first.
            let is_kept = self
                .successor
                .as_ref()
                .is_some_and(|it| it.has(*serial.min(&it.serial())));
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
                    is_safe: is_kept,
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

    /// Returns whether one more question of a program may wait, beside those of its process and all others.
    pub(super) fn may_wait(&self, asker: Asker) -> bool {
        let (all, of_process) = self.count(asker, Program::waits);
        all < MAX_WAITING && of_process < MAX_WAITING_OF_PROCESS
    }

    /// Returns whether one more job may be done for a program, or wait for its turn.
    pub(super) fn may_work(&self, asker: Asker) -> bool {
        let (all, of_process) = self.count(asker, Program::works);
        all < MAX_WORKING && of_process < MAX_WAITING_OF_PROCESS
    }

    fn count(&self, asker: Asker, is_it: impl Fn(&Program) -> bool) -> (usize, usize) {
        let (mut all, mut of_process) = (0, 0);
        for program in self.connected.iter().filter(|program| is_it(program)) {
            all += 1;
            of_process += usize::from(program.asker.is_same_process(&asker));
        }
        (all, of_process)
    }
}

/// Sends an answer. Returns whether that was possible.
fn send(stream: &PeerStream, answer: &Answer) -> bool {
    let text = serde_json::to_vec(answer).expect("plain data");
    socket::send(stream, &text, &[]).is_ok()
}
