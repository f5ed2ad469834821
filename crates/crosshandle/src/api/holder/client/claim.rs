//! The program's side of claims: one writer of a name at a time.

use super::super::message::{Answer, Question};
use super::super::tuning::CLAIM_INTERVAL;
use super::{HeldName, Holder, new_request, senseless};
use crate::error::{Error, HolderFault, Result};
use crate::sync::Deadline;
use crate::threads::background;
use std::time::Duration;

/// How a name is to be claimed.
#[derive(Clone, Debug, Default)]
pub struct ClaimOptions {
    forces: bool,
    wait: Duration,
}

impl ClaimOptions {
    /// Returns the usual options: proof is asked for, at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the claim is granted although the writer before may write still (default: no). It takes
    /// the token of administration, if the name has one. What two writers make of the memory is then the
    /// program's affair.
    pub fn force(mut self, force: bool) -> Self {
        self.forces = force;
        self
    }

    /// Sets how long to wait until the writer before has provably ended (default: not at all). A claim that waits also
    /// gets the holder's answer within this time. One that does not wait gives the holder its
    /// [`timeout`](Holder::timeout).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// The right to write the memory of a name, in an epoch of its own. It ends with this process, or when it
/// says so ([`end`](Self::end)); dropping it ends nothing, since the memory may be open still.
#[derive(Debug)]
#[must_use = "a claim that is not ended lasts as long as the process"]
pub struct Lease {
    holder: Holder,
    held: HeldName,
    request: u64,
}

impl Lease {
    /// Returns the number of this writer: one more than that of the writer before.
    pub fn epoch(&self) -> u64 {
        self.held.epoch
    }

    /// Returns the name, with handles for writing. Handles for writing that were made before open nothing
    /// any more.
    pub fn held(&self) -> &HeldName {
        &self.held
    }

    /// Says that this process writes the memory no more: it has dropped what it opened, its queues are done,
    /// and so are those of its children. For memory of the host the holder looks for itself when the next one
    /// claims it.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is no holder, or the name has another writer by now.
    pub fn end(self) -> Result<()> {
        self.holder.done(Question::EndClaim {
            name: self.held.name,
            request: self.request,
        })
    }
}

impl Holder {
    /// Claims a name: this process is its one writer, in a new epoch, once the writer before has provably
    /// ended. The holder must see its process and those of its user, so they share a PID namespace.
    ///
    /// It is proven by this. The writer's process has ended, or has [ended its claim](Lease::end). No
    /// process lives that was forked from it. Memory of the host is mapped or open for writing by no other
    /// process; the maker of a driver's memory has ended too or is this process, and no MPS daemon runs.
    ///
    /// From then on nobody opens the memory for writing but by the result's handles, and
    /// [`open_to_write`](Self::open_to_write) is refused. Readers are told by
    /// [`await_epoch`](Self::await_epoch).
    ///
    /// # Errors
    /// [`Error::Holder`] with [`HolderFault::Fenced`] if it is not proven, with the reason; if there is no
    /// holder, nothing has the name, or the name's token was not shown.
    pub fn claim(&self, name: &str, options: &ClaimOptions) -> Result<Lease> {
        let request = new_request()?;
        let deadline = Deadline::after(options.wait);
        loop {
            let asked = match options.wait.is_zero() {
                true => self.clone(),
                false => self.within(deadline.timeout()),
            };
            let question = Question::Claim {
                name: name.to_owned(),
                forces: options.forces,
                request,
            };
            match asked.ask(question) {
                Ok(Answer::Claimed(entry)) => {
                    return Ok(Lease {
                        holder: self.clone(),
                        held: entry.try_into()?,
                        request,
                    });
                }
                Ok(_) => return Err(senseless()),
                Err(error) if is_fenced(&error) && !deadline.is_over() => {
                    deadline.sleep(CLAIM_INTERVAL);
                }
                Err(error) => {
                    if error.is_timeout() || is_fenced(&error) {
                        // The holder may have let this process in since; it would keep others out.
                        let (holder, name) = (self.clone(), name.to_owned());
                        // The holder may be stopped, and the caller's time is over.
                        background::run_blocking(move || {
                            let _ = holder.done(Question::EndClaim { name, request });
                        });
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Waits until a name has a later epoch than `epoch`, for at most `timeout`, and asks for its memory to
    /// read it: another writer may have begun to write.
    ///
    /// # Errors
    /// As [`open`](Self::open), also when the name is removed meanwhile; [`Error::TimedOut`].
    pub fn await_epoch(&self, name: &str, epoch: u64, timeout: Duration) -> Result<HeldName> {
        self.within(timeout).opened(Question::Await {
            name: name.to_owned(),
            version: 0,
            epoch: Some(epoch),
        })
    }
}

fn is_fenced(error: &Error) -> bool {
    matches!(
        error,
        Error::Holder {
            fault: HolderFault::Fenced,
            ..
        }
    )
}
