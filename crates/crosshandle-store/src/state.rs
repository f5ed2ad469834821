//! The state of a model that may be updated in place: words in shared memory that all readers have
//! mapped and only writers can write.
//!
//! | offset | content |
//! |---|---|
//! | 0 | format |
//! | 8 | state: a number that increases with every change, and a phase |
//! | 16 | address at which the loader had the data |
//! | 256 | eight places for announcements of writers, 256 bytes each |
//! | 4096 | hash of each piece of the data, 32 bytes each, zeros if unknown |
//!
//! A writer *claims* the state by a compare-and-swap. It then announces an event of its own process
//! in the place for its number, and enters the *writing* phase by another compare-and-swap. Before
//! that, it does not write to the data, so another writer may ignore a claim that lasts too long.
//! To check whether an announced writer is alive, other processes open its event, which fails when
//! the writer's process has ended.
//!
//! Every process that may write the model can write this memory, so readers check the values that
//! they read.

use crate::contents::hash::PieceHash;
use crate::error::{Error, Result};

use crosshandle::handle::{Bounded, EVENT_HANDLE_SIZE};
use crosshandle::{Context, Event, EventHandle, Memory, adapter_support::Deadline};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum age of a writer's claim without an announcement, after which the writer is treated as
/// dead. Normally, the announcement follows the claim within microseconds. With a shorter time, a
/// writer that the system does not schedule for that long must start again. With a longer time, the
/// next writer waits longer, and a reader that waits half a second at a time, as the Python module
/// does, never detects a dead writer.
const CLAIM_PATIENCE: Duration = Duration::from_millis(250);

/// Interval at which a process checks an update whose writer's signals it cannot wait for.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which a process checks for the next update when no writer exists that would signal
/// it.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time of one wait for a writer's event. After that, the writer's process is checked
/// again. This limits the delay that a wrong signal number can cause.
const WRITER_INTERVAL: Duration = Duration::from_millis(200);

const FORMAT: u64 = 0x3174_6174_732d_6878;
const STATE_WORD: usize = 1;
const ADDRESS_WORD: usize = 2;
const PLACES: u64 = 8;
const PLACE_BYTES: usize = 256;
const FIRST_PLACE: usize = 256;
const HASHES: usize = 4096;
const HASH_BYTES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No process writes, and the contents are consistent.
    Stable,
    /// No process writes, and the contents may be a mixture.
    Torn,
    /// A writer is about to announce itself.
    Claimed { was_torn: bool },
    /// A writer may be writing.
    Writing { was_torn: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) number: u64,
    pub(crate) phase: Phase,
}

impl Moment {
    fn to_word(self) -> u64 {
        let phase = match self.phase {
            Phase::Stable => 0,
            Phase::Torn => 1,
            Phase::Claimed { was_torn } => 2 + u64::from(was_torn),
            Phase::Writing { was_torn } => 4 + u64::from(was_torn),
        };
        self.number << 8 | phase
    }

    fn of_word(word: u64) -> Result<Self> {
        let was_torn = word & 1 != 0;
        let phase = match word & 0xff {
            0 => Phase::Stable,
            1 => Phase::Torn,
            2 | 3 => Phase::Claimed { was_torn },
            4 | 5 => Phase::Writing { was_torn },
            _ => return Err(senseless()),
        };
        let number = word >> 8;
        Ok(Self { number, phase })
    }

    fn is_torn(self) -> bool {
        match self.phase {
            Phase::Stable => false,
            Phase::Torn => true,
            Phase::Claimed { was_torn } | Phase::Writing { was_torn } => was_torn,
        }
    }

    /// Returns the state after a change.
    pub(crate) fn next(self, phase: Phase) -> Self {
        let number = self.number + 1;
        Self { number, phase }
    }
}

fn senseless() -> Error {
    Error::Invalid("the state of the model is invalid: publish the model again".into())
}

/// The result of a check whether a writer is alive.
enum Writer {
    /// The writer may be alive. If the writer has announced an event, the check has waited for the
    /// event.
    Perhaps,
    Gone,
}

/// The state of a model, mapped in this process.
#[derive(Debug)]
pub(crate) struct State {
    memory: Memory,
    host: HostContext,
    /// The last claim that was seen, and the time when it was first seen. This is kept between
    /// waits, so that several short waits detect a dead writer as well as one long wait does.
    claim: Mutex<Option<(Moment, Instant)>>,
}

/// The context in which writers' events are opened.
struct HostContext(Context);

impl std::fmt::Debug for HostContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.device())
    }
}

