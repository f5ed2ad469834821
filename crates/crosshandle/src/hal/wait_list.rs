//! Wait lists: the signals that commands wait for.

use crate::event_protocol::Promise;
use crate::ipc::EventCore;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

/// A signal of an event that a command waits for.
pub(crate) struct WaitPoint {
    pub(crate) event: Arc<EventCore>,
    pub(crate) number: u64,
    /// Whether the signal will never be submitted, because the event's exporter ended. Set by the
    /// backend.
    pub(crate) is_abandoned: bool,
    /// The promise that the native mirror will notify the device of the signal. Set by the backend.
    pub(crate) promise: Option<Promise>,
}

impl WaitPoint {
    #[inline]
    pub(crate) fn new(event: &Arc<EventCore>, number: u64) -> Self {
        Self {
            event: Arc::clone(event),
            number,
            is_abandoned: false,
            promise: None,
        }
    }
}

/// The signals that a command waits for. There are usually none or one, and these cases need no
/// allocation.
///
/// This is not a `SmallVec`, because commands are moved often, and the compiler moves this enum in
/// registers.
#[derive(Default)]
pub(crate) enum WaitList {
    #[default]
    None,
    One(WaitPoint),
    More(Vec<WaitPoint>),
}

impl WaitList {
    #[inline]
    pub(crate) fn push(&mut self, point: WaitPoint) {
        match self {
            // The usual case is written in place.
            Self::None => *self = Self::One(point),
            Self::One(_) => {
                let mut points = mem::take(self).into_vec();
                points.push(point);
                *self = Self::More(points);
            }
            Self::More(points) => points.push(point),
        }
    }

    /// Drops the waits for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut WaitPoint) -> bool) {
        match self {
            Self::None => {}
            Self::One(point) => {
                if !keep(point) {
                    *self = Self::None;
                }
            }
            Self::More(points) => points.retain_mut(keep),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<WaitPoint> {
        match self {
            Self::None => Vec::new(),
            Self::One(point) => vec![point],
            Self::More(points) => points,
        }
    }
}

impl Deref for WaitList {
    type Target = [WaitPoint];

    #[inline]
    fn deref(&self) -> &[WaitPoint] {
        match self {
            Self::None => &[],
            Self::One(point) => slice::from_ref(point),
            Self::More(points) => points,
        }
    }
}

impl DerefMut for WaitList {
    #[inline]
    fn deref_mut(&mut self) -> &mut [WaitPoint] {
        match self {
            Self::None => &mut [],
            Self::One(point) => slice::from_mut(point),
            Self::More(points) => points,
        }
    }
}

impl FromIterator<WaitPoint> for WaitList {
    fn from_iter<I: IntoIterator<Item = WaitPoint>>(points: I) -> Self {
        let mut all = Self::None;
        points.into_iter().for_each(|point| all.push(point));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{WaitList, WaitPoint};
    use crate::api::context::Context;
    use crate::api::device::Device;

    fn numbers(points: &WaitList) -> Vec<u64> {
        points.iter().map(|point| point.number).collect()
    }

    #[test]
    fn points_keep_their_order_however_many_they_are() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let event = context.create_event().unwrap();
        let mut points = WaitList::default();
        assert!(points.is_empty());
        for count in 1..=3 {
            points.push(WaitPoint::new(event.core(), count));
            assert_eq!(numbers(&points), (1..=count).collect::<Vec<_>>());
        }
        points.iter_mut().for_each(|point| point.number *= 10);
        points.retain(|point| point.number != 20);
        assert_eq!(numbers(&points), [10, 30]);
        let points: WaitList = points.into_vec().into_iter().take(1).collect();
        assert_eq!(numbers(&points), [10]);
    }

    #[test]
    fn one_point_may_be_dropped() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let event = context.create_event().unwrap();
        let mut points: WaitList = [WaitPoint::new(event.core(), 1)].into_iter().collect();
        points.retain(|point| point.number == 1);
        assert_eq!(numbers(&points), [1]);
        points.retain(|_| false);
        assert!(points.is_empty() && points.into_vec().is_empty());
    }
}
