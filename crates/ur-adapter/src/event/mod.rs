//! Events: of commands, reusable ones, and those opened from handles.
//!
//! `create` makes reusable ones, `native` those of native handles; `info` answers queries, `callback`
//! calls the program back, and `reusable` knows which events commands may signal again.

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

/// An event.
pub(crate) struct Event {
    context: Ref<Context>,
    /// There is none for a node of a capture.
    inner: Option<crosshandle::Event>,
    origin: Origin,
    registration: reusable::Registration,
    natives: native::Natives,
}

/// The origin of an event.
#[derive(Clone)]
pub(crate) enum Origin {
    /// A command, which signals it once.
    Command {
        queue: Ref<Queue>,
        command: ur_command_t,
        /// The event of a command's beginning, if the driver runs it as several.
        began: Option<crosshandle::Event>,
    },
    /// A command that was captured: the event stands for its node, and nothing ever signals it.
    Captured {
        queue: Ref<Queue>,
        command: ur_command_t,
        node: CapturedNode,
    },
    /// A command of a command buffer, which signals it at each run.
    Recorded(ur_command_t),
    /// `urEventCreateExp`: commands signal it again and again.
    Reusable(Kind),
    /// A handle of an event of another process, or of this one.
    Opened,
    /// A native handle: an event of the driver, or 0, which stands for an event that is complete.
    Native,
}

/// The purpose of a reusable event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No purpose in particular: the event takes timestamps when a queue that does so signals it.
    Plain,
    /// Taking timestamps, whatever queue signals it.
    Profiling,
    /// Being shared with other processes.
    Shared,
}

impl Object for Event {
    type Opaque = ur_event_handle_t_;
    const NULL_IN_LIST: ur_result_t = ur_result_t::UR_RESULT_ERROR_INVALID_EVENT;
}

impl Event {
    /// Returns a handle for an event that is new to UR.
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

    /// Returns a handle for an event that stands for a node of a capture.
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

    /// Returns the context that the event was made or opened in.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the library's event.
    ///
    /// # Errors
    /// `GRAPH_INTERNAL_EVENT` for an event that stands for a node of a capture.
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

    /// Returns where the event comes from.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Settles, before a reusable event is signalled by a queue, whether that signal takes timestamps.
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

/// Waits for the latest signals that there are now, for all of them even if some fail.
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

/// The events' table.
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

/// The events' experimental table.
pub(crate) const EXP_TABLE: ur_event_exp_dditable_t = ur_event_exp_dditable_t {
    pfnCreateExp: Some(create::create),
};