impl State {
    pub(crate) fn create(host: &Context, address: usize, pieces: &[PieceHash]) -> Result<Self> {
        let state = Self::without_hashes(host, address, pieces.len(), Phase::Stable)?;
        for (piece, hash) in (0..).zip(pieces) {
            state.put_hash(piece, Some(hash))?;
        }
        Ok(state)
    }

    /// Creates the state for an empty model with this number of pieces.
    pub(crate) fn create_empty(host: &Context, address: usize, pieces: u64) -> Result<Self> {
        Self::without_hashes(host, address, pieces as usize, Phase::Torn)
    }

    /// Creates the state for a model with this number of pieces, whose hashes are unknown.
    pub(crate) fn create_unhashed(host: &Context, address: usize, pieces: u64) -> Result<Self> {
        Self::without_hashes(host, address, pieces as usize, Phase::Stable)
    }

    fn without_hashes(host: &Context, address: usize, pieces: usize, phase: Phase) -> Result<Self> {
        let memory = host.allocate(HASHES + pieces * HASH_BYTES)?;
        let zeros = Bounded::<{ usize::MAX }>::new(memory.len()).and_then(Bounded::zeros);
        memory.write(
            0,
            &zeros.ok_or_else(|| Error::Invalid("the state is too long for memory".into()))?,
        )?;
        let word = Moment { number: 0, phase }.to_word();
        memory.write(8 * STATE_WORD, &word.to_ne_bytes())?;
        memory.write(8 * ADDRESS_WORD, &(address as u64).to_ne_bytes())?;
        memory.write(0, &FORMAT.to_ne_bytes())?;
        Ok(Self {
            memory,
            host: HostContext(host.clone()),
            claim: Mutex::new(None),
        })
    }

