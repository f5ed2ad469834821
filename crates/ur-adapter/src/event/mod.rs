//! Events of commands, reusable events, and events that were opened from handles.
//!
//! - `create`: reusable events.
//! - `native`: native handles of events.
//! - `info`: queries.
//! - `callback`: callbacks.
//! - `reusable`: the table of events that commands may signal repeatedly.

mod callback;
mod create;
mod info;
mod native;
pub(crate) mod reusable;

use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handles, Object, Ref, Shared, release, retain};
use crate::context::Context;
use crate::enqueue::graph::capture::{CapturedNode, internal_event};
use crate::queue::Queue;
use crosshandle::graph::SignalCursor;
use std::sync::atomic::{AtomicBool, Ordering};
use unified_runtime_sys::{
    ur_command_t, ur_event_dditable_t, ur_event_exp_dditable_t, ur_event_handle_t,
    ur_event_handle_t_, ur_result_t,
};

/// A UR event handle.
pub(crate) struct Event {
    context: Ref<Context>,
    /// The event in `crosshandle`. `None` if this event represents a node of a capture.
    inner: Option<crosshandle::Event>,
    /// The signals for which recorded commands of this process have waited, if other processes may
    /// signal the event.
    cursor: Option<SignalCursor>,
    origin: Origin,
    captured: CapturedSignal,
    registration: reusable::Registration,
    natives: native::Natives,
}

/// The node of the latest signal of a reusable event, if a capture that is in progress records that
/// signal.
#[derive(Default)]
struct CapturedSignal {
    /// Whether there may be a node. Each wait reads this flag, because acquiring the lock would
    /// cost more. Relaxed accesses suffice: a program that orders its calls also orders these
    /// accesses.
    is_set: AtomicBool,
    /// The lock of the capture is acquired while this lock is held.
    node: Lock<Option<CapturedNode>>,
}

impl CapturedSignal {
    fn set(&self, node: Option<CapturedNode>) {
        let mut place = self.node.lock();
        self.is_set.store(node.is_some(), Ordering::Relaxed);
        *place = node;
    }

    #[cold]
    fn node(&self) -> Option<CapturedNode> {
        let mut place = self.node.lock();
        // After the capture, the event has its signals outside again.
        if place.as_ref().is_some_and(CapturedNode::is_over) {
            self.is_set.store(false, Ordering::Relaxed);
            *place = None;
        }
        place.clone()
    }
}

/// The origin of an event, which determines the commands that may signal it.
#[derive(Clone)]
pub(crate) enum Origin {
    /// The event belongs to one command, which signals it once.
    Command {
        queue: Ref<Queue>,
        command: ur_command_t,
        /// The event that is signalled when the command starts. `None` unless the driver runs the
        /// command in several parts.
        began: Option<crosshandle::Event>,
    },
    /// The event belongs to a captured command. It represents the command's node in the graph, and
    /// is never signalled.
    Captured {
        queue: Ref<Queue>,
        command: ur_command_t,
        node: CapturedNode,
    },
    /// The event belongs to a command in a command buffer. The command signals it in each run.
    Recorded(ur_command_t),
    /// The event was created by `urEventCreateExp`. Commands may signal it repeatedly.
    Reusable(Kind),
    /// The event was opened from a handle, which this process or another process exported.
    Opened,
    /// The event was created from a native handle: an event of the driver, or 0 for a completed
    /// event.
    Native,
}

/// The purpose for which a reusable event was created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No particular purpose. The event records timestamps if a profiling queue signals it.
    Plain,
    /// Profiling. The event always records timestamps.
    Profiling,
    /// Sharing with other processes.
    Shared,
}

impl Object for Event {
    type Opaque = ur_event_handle_t_;
    const NULL_IN_LIST: ur_result_t = ur_result_t::UR_RESULT_ERROR_INVALID_EVENT;
}

impl Event {
    /// Creates an event, and returns its handle.
    pub(crate) fn hand_out(
        context: Ref<Context>,
        inner: crosshandle::Event,
        origin: Origin,
    ) -> ur_event_handle_t {
        let event = Self::create(context, Some(inner), origin);
        if matches!(event.origin, Origin::Reusable(_) | Origin::Opened) {
            reusable::register(&event);
        }
        Shared::hand_out(event)
    }

    /// Creates an event that represents a node of a capture, and returns the event's handle.
    pub(crate) fn hand_out_captured(
        queue: Ref<Queue>,
        command: ur_command_t,
        node: CapturedNode,
    ) -> ur_event_handle_t {
        let context = queue.context().clone();
        let origin = Origin::Captured {
            queue,
            command,
            node,
        };
        Shared::hand_out(Self::create(context, None, origin))
    }

    fn create(
        context: Ref<Context>,
        inner: Option<crosshandle::Event>,
        origin: Origin,
    ) -> Ref<Self> {
        let is_shared = matches!(origin, Origin::Reusable(Kind::Shared) | Origin::Opened);
        let cursor = inner.as_ref().filter(|_| is_shared).map(SignalCursor::new);
        Shared::new(Self {
            context,
            inner,
            cursor,
            origin,
            captured: CapturedSignal::default(),
            registration: reusable::Registration::default(),
            natives: native::Natives::default(),
        })
    }

