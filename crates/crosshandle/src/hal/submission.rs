//! Commands, as backends get them.

use super::{LoadedKernel, WaitList};
use crate::error::Result;
use crate::ipc::EventCore;
use crate::types::Address;
use crate::types::{KernelArguments, LaunchShape};
use crate::types::{Pitches, Region};
use smallvec::SmallVec;
use std::any::Any;
use std::mem;
use std::sync::Arc;

/// A command with what it waits for and signals.
pub(crate) struct Submission {
    pub(crate) work: Work,
    /// It starts after all earlier commands, in any order of execution.
    pub(crate) after_earlier: bool,
    /// All later commands start after it, in any order of execution.
    pub(crate) before_later: bool,
    pub(crate) waits: WaitList,
    /// It calls the host, or waits for what does: it may fail although no process ends and the
    /// device is well. What waits for its signal was told so.
    pub(crate) may_fail: bool,
    pub(crate) signal: Option<Arc<EventCore>>,
    /// Whether the host can access all memory that it names.
    pub(crate) is_on_host: bool,
}

impl Submission {
    /// A command that waits for nothing and signals nothing.
    #[inline]
    pub(crate) fn new(work: Work) -> Self {
        Self {
            work,
            after_earlier: false,
            before_later: false,
            waits: WaitList::None,
            may_fail: false,
            signal: None,
            is_on_host: true,
        }
    }

    /// One that does nothing, after all earlier commands and before all later ones.
    #[inline]
    pub(crate) fn barrier() -> Self {
        Self {
            after_earlier: true,
            before_later: true,
            ..Self::new(Work::Marker)
        }
    }

    /// Whether nothing is left of it that would have to be dropped.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        let Self {
            work: Work::Marker,
            waits: WaitList::None,
            signal: None,
            after_earlier: _,
            before_later: _,
            may_fail: _,
            is_on_host: _,
        } = self
        else {
            return false;
        };
        true
    }

    /// Takes it, and leaves one that does nothing.
    pub(crate) fn take(&mut self) -> Self {
        mem::replace(self, Self::new(Work::Marker))
    }
}

/// What a command does. Small, since it is moved.
#[derive(Default)]
pub(crate) enum Work {
    /// Nothing: a signal, a wait, a barrier.
    #[default]
    Marker,
    /// Copies bytes between ranges that may overlap.
    Copy {
        to: Operand,
        from: Operand,
        len: usize,
    },
    /// Copies the rows of a region between two rectangles.
    CopyRect(Box<RectCopy>),
    /// Repeats a pattern; `len` is a multiple of its length.
    Fill {
        to: Operand,
        len: usize,
        pattern: Pattern,
    },
    /// Repeats a pattern in several rows.
    Fill2d(Box<RowFill>),
    /// Calls the host.
    Call(HostFunction),
    /// Calls a function during the submission, with the driver's queue: what that queues there is
    /// the command. Only for queues that have one.
    Native(NativeFunction),
    /// Runs a kernel. There is at least one block, with at least one thread.
    Launch(Box<Launch>),
}

impl Work {
    /// The memory that it uses, as far as it names it.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &Operand> {
        let (to, from) = match self {
            Self::Marker | Self::Call(_) | Self::Native(_) | Self::Launch(_) => (None, None),
            Self::Copy { to, from, .. } => (Some(to), Some(from)),
            Self::CopyRect(copy) => (Some(&copy.to), Some(&copy.from)),
            Self::Fill { to, .. } => (Some(to), None),
            Self::Fill2d(fill) => (Some(&fill.to), None),
        };
        to.into_iter().chain(from)
    }
}

/// Few bytes, as a rule, which take no allocation then.
pub(crate) type Pattern = SmallVec<[u8; 16]>;

/// A copy of rows between two rectangles that don't overlap. There are at least two rows, and as few
/// of them as can be; slice pitches are multiples of the row pitches, as drivers' 3D copies have it,
/// also with one slice.
pub(crate) struct RectCopy {
    pub(crate) to: Operand,
    pub(crate) to_pitches: Pitches,
    pub(crate) from: Operand,
    pub(crate) from_pitches: Pitches,
    pub(crate) region: Region,
}

/// A pattern in at least two rows, which start every `pitch` bytes, more than the width; `width` is a
/// multiple of the pattern's length.
pub(crate) struct RowFill {
    pub(crate) to: Operand,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) pattern: Pattern,
}

/// A kernel with what it is to run on. The shape and, as far as they are known, the sizes of the
/// arguments suit it.
pub(crate) struct Launch {
    pub(crate) kernel: Arc<dyn LoadedKernel>,
    pub(crate) shape: LaunchShape,
    pub(crate) arguments: KernelArguments,
}

/// A function of the host, run in the order of a queue.
pub(crate) type HostFunction =
    Box<dyn FnOnce() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> + Send>;

/// A function that submits to the driver's queue. It is called once, by who submits the command.
pub(crate) type NativeFunction = Box<dyn Fn(usize) -> Result<()> + Send>;

/// An address that a command uses, and what keeps it valid until the command is done (nothing, if
/// the caller promised to).
pub(crate) struct Operand {
    pub(crate) address: Address,
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}
