//! Why a case failed.

use crate::Outcome;
use std::fmt;
use std::panic::Location;

/// What went wrong in a case, and where.
pub struct Failure(String);

/// The end of a case.
pub type Verdict = Result<Outcome, Failure>;

impl Failure {
    /// A failure in words.
    #[track_caller]
    pub fn new(message: impl fmt::Display) -> Self {
        let place = Location::caller();
        Self(format!("{}:{}: {message}", place.file(), place.line()))
    }
}

/// So that `?` notes the line it stands in.
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
