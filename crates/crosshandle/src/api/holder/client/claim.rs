//! The client's side of claims. A claim makes one process the only writer of a name.

use super::super::HeldName;
use super::{Holder, new_request, senseless};
use crosshandle_holder::message::{Reply, Request};
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, HolderFault, Result};
use crosshandle_types::sync::Deadline;
use std::time::Duration;

/// Interval at which a program repeats its claim of a name that has another writer. Each attempt
/// scans all processes.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// Options of a claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimOptions {
    forces: bool,
    wait: Duration,
}

impl ClaimOptions {
    /// Returns the default options: the claim needs proof that the previous writer has ended, and
    /// does not wait for it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the claim succeeds even if the previous writer may still write (default: no).
    /// This needs the administration token, if the name has one. The program is then responsible
    /// for what two concurrent writers do to the memory.
    pub fn force(mut self, force: bool) -> Self {
        self.forces = force;
        self
    }

    /// Sets how long to wait until the previous writer has provably ended (default: no wait). A
    /// claim that waits also limits the holder's reply to this time. A claim that does not wait
    /// uses the holder's [`timeout`](Holder::timeout).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// The exclusive right to write the memory of a name, in an epoch of its own. The right ends when
/// this process ends, or calls [`end`](Self::end). Dropping the lease does not end it, since the
/// memory may still be open.
#[derive(Debug)]
#[must_use = "a claim that is not ended lasts as long as the process"]
pub struct Lease {
    holder: Holder,
    held: HeldName,
    request: u64,
}

impl Lease {
    /// Returns the number of this writer. The number is one more than the number of the previous
    /// writer.
    pub fn epoch(&self) -> u64 {
        self.held.epoch
    }

    /// Returns the name, with handles for writing. Handles for writing that were made earlier no
    /// longer open anything.
    pub fn held(&self) -> &HeldName {
        &self.held
    }

    /// Ends the claim. The caller promises that this process no longer writes the memory. It and
    /// its child processes have dropped everything that they opened, and their queues have
    /// finished. For host memory, the holder checks this when the next process claims the name.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs, or if the name has another writer by now.
    pub fn end(self) -> Result<()> {
        self.holder.done(Request::EndClaim {
            name: self.held.name,
            request: self.request,
        })
    }
}

impl Holder {
    /// Claims a name, so that this process becomes its only writer in a new epoch. The claim
    /// succeeds once the previous writer has provably ended. The holder must see this process and
    /// the processes of its user, so they must share a PID namespace.
    ///
    /// The proof requires all of the following:
    ///
    /// - The previous writer has [ended its claim](Lease::end), or its process and all processes
    ///   that were forked from it have ended.
    /// - For host memory, no other process has it mapped or open for writing.
    /// - For a driver's memory, the exporter has also ended or is this process.
    /// - For CUDA memory, no MPS daemon runs.
    ///
    /// From then on the memory can be opened for writing only by the handles of the result, and
    /// [`open_to_write`](Self::open_to_write) fails. Readers are notified by
    /// [`await_epoch`](Self::await_epoch).
    ///
    /// # Errors
    /// Returns [`Error::Holder`] with [`HolderFault::HasWriter`] and the reason if the proof fails.
    /// Also returns [`Error::Holder`] if no holder runs, the name does not exist, or its token was
    /// not presented.
    pub fn claim(&self, name: &str, options: &ClaimOptions) -> Result<Lease> {
        let request = new_request()?;
        let deadline = Deadline::after(options.wait);
        loop {
            let asked = match options.wait.is_zero() {
                true => self.clone(),
                false => self.within(deadline.timeout()),
            };
            let claim = Request::Claim {
                name: name.to_owned(),
                forces: options.forces,
                request,
            };
            match asked.ask(claim) {
                Ok(Reply::Claimed(held)) => {
                    return Ok(Lease {
                        holder: self.clone(),
                        held,
                        request,
                    });
                }
                Ok(_) => return Err(senseless()),
                Err(error) if has_writer(&error) && !deadline.is_over() => {
                    deadline.sleep(CLAIM_INTERVAL);
                }
                Err(error) => {
                    if error.is_timeout() || has_writer(&error) {
                        // The holder may have granted the claim in the meantime. A granted claim
                        // would exclude other writers.
                        let (holder, name) = (self.clone(), name.to_owned());
                        // The holder may be stopped, and the caller's time has run out.
                        background::run_blocking(move || {
                            let _ = holder.done(Request::EndClaim { name, request });
                        });
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Waits for at most `timeout` until a name has a later epoch than `epoch`, and opens it for
    /// reading. Another process may have begun to write.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), also if the name is removed during the wait.
    /// Returns [`Error::TimedOut`] if the timeout passes.
    pub fn await_epoch(&self, name: &str, epoch: u64, timeout: Duration) -> Result<HeldName> {
        self.within(timeout).opened(Request::Await {
            name: name.to_owned(),
            version: 0,
            epoch: Some(epoch),
        })
    }
}

fn has_writer(error: &Error) -> bool {
    matches!(
        error,
        Error::Holder {
            fault: HolderFault::HasWriter,
            ..
        }
    )
}
