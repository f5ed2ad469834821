//! Submissions: commands in the form that a backend receives.

use super::{BackendKernel, GraphRun, ImageCopy, WaitList};
use crosshandle_ipc::EventCore;
use crosshandle_types::error::Result;
use crosshandle_types::{Address, KernelArguments, LaunchShape, Pitches, Region};
use smallvec::SmallVec;
use std::any::Any;
use std::mem;
use std::sync::Arc;

/// A command with its waits and its signal.
pub struct Submission {
    pub work: Work,
    /// Whether the command starts after all earlier ones, even in an out-of-order queue.
    pub after_earlier: bool,
    /// Whether all later commands start after this one, even in an out-of-order queue.
    pub before_later: bool,
    pub waits: WaitList,
    /// Whether the command calls the program's code, or waits for a command that does. Such a
    /// command may fail although no process has ended and the device works. Its event is marked
    /// accordingly before the submission.
    pub may_fail: bool,
    pub signal: Option<Arc<EventCore>>,
    /// Whether the host can access all memory that the command names.
    pub is_on_host: bool,
}

impl Submission {
    /// Creates a command without waits and without a signal.
    #[inline]
    pub fn new(work: Work) -> Self {
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

    /// Creates a command without work, which runs after all earlier commands and before all later
    /// ones.
    #[inline]
    pub fn barrier() -> Self {
        Self {
            after_earlier: true,
            before_later: true,
            ..Self::new(Work::Marker)
        }
    }

    /// Returns whether the command contains nothing that needs to be dropped.
    #[inline]
    pub fn is_taken(&self) -> bool {
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

    /// Takes the command out, and leaves a command without work in its place.
    pub fn take(&mut self) -> Self {
        mem::replace(self, Self::new(Work::Marker))
    }
}

/// The work of a command. The type is small, because it is moved often.
#[derive(Default)]
pub enum Work {
    /// No work: the command only waits, signals or orders.
    #[default]
    Marker,
    /// A copy of bytes between ranges that may overlap.
    Copy {
        to: Operand,
        from: Operand,
        len: usize,
    },
    /// A copy of a region's rows between two rectangles.
    CopyRect(Box<RectCopy>),
    /// A copy of pixels.
    CopyImage(Box<ImageCopy>),
    /// A fill with a repeated pattern. `len` is a multiple of the pattern's length.
    Fill {
        to: Operand,
        len: usize,
        pattern: Pattern,
    },
    /// A fill of several rows with a repeated pattern.
    Fill2d(Box<RowFill>),
    /// A call of the program's function on a thread of this library.
    Call(HostFunction),
    /// A call of a function with the driver's queue during the submission. The commands that the
    /// function submits to that queue are the command's work. Only for queues that have a native
    /// view.
    Native(NativeFunction),
    /// A launch of a kernel with at least one block of at least one thread.
    Launch(Box<Launch>),
    /// A run of a graph's nodes.
    Graph(Box<GraphRun>),
    /// Commands that the program recorded in a graph of the driver. Only nodes of driver graphs
    /// have this work.
    Recorded(Arc<dyn Any + Send + Sync>),
}

impl Work {
    /// Returns the operands that the work names. A launch names none, because its arguments keep
    /// their own memory. A graph names none either, because its nodes keep theirs. The memory of
    /// recorded commands is unknown.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> {
        let (to, from) = match self {
            Self::Marker
            | Self::Call(_)
            | Self::Native(_)
            | Self::Launch(_)
            | Self::Graph(_)
            | Self::Recorded(_) => (None, None),
            Self::Copy { to, from, .. } => (Some(to), Some(from)),
            Self::CopyRect(copy) => (Some(&copy.to), Some(&copy.from)),
            Self::CopyImage(copy) => (copy.to.operand(), copy.from.operand()),
            Self::Fill { to, .. } => (Some(to), None),
            Self::Fill2d(fill) => (Some(&fill.to), None),
        };
        to.into_iter().chain(from)
    }
}

/// The pattern of a fill. Up to 16 bytes need no allocation.
pub type Pattern = SmallVec<[u8; 16]>;

/// A copy of rows between two rectangles that don't overlap.
///
/// There are at least two rows, and as few as possible: adjacent rows without a gap are merged.
/// Slice pitches are multiples of the row pitches, as the 3D copies of drivers require, even if
/// there is only one slice.
pub struct RectCopy {
    pub to: Operand,
    pub to_pitches: Pitches,
    pub from: Operand,
    pub from_pitches: Pitches,
    pub region: Region,
}

/// A fill of at least two rows, whose starts are `pitch` bytes apart. The pitch is larger than the
/// width. The width is a multiple of the pattern's length. Both are in bytes.
pub struct RowFill {
    pub to: Operand,
    pub pitch: usize,
    pub width: usize,
    pub rows: usize,
    pub pattern: Pattern,
}

/// A launch of a kernel. The object layer has checked the shape. It has also checked the sizes of
/// the arguments, if the driver reports the expected sizes.
pub struct Launch {
    pub kernel: Arc<dyn BackendKernel>,
    pub shape: LaunchShape,
    pub arguments: KernelArguments,
}

/// A function of the program that is called in the order of a queue.
pub enum HostFunction {
    /// A function that is called at most once.
    Once(Box<dyn FnOnce() -> FunctionResult + Send>),
    /// A function that is called any number of times, such as one that a graph has recorded.
    Repeatable(RepeatableFunction),
}

/// A function of the program that can be called any number of times, on any thread.
pub type RepeatableFunction = Arc<dyn Fn() -> FunctionResult + Send + Sync>;

/// The result of a function of the program.
pub type FunctionResult = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A function that submits to the driver's queue. The thread that hands the command to the driver
/// calls it once.
pub(crate) type NativeFunction = Box<dyn Fn(usize) -> Result<()> + Send>;

/// An address that a command uses, and the object that keeps it valid until the command has
/// finished. There is no such object if the caller of an unsafe method promised to keep the address
/// valid.
pub struct Operand {
    pub address: Address,
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}
