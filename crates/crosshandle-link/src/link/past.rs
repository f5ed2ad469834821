//! The results of an event's finished signals (completed or failed), for a report to the peer.

use crate::control::message::MAX_FAILURES;
use crate::tuning::MAX_LOOKED_AT;
use crosshandle::{Error, Event};
use std::time::Duration;

/// Maximum time for which the link's thread waits until another thread has abandoned an event.
const ABANDONMENT_TIMEOUT: Duration = Duration::from_millis(100);

/// The results of consecutive finished signals of one event.
pub(super) struct Past {
    /// Runs of failed signals: the first number, the count, and the reason.
    pub(super) failures: Vec<(u64, u32, String)>,
    /// The last signal that this report covers.
    pub(super) reached: u64,
    /// Whether the event was abandoned, so that no signals follow signal `reached`.
    pub(super) is_abandoned: bool,
}

impl Past {
    /// Examines the finished signals from `from` to `completed`. Stops earlier if there are more
    /// runs of failures than one message can report.
    ///
    /// If `may_wait` is true, this function may wait for another thread that is abandoning the
    /// event. It then sets `may_wait` to false.
    pub(super) fn of(event: &Event, from: u64, completed: u64, may_wait: &mut bool) -> Self {
        let completed = wait_for_abandonment(event, completed, may_wait);
        let abandoned_from = abandoned_from(event, from, completed);
        let last = abandoned_from.map_or(completed, |first| first - 1);
        let mut past = Self {
            failures: Vec::new(),
            reached: last,
            is_abandoned: abandoned_from.is_some(),
        };
        // Do not examine the signals before `looked_from` one by one. Treat all of them as failed
        // if the first and the last have failed.
        let looked_from = from.max(last.saturating_sub(MAX_LOOKED_AT) + 1);
        if looked_from > from
            && let Some(why) = failure(event, from)
        {
            let count = match failure(event, looked_from) {
                Some(_) => u32::try_from(looked_from - from).unwrap_or(u32::MAX),
                None => 1,
            };
            past.failures.push((from, count, why.to_string()));
        }
        for number in looked_from..=last {
            let Some(error) = failure(event, number) else {
                continue;
            };
            let why = error.to_string();
            let is_full = past.failures.len() == MAX_FAILURES;
            match past.failures.last_mut() {
                Some((first, count, same))
                    if *first + u64::from(*count) == number
                        && *count < u32::MAX
                        && *same == why =>
                {
                    *count += 1;
                }
                _ if is_full => {
                    past.reached = number - 1;
                    past.is_abandoned = false;
                    break;
                }
                _ => past.failures.push((number, 1, why)),
            }
        }
        past
    }
}

/// Returns the error of a finished signal, or `None` if the signal succeeded.
fn failure(event: &Event, number: u64) -> Option<Error> {
    event.try_wait_value(number).err()
}

/// Returns the last finished signal. If another thread seems to be abandoning the event, first
/// waits until that is done. This happens only once per event. Otherwise, a process that finishes
/// signals one by one could block the link's thread.
///
/// An abandonment first takes all signal numbers, and then fails these signals in a few steps.
/// Until the last step, it looks like the death of a process with a few pending signals.
fn wait_for_abandonment(event: &Event, completed: u64, may_wait: &mut bool) -> u64 {
    let taken = event.submitted();
    if !*may_wait || taken < completed.saturating_add(MAX_LOOKED_AT) || !is_dead(event, completed) {
        return completed;
    }
    *may_wait = false;
    // Only the wait matters, not the signal's result.
    let _ = event.wait_value_timeout(taken, ABANDONMENT_TIMEOUT);
    event.completed().max(completed)
}

/// Returns `true` if the process that submitted a signal has ended, or the event is abandoned.
fn is_dead(event: &Event, number: u64) -> bool {
    matches!(failure(event, number), Some(Error::PeerDied(_)))
}

/// Returns the first signal that failed because the event was abandoned. The number of failed
/// signals distinguishes an abandonment from the death of a process, which has fewer pending
/// signals.
fn abandoned_from(event: &Event, from: u64, completed: u64) -> Option<u64> {
    if completed < from || completed - from < MAX_LOOKED_AT || !is_dead(event, completed) {
        return None;
    }
    // A binary search finds a signal that has failed and after which all signals have failed.
    // Earlier signals may have failed too, because another process died.
    let (mut alive, mut dead) = (from - 1, completed);
    while dead - alive > 1 {
        let middle = alive + (dead - alive) / 2;
        match is_dead(event, middle) {
            true => dead = middle,
            false => alive = middle,
        }
    }
    (completed - dead >= MAX_LOOKED_AT).then_some(dead)
}