    /// Opens the state for a model with this number of pieces.
    pub(crate) fn open(host: &Context, memory: Memory, pieces: u64) -> Result<Self> {
        let state = Self {
            memory,
            host: HostContext(host.clone()),
            claim: Mutex::new(None),
        };
        let len = pieces.checked_mul(HASH_BYTES as u64);
        let len = len.and_then(|len| len.checked_add(HASHES as u64));
        if len != Some(state.memory.len() as u64) || state.word(0)? != FORMAT {
            return Err(senseless());
        }
        Ok(state)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn host(&self) -> &Context {
        &self.host.0
    }

    pub(crate) fn agreed_address(&self) -> Result<usize> {
        usize::try_from(self.word(ADDRESS_WORD)?).map_err(|_| senseless())
    }

    fn word(&self, index: usize) -> Result<u64> {
        let words = self.memory.bytes()?.slice(..HASHES)?.typed::<u64>()?;
        // The two fences keep earlier reads before the read of the word, and later reads after it.
        fence(Ordering::Acquire);
        let word = words.get(index).ok_or_else(senseless);
        fence(Ordering::Acquire);
        word
    }

    pub(crate) fn look(&self) -> Result<Moment> {
        Moment::of_word(self.word(STATE_WORD)?)
    }

    /// Replaces the state if it is still `from`.
    pub(crate) fn change(&self, from: Moment, to: Moment) -> Result<bool> {
        let words = self.memory.bytes()?.slice(..HASHES)?.atomics()?;
        let word = &words[STATE_WORD];
        let changed = word.compare_exchange(
            from.to_word(),
            to.to_word(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        Ok(changed.is_ok())
    }

    /// Returns `true` if no process has started to write since [`settle`](Self::settle) returned
    /// this number. The phase is checked too, because a writer whose claim was treated as abandoned
    /// may continue, and then its update has the claim's number.
    pub(crate) fn is_still(&self, number: u64) -> Result<bool> {
        let now = self.look()?;
        Ok(now.number == number && !matches!(now.phase, Phase::Writing { .. }))
    }

    /// Waits until no update is in progress. Returns the number of the state.
    pub(crate) fn settle(&self, deadline: Deadline) -> Result<u64> {
        Ok(self.settled(deadline)?.number)
    }

    /// Waits until the state is stable, or until the writer of a claim is treated as dead.
    fn settled(&self, deadline: Deadline) -> Result<Moment> {
        loop {
            let now = self.look()?;
            match now.phase {
                Phase::Stable => return Ok(now),
                Phase::Torn => return Err(Error::Torn),
                Phase::Claimed { .. } => {
                    if self.is_abandoned(now) {
                        // The writer died before it wrote anything.
                        return match now.is_torn() {
                            true => Err(Error::Torn),
                            false => Ok(now),
                        };
                    }
                    thread::sleep(LOOK_INTERVAL);
                }
                Phase::Writing { .. } => {
                    let gone = matches!(
                        self.await_writer(now, now.number, 0, deadline)?,
                        Writer::Gone
                    );
                    if gone && self.look()? == now {
                        return Err(Error::Torn);
                    }
                }
            }
            check(deadline, "waiting for the end of an update")?;
        }
    }

    /// Waits until an update later than `after` has finished. Returns its number.
    pub(crate) fn next_after(&self, after: u64, deadline: Deadline) -> Result<u64> {
        loop {
            let settled = self.settled(deadline)?;
            let is_claim = matches!(settled.phase, Phase::Claimed { .. });
            // A claim alone is not an update.
            if settled.number.saturating_sub(u64::from(is_claim)) > after {
                return Ok(settled.number);
            }
            if self.look()? == settled {
                // The last writer may start the next update too, and then signals its event.
                let writer = match settled.number.checked_sub(1) {
                    Some(before) if !is_claim => self.await_writer(settled, before, 1, deadline)?,
                    _ => Writer::Gone,
                };
                if let Writer::Gone = writer {
                    thread::sleep(IDLE_INTERVAL);
                }
            }
            check(deadline, "waiting for the next update")?;
        }
    }

    /// Acquires the right to write. Returns the state while this process writes. `event` notifies
    /// other processes. This call signals it, and the caller signals it again at the end.
    pub(crate) fn claim(&self, event: &Event, deadline: Deadline) -> Result<Moment> {
        loop {
            let now = self.look()?;
            let mut was_torn = now.is_torn();
            let is_free = match now.phase {
                Phase::Stable | Phase::Torn => true,
                Phase::Claimed { .. } => self.is_abandoned(now),
                Phase::Writing { .. } => {
                    was_torn = true;
                    matches!(
                        self.await_writer(now, now.number, 0, deadline)?,
                        Writer::Gone
                    )
                }
            };
            if is_free {
                let claimed = now.next(Phase::Claimed { was_torn });
                if self.change(now, claimed)? {
                    self.announce(claimed.number, event)?;
                    let writing = Moment {
                        phase: Phase::Writing { was_torn },
                        ..claimed
                    };
                    if self.change(claimed, writing)? {
                        // With this fence, a process that reads a byte that was written later also
                        // sees the phase. The exchange alone orders only earlier accesses.
                        fence(Ordering::SeqCst);
                        // This signal wakes the processes that wait for the next update.
                        if let Err(error) = event.signal() {
                            // Nothing was written, so restore the phase. Other processes need no
                            // signal for that.
                            let phase = match was_torn {
                                true => Phase::Torn,
                                false => Phase::Stable,
                            };
                            self.change(writing, writing.next(phase))?;
                            return Err(error.into());
                        }
                        return Ok(writing);
                    }
                }
            } else if matches!(now.phase, Phase::Claimed { .. }) {
                thread::sleep(LOOK_INTERVAL);
            }
            check(deadline, "waiting for another writer of the model")?;
        }
    }

    /// Returns `true` if a claim has lasted so long that its writer is treated as dead.
    fn is_abandoned(&self, now: Moment) -> bool {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        match *claim {
            Some((moment, since)) if moment == now => since.elapsed() > CLAIM_PATIENCE,
            _ => {
                *claim = Some((now, Instant::now()));
                false
            }
        }
    }

    fn place_of(number: u64) -> usize {
        FIRST_PLACE + (number % PLACES) as usize * PLACE_BYTES
    }

    /// Announces the event that this writer signals at the end of the update, and the number of
    /// that signal.
    fn announce(&self, number: u64, event: &Event) -> Result<()> {
        let mut place = Vec::with_capacity(PLACE_BYTES);
        place.extend_from_slice(&number.to_ne_bytes());
        place.extend_from_slice(&(event.submitted() + 2).to_ne_bytes());
        place.extend_from_slice(event.handle()?.as_bytes());
        Ok(self.memory.write(Self::place_of(number), &place)?)
    }

    /// Returns the event of the writer that took a number, and the number of the signal that ends
    /// its update.
    fn announced(&self, number: u64) -> Result<Option<(EventHandle, u64)>> {
        let mut place = [0; 16 + EVENT_HANDLE_SIZE];
        self.memory.read(Self::place_of(number), &mut place)?;
        let word = |at: usize| u64::from_ne_bytes(place[at..at + 8].try_into().expect("8 bytes"));
        let handle = EventHandle::from_bytes(&place[16..]).ok();
        Ok(handle
            .filter(|_| word(0) == number)
            .map(|handle| (handle, word(8))))
    }

    /// Waits briefly for the writer that took a number, at most until the deadline. The wait ends
    /// when the writer dies, or when it has given `later` more signals than the one that ends its
    /// update. `now` is the state that the caller saw.
    fn await_writer(
        &self,
        now: Moment,
        number: u64,
        later: u64,
        deadline: Deadline,
    ) -> Result<Writer> {
        let Some((handle, signal)) = self.announced(number)? else {
            // The announcement was overwritten. Either the state has changed, or a writer has
            // written invalid data.
            thread::sleep(LOOK_INTERVAL);
            return Ok(match later {
                0 => Writer::Perhaps,
                _ => Writer::Gone,
            });
        };
        let event = match self.host().open_event_timeout(&handle, deadline.timeout()) {
            Ok(event) => event,
            // These errors mean that the writer's process has ended, or has dropped the event.
            Err(error) if error.is_peer_dead() || error.is_stale() => return Ok(Writer::Gone),
            // A timeout means that the writer's process is stopped. It may continue later.
            Err(error) if error.is_timeout() => return Ok(Writer::Perhaps),
            Err(error) => return Err(error.into()),
        };
        let signal = signal.saturating_add(later);
        if event
            .wait_value_timeout(signal, deadline.timeout().min(WRITER_INTERVAL))
            .is_ok_and(|()| self.look().is_ok_and(|found| found == now))
        {
            // Pause, because any process that has the event can signal it, and this loop must not
            // spin then.
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(Writer::Perhaps)
    }

    /// Returns the hash of a piece, if it is known.
    pub(crate) fn hash_of(&self, piece: u64, len: u64) -> Result<Option<PieceHash>> {
        let mut bytes = [0; HASH_BYTES];
        self.memory.read(Self::hash_place(piece), &mut bytes)?;
        let is_known = bytes != [0; HASH_BYTES];
        Ok(is_known.then(|| PieceHash::of_bytes(bytes, len)))
    }

    /// Records the hash of a piece. `None` records that the hash is unknown.
    pub(crate) fn put_hash(&self, piece: u64, hash: Option<&PieceHash>) -> Result<()> {
        let bytes = hash.map_or([0; HASH_BYTES], PieceHash::to_bytes);
        Ok(self.memory.write(Self::hash_place(piece), &bytes)?)
    }

    fn hash_place(piece: u64) -> usize {
        HASHES + piece as usize * HASH_BYTES
    }
}

fn check(deadline: Deadline, doing: &'static str) -> Result<()> {
    match deadline.is_over() {
        false => Ok(()),
        true => Err(crosshandle::Error::TimedOut(doing).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle::Device;
    use std::time::Duration;

    #[test]
    fn a_claim_that_counted_as_abandoned_is_no_update_and_may_become_one() {
        const SLICE: Duration = Duration::from_millis(10);
        let device = Device::find("host").expect("there is always a host");
        let context = Context::new(&device).expect("a context");
        let state = State::create(&context, 0, &[]).expect("a state");
        let change = |from: Moment, to: Moment| assert!(state.change(from, to).expect("words"));
        let start = state.look().expect("words");
        let claimed = start.next(Phase::Claimed { was_torn: false });
        change(start, claimed);
        // Repeated short waits detect a dead writer too.
        let wait = || state.settle(Deadline::after(SLICE)).ok();
        let found = (0..1000).find_map(|_| wait());
        assert_eq!(found, Some(claimed.number));
        assert!(state.is_still(claimed.number).expect("words"));
        let next = |after| state.next_after(after, Deadline::after(SLICE));
        for after in [start.number, claimed.number] {
            let waited = next(after).expect_err("nothing was written");
            assert!(waited.is_timeout(), "{waited}");
        }
        // The writer of the claim was only late, and continues.
        let phase = Phase::Writing { was_torn: false };
        let writing = Moment { phase, ..claimed };
        change(claimed, writing);
        assert!(!state.is_still(claimed.number).expect("words"));
        let ended = writing.next(Phase::Stable);
        change(writing, ended);
        assert!(!state.is_still(claimed.number).expect("words"));
        for after in [start.number, claimed.number] {
            assert_eq!(next(after).expect("an update"), ended.number);
        }
        // A later claim does not hide the finished update.
        change(ended, ended.next(Phase::Claimed { was_torn: false }));
        let found = (0..1000).find_map(|_| next(claimed.number).ok());
        assert_eq!(found, Some(ended.number + 1));
    }
}
