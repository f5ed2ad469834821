//! Events: events of commands, reusable events, and events opened from handles.
//!
//! `create` creates reusable events, and `native` handles native events. `info` implements queries,
//! `callback` calls the program back, and `reusable` tracks the events that commands may signal
//! again.

mod callback;
mod create;
mod info;
mod native;
pub(crate) mod reusable;

use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handles, Object, Ref, Shared, release, retain};
use crate::context::Context;
use crate::enqueue::graph::capture::{CapturedNode, internal_event};
use crate::queue::Queue;
use unified_runtime_sys::{
    ur_command_t, ur_event_dditable_t, ur_event_exp_dditable_t, ur_event_handle_t,
    ur_event_handle_t_, ur_result_t,
};

pub(crate) struct Event {
    context: Ref<Context>,
    /// The library's event, or `None` if the event stands for a node of a capture.
    inner: Option<crosshandle::Event>,
    origin: Origin,
    registration: reusable::Registration,
    natives: native::Natives,
}

#[derive(Clone)]
pub(crate) enum Origin {
    /// A command, which signals the event once.
    Command {
        queue: Ref<Queue>,
        command: ur_command_t,
        /// The event that is signalled when the command starts, if the driver runs the command in
        /// several parts.
        began: Option<crosshandle::Event>,
    },
    /// A captured command. The event stands for its node and is never signalled.
    Captured {
        queue: Ref<Queue>,
        command: ur_command_t,
        node: CapturedNode,
    },
    /// A command of a command buffer, which signals the event in each run.
    Recorded(ur_command_t),
    /// A call of `urEventCreateExp`. Commands signal the event repeatedly.
    Reusable(Kind),
    /// A handle of an event that another process or this one shares.
    Opened,
    /// A native handle: an event of the driver, or 0 for a completed event.
    Native,
}

/// The purpose of a reusable event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An event without a particular purpose. It records timestamps if a profiling queue signals
    /// it.
    Plain,
    /// An event that always records timestamps.
    Profiling,
    /// An event that can be shared with other processes.
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

    /// Creates an event that stands for a node of a capture, and returns its handle.
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
        Shared::new(Self {
            context,
            inner,
            origin,
            registration: reusable::Registration::default(),
            natives: native::Natives::default(),
        })
    }

    /// Returns the context in which the event was created or opened.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the library's event.
    ///
    /// # Errors
    /// Returns `GRAPH_INTERNAL_EVENT` for an event that stands for a node of a capture.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&crosshandle::Event> {
        self.inner.as_ref().ok_or_else(internal_event)
    }

    /// Returns the node that the event stands for, if it was captured.
    #[inline]
    pub(crate) fn node(&self) -> Option<&CapturedNode> {
        match &self.origin {
            Origin::Captured { node, .. } => Some(node),
            _ => None,
        }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Decides whether the next signal of a reusable event records timestamps. Call it before a
    /// queue signals the event.
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

/// Waits for the latest signal of each event, even if some signals fail.
fn wait_for_all<'a>(events: impl Iterator<Item = &'a Shared<Event>>) -> Result<()> {
    let mut result = Ok(());
    let mut unfinished = Vec::new();
    for event in events {
        let inner = match event.inner() {
            Ok(inner) => inner,
            Err(failure) => {
                result = result.and(Err(failure));
                continue;
            }
        };
        match inner.try_wait_submitted() {
            Ok(true) => {}
            Ok(false) => unfinished.push((inner, inner.submitted())),
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
