//! What an attacker gets to know, and the list of those that take part in a soak.

use crate::failure::Failure;
use std::path::PathBuf;
use std::time::Instant;

/// What an attacker may use.
#[derive(Clone, Debug)]
pub struct Target {
    /// Socket directory of all exporters.
    pub directory: PathBuf,
    /// Device of all contexts.
    pub device: String,
    /// The program `crosshandle-peer`.
    pub program: PathBuf,
    /// Process whose objects nobody may touch: whatever an attacker does, its importer must not
    /// notice.
    pub honest_pid: u32,
    /// Read-only handle of memory of the honest process, which an attacker may open and read.
    pub honest_memory: String,
    /// Process whose handles an attacker holds with all rights. Its data may be ruined; it must live,
    /// answer others and leak nothing.
    pub exposed_pid: u32,
    /// Handle of the exposed process's memory.
    pub exposed_memory: String,
    /// Handle of the exposed process's event.
    pub exposed_event: String,
}

/// A hostile program.
pub trait Attacker: Send {
    /// Returns the attacker's name.
    fn name(&self) -> &'static str;

    /// Attacks until the time is over. What it starts has ended when it returns.
    ///
    /// # Errors
    /// Fails if a promise was broken, or if the attack could not be made at all.
    fn attack(&mut self, target: &Target, end: Instant) -> Result<(), Failure>;
}

/// Returns every attacker.
pub fn attackers() -> Vec<Box<dyn Attacker>> {
    Vec::new()
}
