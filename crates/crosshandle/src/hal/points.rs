//! What commands wait for.

use crate::event_protocol::Promise;
use crate::ipc::EventCore;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

/// One signal of an event, to be waited for.
pub(crate) struct Point {
    pub(crate) event: Arc<EventCore>,
    pub(crate) number: u64,
    /// The signal will never be submitted: the event's exporter ended. Set by the backend.
    pub(crate) is_abandoned: bool,
    /// The driver's own event tells the device of it. Set by the backend.
    pub(crate) promise: Option<Promise>,
}

impl Point {
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

/// All that a command waits for: as a rule nothing or one, which takes no allocation. No
/// `SmallVec`, since commands are moved, and the compiler moves this one in registers.
#[derive(Default)]
pub(crate) enum Points {
    #[default]
    None,
    One(Point),
    More(Vec<Point>),
}

impl Points {
    #[inline]
    pub(crate) fn push(&mut self, point: Point) {
        match self {
            // As a rule: written in place.
            Self::None => *self = Self::One(point),
            Self::One(_) => {
                let mut points = mem::take(self).into_vec();
                points.push(point);
                *self = Self::More(points);
            }
            Self::More(points) => points.push(point),
        }
    }

    /// Drops those that `keep` doesn't want.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut Point) -> bool) {
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

    pub(crate) fn into_vec(self) -> Vec<Point> {
        match self {
            Self::None => Vec::new(),
            Self::One(point) => vec![point],
            Self::More(points) => points,
        }
    }
}

impl Deref for Points {
    type Target = [Point];

    #[inline]
    fn deref(&self) -> &[Point] {
        match self {
            Self::None => &[],
            Self::One(point) => slice::from_ref(point),
            Self::More(points) => points,
        }
    }
}

impl DerefMut for Points {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Point] {
        match self {
            Self::None => &mut [],
            Self::One(point) => slice::from_mut(point),
            Self::More(points) => points,
        }
    }
}

impl FromIterator<Point> for Points {
    fn from_iter<I: IntoIterator<Item = Point>>(points: I) -> Self {
        let mut all = Self::None;
        points.into_iter().for_each(|point| all.push(point));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{Point, Points};
    use crate::api::context::Context;
    use crate::api::device::Device;

    fn numbers(points: &Points) -> Vec<u64> {
        points.iter().map(|point| point.number).collect()
    }

    #[test]
    fn points_keep_their_order_however_many_they_are() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let event = context.create_event().unwrap();
        let mut points = Points::default();
        assert!(points.is_empty());
        for count in 1..=3 {
            points.push(Point::new(event.core(), count));
            assert_eq!(numbers(&points), (1..=count).collect::<Vec<_>>());
        }
        points.iter_mut().for_each(|point| point.number *= 10);
        points.retain(|point| point.number != 20);
        assert_eq!(numbers(&points), [10, 30]);
        let points: Points = points.into_vec().into_iter().take(1).collect();
        assert_eq!(numbers(&points), [10]);
    }

    #[test]
    fn one_point_may_be_dropped() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let event = context.create_event().unwrap();
        let mut points: Points = [Point::new(event.core(), 1)].into_iter().collect();
        points.retain(|point| point.number == 1);
        assert_eq!(numbers(&points), [1]);
        points.retain(|_| false);
        assert!(points.is_empty() && points.into_vec().is_empty());
    }
}
