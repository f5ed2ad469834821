//! Events: of commands, reusable ones, and those opened from handles.
//!
//! `create` makes reusable ones, `native` those of native handles; `info` answers what they are and
//! how they stand, `callback` calls back when they have come so far, and `reusable` knows which of
//! them commands may signal again.

mod callback;
mod create;
mod info;
mod native;
pub(crate) mod reusable;

use crate::boundary::{enter, not_null};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared, from_handles, release, retain};
use crate::queue::Queue;
use unified_runtime_sys::{
    ur_command_t, ur_event_dditable_t, ur_event_exp_dditable_t, ur_event_handle_t,
    ur_event_handle_t_, ur_result_t,
};

/// An event.
pub(crate) struct Event {
    context: Ref<Context>,
    inner: crosshandle::Event,
    origin: Origin,
    registration: reusable::Registration,
    natives: native::Natives,
}

/// Where an event comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    /// A command, which signals it once.
    Command {
        queue: Ref<Queue>,
        command: ur_command_t,
    },
    /// `urEventCreateExp`: commands signal it again and again.
    Reusable(Kind),
    /// A handle of another process's event, or of one of this process.
    Opened,
    /// A native handle: an event of the driver; or 0, which is nothing and therefore complete.
    Native,
}

/// What a reusable event was made for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing in particular. It takes timestamps when a queue that does so signals it.
    Plain,
    /// To take timestamps, whatever queue signals it.
    Profiling,
    /// To be shared.
    Shared,
}

impl Object for Event {
    type Opaque = ur_event_handle_t_;
}

impl Event {
    /// Makes an event for the caller.
    pub(crate) fn hand_out(
        context: Ref<Context>,
        inner: crosshandle::Event,
        origin: Origin,
    ) -> ur_event_handle_t {
        let event = Shared::new(Self {
            context,
            inner,
            origin,
            registration: reusable::Registration::default(),
            natives: native::Natives::default(),
        });
        if matches!(event.origin, Origin::Reusable(_) | Origin::Opened) {
            reusable::register(&event);
        }
        Shared::hand_out(event)
    }

    /// The context it was made or opened in.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// The library's event.
    #[inline]
    pub(crate) fn inner(&self) -> &crosshandle::Event {
        &self.inner
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// To be called before a reusable event is signalled: whether that signal takes timestamps
    /// depends on the event and the queue.
    #[inline]
    pub(crate) fn prepare_signal(&self, queue: &Queue) {
        if let Origin::Reusable(Kind::Plain) = self.origin {
            self.inner.set_profiling(queue.is_profiling());
        }
    }
}

unsafe extern "C" fn wait(count: u32, events: *const ur_event_handle_t) -> ur_result_t {
    enter(|| {
        if count == 0 {
            return Err(Failure::VALUE);
        }
        not_null(events)?;
        let missing = ur_result_t::UR_RESULT_ERROR_INVALID_EVENT;
        // SAFETY: the caller passes this many events' handles.
        let events = unsafe { from_handles::<Event>(events, count, missing) }?;
        wait_for_all(events)
    })
}

/// Waits for the latest signals that there are now, and for all of them also if some fail.
fn wait_for_all<'a>(events: impl Iterator<Item = &'a Shared<Event>>) -> Result<()> {
    let mut result = Ok(());
    let mut unfinished = Vec::new();
    for event in events {
        match event.inner.try_wait() {
            Ok(true) => {}
            Ok(false) => unfinished.push((event, event.inner.submitted())),
            Err(error) => result = result.and(Err(error)),
        }
    }
    for (event, value) in unfinished {
        result = result.and(event.inner.wait_value(value));
    }
    Ok(result?)
}

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

pub(crate) const EXP_TABLE: ur_event_exp_dditable_t = ur_event_exp_dditable_t {
    pfnCreateExp: Some(create::create),
};
