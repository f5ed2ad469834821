//! Submissions: commands, as a backend gets them.

use super::{GraphRun, ImageCopy, LoadedKernel, WaitList};
use crate::error::Result;
use crate::ipc::EventCore;
use crate::types::{Address, KernelArguments, LaunchShape, Pitches, Region};
use smallvec::SmallVec;
use std::any::Any;
use std::mem;
use std::sync::Arc;

/// A command with its waits and its signal.
pub(crate) struct Submission {
    pub(crate) work: Work,
    /// The command starts after all earlier ones, also in an out-of-order queue.
    pub(crate) after_earlier: bool,
    /// All later commands start after this one, also in an out-of-order queue.
    pub(crate) before_later: bool,
    pub(crate) waits: WaitList,
    /// The command calls the program's code, or waits for a command that does: it may fail although no
    /// process ends and the device is well. Its event is marked so before it is submitted.
    pub(crate) may_fail: bool,
    pub(crate) signal: Option<Arc<EventCore>>,
    /// The host can access all memory that the command names.
    pub(crate) is_on_host: bool,
}

impl Submission {
    /// Makes a command without waits and without a signal.
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

    /// Makes a command that does nothing, after all earlier commands and before all later ones.
    #[inline]
    pub(crate) fn barrier() -> Self {
        Self {
            after_earlier: true,
            before_later: true,
            ..Self::new(Work::Marker)
        }
    }

    /// Returns whether nothing that has a drop is left in the command.
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

    /// Takes the command out, and leaves one that does nothing.
    pub(crate) fn take(&mut self) -> Self {
        mem::replace(self, Self::new(Work::Marker))
    }
}

/// The work of a command. Small, since it is moved.
#[derive(Default)]
pub(crate) enum Work {
    /// Does nothing: the command only waits, signals or orders.
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
    /// Copies pixels.
    CopyImage(Box<ImageCopy>),
    /// Repeats a pattern; `len` is a multiple of its length.
    Fill {
        to: Operand,
        len: usize,
        pattern: Pattern,
    },
    /// Repeats a pattern in several rows.
    Fill2d(Box<RowFill>),
    /// Calls a function of the program on a thread of this library.
    Call(HostFunction),
    /// Calls a function during the submission, with the driver's queue: what the function submits
    /// there is the command. Only for queues that have a native view.
    Native(NativeFunction),
    /// Runs a kernel, in at least one block of at least one thread.
    Launch(Box<Launch>),
    /// Runs the nodes of a graph.
    Graph(Box<GraphRun>),
}

impl Work {
    /// Returns the operands that the work names. A launch names none, since its arguments keep theirs, and
    /// neither does a graph, whose nodes do.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &Operand> {
        let (to, from) = match self {
            Self::Marker | Self::Call(_) | Self::Native(_) | Self::Launch(_) | Self::Graph(_) => {
                (None, None)
            }
            Self::Copy { to, from, .. } => (Some(to), Some(from)),
            Self::CopyRect(copy) => (Some(&copy.to), Some(&copy.from)),
            Self::CopyImage(copy) => (copy.to.operand(), copy.from.operand()),
            Self::Fill { to, .. } => (Some(to), None),
            Self::Fill2d(fill) => (Some(&fill.to), None),
        };
        to.into_iter().chain(from)
    }
}

/// The pattern of a fill. Up to 16 bytes take no allocation.
pub(crate) type Pattern = SmallVec<[u8; 16]>;

/// A copy of rows between two rectangles that don't overlap.
///
/// There are at least two rows, and as few as possible: neighbours without a gap are one. Slice
/// pitches are multiples of the row pitches, as drivers' 3D copies want them, also with one slice.
pub(crate) struct RectCopy {
    pub(crate) to: Operand,
    pub(crate) to_pitches: Pitches,
    pub(crate) from: Operand,
    pub(crate) from_pitches: Pitches,
    pub(crate) region: Region,
}

/// A fill of at least two rows, which start every `pitch` bytes, more than the width. The width is a
/// multiple of the pattern's length. Lengths are in bytes.
pub(crate) struct RowFill {
    pub(crate) to: Operand,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) pattern: Pattern,
}

/// A launch of a kernel. The object layer has checked the shape and, as far as the driver says them,
/// the sizes of the arguments.
pub(crate) struct Launch {
    pub(crate) kernel: Arc<dyn LoadedKernel>,
    pub(crate) shape: LaunchShape,
    pub(crate) arguments: KernelArguments,
}

/// A function of the program, called in the order of a queue.
pub(crate) type HostFunction =
    Box<dyn FnOnce() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> + Send>;

/// A function that submits to the driver's queue. The thread that hands the command to the driver calls
/// it, once.
pub(crate) type NativeFunction = Box<dyn Fn(usize) -> Result<()> + Send>;

/// An address that a command uses, and what keeps it valid until the command is done: nothing, if the
/// caller of an unsafe method promised that.
pub(crate) struct Operand {
    pub(crate) address: Address,
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}
