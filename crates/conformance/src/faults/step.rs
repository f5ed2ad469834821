//! The names of steps, faults and cases.

use super::calls;
use std::fmt;
use std::str::FromStr;

/// A step of a worker. Its name stays the same if other threads run in a slightly different order.
/// The name consists of the line of the workload, the thread's role, the call, and the number of
/// the call among the same calls.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) worker: char,
    pub(super) role: String,
    pub(super) call: &'static str,
    /// Number of the call among the calls of this name, by threads of this role, during this line.
    /// Counts from 1.
    pub(super) occurrence: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            worker,
            role,
            call,
            occurrence,
        } = self;
        write!(f, "{line}.{worker}.{role}.{call}.{occurrence}")
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a step: LINE.WORKER.ROLE.CALL.OCCURRENCE");
        let parts: Vec<_> = text.split('.').collect();
        let [line, worker, role, call, occurrence] = parts[..] else {
            return Err(wrong());
        };
        Ok(Self {
            line: line.parse().map_err(|_| wrong())?,
            worker: worker.parse().map_err(|_| wrong())?,
            role: role.to_owned(),
            call: calls::named(call).ok_or_else(wrong)?.name,
            occurrence: occurrence.parse().map_err(|_| wrong())?,
        })
    }
}

/// A fault that happens to a worker at a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Fault {
    /// SIGKILL before the step.
    Kill,
    /// SIGSTOP before the step, and SIGCONT later.
    Stop,
    /// The system call is not executed, and fails with this error.
    Error(&'static str, i32),
}

impl Fault {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Error(..) => "error",
        }
    }

    pub(super) fn at(call: &str) -> Vec<Self> {
        let errors = calls::named(call).map_or(&[][..], |call| call.errors);
        let mut all = vec![Self::Kill, Self::Stop];
        all.extend(
            errors
                .iter()
                .map(|(name, number)| Self::Error(name, *number)),
        );
        all
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(name, _) => f.write_str(name),
            fault => f.write_str(fault.kind()),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kill" => Ok(Self::Kill),
            "stop" => Ok(Self::Stop),
            name => calls::error(name)
                .map(|(name, number)| Self::Error(name, number))
                .ok_or_else(|| format!("no fault {name:?}")),
        }
    }
}

/// A case: a workload in an order that a seed determines, and one fault at one step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct CaseId {
    pub(super) workload: String,
    pub(super) seed: u64,
    pub(super) step: Step,
    pub(super) fault: Fault,
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workload,
            seed,
            step,
            fault,
        } = self;
        write!(f, "{workload}/{seed}/{step}/{fault}")
    }
}

impl FromStr for CaseId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split('/').collect();
        let [workload, seed, step, fault] = parts[..] else {
            return Err(format!("{text:?} is not a case: WORKLOAD/SEED/STEP/FAULT"));
        };
        Ok(Self {
            workload: workload.to_owned(),
            seed: seed.parse().map_err(|_| format!("{seed:?} is no seed"))?,
            step: step.parse()?,
            fault: fault.parse()?,
        })
    }
}
