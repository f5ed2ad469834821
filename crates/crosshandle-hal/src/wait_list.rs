//! Wait lists: the signals that commands wait for.

use crosshandle_events::Promise;
use crosshandle_ipc::EventCore;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

/// A signal of an event that a command waits for.
pub struct WaitPoint {
    pub event: Arc<EventCore>,
    pub number: u64,
    /// Whether the signal will never be submitted, because the event's exporter ended. Set by the
    /// backend.
    pub is_abandoned: bool,
    /// The promise that the native mirror will notify the device of the signal. Set by the backend.
    pub promise: Option<Promise>,
}

impl WaitPoint {
    #[inline]
    pub fn new(event: &Arc<EventCore>, number: u64) -> Self {
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
pub enum WaitList {
    #[default]
    None,
    One(WaitPoint),
    More(Vec<WaitPoint>),
}

impl WaitList {
    #[inline]
    pub fn push(&mut self, point: WaitPoint) {
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
    pub fn retain(&mut self, mut keep: impl FnMut(&mut WaitPoint) -> bool) {
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

    pub fn into_vec(self) -> Vec<WaitPoint> {
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
