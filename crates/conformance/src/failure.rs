//! Failures of cases.

use crate::Outcome;
use std::fmt;
use std::panic::Location;

/// A description of a case's failure, with the source line.
pub struct Failure(String);

/// The result of a case.
pub type Verdict = Result<Outcome, Failure>;

impl Failure {
    /// Returns a failure with a message and the caller's source line.
    #[track_caller]
    pub fn new(message: impl fmt::Display) -> Self {
        let place = Location::caller();
        Self(format!("{}:{}: {message}", place.file(), place.line()))
    }
}

/// Converts an error through `?`, and records the source line of the `?`.
impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