    /// Returns the context in which the event was created or opened.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the event in `crosshandle`.
    ///
    /// # Errors
    /// Returns `GRAPH_INTERNAL_EVENT` if this event represents a node of a capture.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&crosshandle::Event> {
        self.inner.as_ref().ok_or_else(internal_event)
    }

    /// Returns the graph node that this event represents. Returns `None` unless the event's command
    /// was captured, or the latest signal of a reusable event belongs to a capture in progress.
    #[inline]
    pub(crate) fn node(&self) -> Option<CapturedNode> {
        match &self.origin {
            Origin::Captured { node, .. } => Some(node.clone()),
            _ if self.captured.is_set.load(Ordering::Relaxed) => self.captured.node(),
            _ => None,
        }
    }

    /// Makes a reusable event represent a node until the capture ends, or until it is signalled
    /// again. `None` makes it represent its signals outside of captures.
    #[inline]
    pub(crate) fn set_node(&self, node: Option<CapturedNode>) {
        if node.is_some() || self.captured.is_set.load(Ordering::Relaxed) {
            self.captured.set(node);
        }
    }

    /// Returns whether other processes may signal the event.
    pub(crate) fn is_shared(&self) -> bool {
        self.cursor.is_some()
    }

    /// Returns the cursor with which recorded commands wait for the event. Returns `None` if no
    /// other process may signal the event.
    pub(crate) fn cursor(&self) -> Option<&SignalCursor> {
        self.cursor.as_ref()
    }

    /// Returns the latest signal if a command or a host that waits for it now has to wait. The next
    /// recorded wait takes a later signal.
    ///
    /// # Errors
    /// Returns the error of the latest signal if that signal has failed.
    #[inline]
    pub(crate) fn pending(&self, inner: &crosshandle::Event) -> crosshandle::Result<Option<u64>> {
        let Some(cursor) = &self.cursor else {
            let is_done = inner.try_wait_submitted()?;
            return Ok((!is_done).then(|| inner.submitted()));
        };
        // The position is that of the awaited signal, even if a later one is submitted meanwhile.
        let latest = inner.submitted();
        cursor.skip_to(latest);
        let is_done = latest == 0 || inner.try_wait_value(latest)?;
        Ok((!is_done).then_some(latest))
    }

    /// Returns `inner` if a host can wait for the event now.
    ///
    /// # Errors
    /// Returns `GRAPH_INTERNAL_EVENT` if the latest signal belongs to a capture in progress.
    #[inline]
    fn outside<'a>(&self, inner: &'a crosshandle::Event) -> Result<&'a crosshandle::Event> {
        match self.node() {
            Some(_) => Err(internal_event()),
            None => Ok(inner),
        }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sets whether the next signal of a reusable event records timestamps. Call this function
    /// before a command on `queue` signals the event.
    #[inline]
    pub(crate) fn prepare_signal(&self, queue: &Queue) {
        if let (Origin::Reusable(Kind::Plain), Some(inner)) = (&self.origin, &self.inner) {
            inner.set_profiling(queue.is_profiling());
        }
    }
}

entry_points! {
    fn wait(events(count, first): Handles<Event>) {
        if events.is_empty() {
            return Err(Failure::VALUE);
        }
        wait_for_all(events.iter())
    }
}

/// Waits for the latest signal of each event. The function waits for all of them, even if some
/// signals fail.
fn wait_for_all<'a>(events: impl Iterator<Item = &'a Shared<Event>>) -> Result<()> {
    let mut result = Ok(());
    let mut unfinished = Vec::new();
    for event in events {
        let inner = match event.inner().and_then(|inner| event.outside(inner)) {
            Ok(inner) => inner,
            Err(failure) => {
                result = result.and(Err(failure));
                continue;
            }
        };
        match event.pending(inner) {
            Ok(None) => {}
            Ok(Some(latest)) => unfinished.push((inner, latest)),
            Err(error) => result = result.and(Err(error.into())),
        }
    }
    for (inner, value) in unfinished {
        result = result.and(inner.wait_value(value).map_err(Failure::from));
    }
    result
}

/// The entry points for events.
pub(crate) const TABLE: ur_event_dditable_t = ur_event_dditable_t {
    pfnGetInfo: Some(info::get_info),
    pfnGetProfilingInfo: Some(info::get_profiling_info),
    pfnWait: Some(wait),
    pfnRetain: Some(retain::<Event>),
    pfnRelease: Some(release::<Event>),
    pfnGetNativeHandle: Some(native::get_native_handle),
    pfnCreateWithNativeHandle: Some(native::create_with_native_handle),
    pfnSetCallback: Some(callback::set),
};

/// The experimental entry points for events.
pub(crate) const EXP_TABLE: ur_event_exp_dditable_t = ur_event_exp_dditable_t {
    pfnCreateExp: Some(create::create),
};
