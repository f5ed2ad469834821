//! Event queries: the properties of an event, its status, and the timestamps of its command.

use super::{Event, Origin};
use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::abi::query::{Answer, LateAnswer, Query};
use crosshandle::event::EventProfile;
use std::ptr;
use unified_runtime_sys::{
    ur_command_t, ur_event_info_t, ur_event_status_t, ur_profiling_info_t, ur_queue_handle_t,
    ur_result_t,
};

entry_points! {
    pub(super) fn get_info(
        event: Handle<Event>,
        name: ur_event_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(event, name, query)
    }

    pub(super) fn get_profiling_info(
        event: Handle<Event>,
        name: ur_profiling_info_t,
        place(size, value, size_ret): LateAnswer,
    ) {
        if name.0 > ur_profiling_info_t::UR_PROFILING_INFO_COMMAND_COMPLETE.0 {
            return Err(Failure::ENUMERATION);
        }
        let time = event.timestamp(name)?;
        place.query(Failure::VALUE)?.value(time)
    }
}

/// Writes a property of an event to the caller's memory.
fn answer(event: &Shared<Event>, name: ur_event_info_t, query: Query<'_>) -> Result<()> {
    match name {
        ur_event_info_t::UR_EVENT_INFO_COMMAND_QUEUE => query.value(event.queue()),
        ur_event_info_t::UR_EVENT_INFO_CONTEXT => query.value(event.context().handle()),
        ur_event_info_t::UR_EVENT_INFO_COMMAND_TYPE => query.value(event.command().0),
        ur_event_info_t::UR_EVENT_INFO_COMMAND_EXECUTION_STATUS => query.value(event.status().0),
        ur_event_info_t::UR_EVENT_INFO_REFERENCE_COUNT => query.value(event.references()),
        _ => Err(Failure::ENUMERATION),
    }
}

impl Event {
    /// Returns the queue of the command that signals the event. Returns null if the event does not
    /// come from a queue's command.
    fn queue(&self) -> ur_queue_handle_t {
        match self.origin() {
            Origin::Command { queue, .. } | Origin::Captured { queue, .. } => queue.handle(),
            Origin::Recorded(_) | Origin::Reusable(_) | Origin::Opened | Origin::Native => {
                ptr::null_mut()
            }
        }
    }

    /// Returns the type of the command that signals the event.
    fn command(&self) -> ur_command_t {
        match self.origin() {
            Origin::Command { command, .. } | Origin::Captured { command, .. } => *command,
            Origin::Recorded(command) => *command,
            Origin::Reusable(_) | Origin::Opened => {
                ur_command_t::UR_COMMAND_EVENTS_WAIT_WITH_BARRIER
            }
            Origin::Native => ur_command_t::UR_COMMAND_EVENTS_WAIT,
        }
    }

    /// Returns the status of the latest command. For an event without timestamps, the status is
    /// never `RUNNING`.
    fn status(&self) -> ur_event_status_t {
        let Ok(inner) = self.inner() else {
            // A captured command itself is never submitted. Only executions of its graph are
            // submitted.
            return ur_event_status_t::UR_EVENT_STATUS_QUEUED;
        };
        match inner.try_wait_submitted() {
            Ok(true) => ur_event_status_t::UR_EVENT_STATUS_COMPLETE,
            Ok(false) if self.has_started() => ur_event_status_t::UR_EVENT_STATUS_RUNNING,
            Ok(false) => ur_event_status_t::UR_EVENT_STATUS_SUBMITTED,
            Err(_) => ur_event_status_t::UR_EVENT_STATUS_ERROR,
        }
    }

    /// Returns whether the latest command is known to have started.
    pub(super) fn has_started(&self) -> bool {
        let profile = self.profile().ok();
        profile.is_some_and(|profile| started(&profile).is_some())
    }

    /// Returns the timestamps of the latest command.
    fn profile(&self) -> Result<EventProfile> {
        let mut profile = self.inner()?.profile()?;
        if let Origin::Command {
            began: Some(began), ..
        } = self.origin()
        {
            let first = began.profile()?;
            (profile.submitted, profile.started) = (first.submitted, first.started);
        }
        Ok(profile)
    }

    /// Returns the time at which the latest command reached a stage.
    ///
    /// # Errors
    /// Returns `PROFILING_INFO_NOT_AVAILABLE` if the event records no timestamps, or if the command
    /// has not reached the stage. Returns `GRAPH_INTERNAL_EVENT` for an event of a captured
    /// command.
    fn timestamp(&self, name: ur_profiling_info_t) -> Result<u64> {
        let none = |message: &'static str| {
            let result = ur_result_t::UR_RESULT_ERROR_PROFILING_INFO_NOT_AVAILABLE;
            Failure::new(result, message)
        };
        self.inner()?;
        let profile = self.profile().map_err(|_| {
            none("this event records no timestamps: neither it nor its queue is profiled")
        })?;
        let is_tag = self.command() == ur_command_t::UR_COMMAND_TIMESTAMP_RECORDING_EXP;
        let time = match name {
            // A tag has one time, at which the device executes it. Until then, the time at which
            // it was submitted is known.
            ur_profiling_info_t::UR_PROFILING_INFO_COMMAND_QUEUED if is_tag => {
                started(&profile).or(profile.submitted)
            }
            _ if is_tag => started(&profile),
            ur_profiling_info_t::UR_PROFILING_INFO_COMMAND_QUEUED
            | ur_profiling_info_t::UR_PROFILING_INFO_COMMAND_SUBMIT => profile.submitted,
            ur_profiling_info_t::UR_PROFILING_INFO_COMMAND_START => started(&profile),
            _ => ended(&profile),
        };
        time.ok_or_else(|| none("the command of this event has not reached this stage"))
    }
}

/// Returns the time at which the latest command started. Returns `None` if the command has not
/// started. Until then, a reusable event keeps the start time of the previous command.
fn started(profile: &EventProfile) -> Option<u64> {
    // If the event has no submission time, no previous command left timestamps, so `started`
    // belongs to the latest command.
    profile
        .started
        .filter(|started| Some(*started) >= profile.submitted)
}

/// Returns the time at which the latest command ended. Returns `None` if the command has not ended.
fn ended(profile: &EventProfile) -> Option<u64> {
    let started = started(profile)?;
    profile.ended.filter(|ended| *ended >= started)
}
