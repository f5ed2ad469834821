//! Failures of commands. A failure has a one-line message and an exit code.

use crate::output::log::{self, Level};
use crosshandle::Error;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Explanation of the exit statuses, shown in the help of each command.
pub(crate) const EXIT_STATUS_HELP: &str = "\
Exit status:
  0  done
  1  an error, explained on standard error
  2  wrong usage
  3  timed out
  4  the peer process has ended";

/// The reason why a command ends with a status other than 0. The parser reports wrong usage (2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// An error without its own exit code.
    Error,
    /// A deadline passed.
    TimedOut,
    /// The process that the command waited for has ended.
    PeerDied,
}

impl Cause {
    fn exit_code(self) -> u8 {
        match self {
            Self::Error => 1,
            Self::TimedOut => 3,
            Self::PeerDied => 4,
        }
    }
}

/// The error that ends a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command could not do its work, for the reason in `message`.
    Failed { cause: Cause, message: String },
    /// The reader has closed the output (`crosshandle read … | head`), which is not an error.
    OutputClosed,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self::Failed {
            cause,
            message: message.into(),
        }
    }

    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::new(Cause::Error, message)
    }

    pub(crate) fn peer_died(message: impl Into<String>) -> Self {
        Self::new(Cause::PeerDied, message)
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Cause::TimedOut, message)
    }

    /// Converts an error of standard output to a failure.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::error(format!("writing to standard output: {error}"))
        }
    }

    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Failed { message, .. } => message,
            Self::OutputClosed => "the reader has closed the output",
        }
    }

    pub(crate) fn is_peer_dead(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                cause: Cause::PeerDied,
                ..
            }
        )
    }

    /// Prints the failure to standard error, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Failed { cause, message } => {
                // If standard error is closed, only the exit code reports the failure.
                log::say(Level::Error, message);
                ExitCode::from(cause.exit_code())
            }
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let cause = if error.is_timeout() {
            Cause::TimedOut
        } else if error.is_peer_dead() {
            Cause::PeerDied
        } else {
            Cause::Error
        };
        Self::new(cause, error.to_string())
    }
}

impl From<crosshandle::handle::HandleError> for Failure {
    fn from(error: crosshandle::handle::HandleError) -> Self {
        Error::from(error).into()
    }
}

/// Adds the failed operation to the message of an error.
pub(crate) trait ErrorContext<T> {
    /// Puts `doing` before the message of an error.
    fn context(self, doing: impl Display) -> Result<T>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(|error| Failure::error(format!("{doing}: {error}")))
    }
}

impl<T> ErrorContext<T> for rustix::io::Result<T> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(|error| Failure::error(format!("{doing}: {error}")))
    }
}

impl<T> ErrorContext<T> for crosshandle::Result<T> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(Failure::from).context(doing)
    }
}

impl<T> ErrorContext<T> for Result<T> {
    fn context(self, doing: impl Display) -> Self {
        self.map_err(|failure| match failure {
            Failure::Failed { cause, message } => Failure::Failed {
                cause,
                message: format!("{doing}: {message}"),
            },
            Failure::OutputClosed => Failure::OutputClosed,
        })
    }
}
