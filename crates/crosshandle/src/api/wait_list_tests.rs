//! Tests of the backends' wait lists, which need events.

use crate::api::context::Context;
use crate::api::device::Device;
use crosshandle_hal::{WaitList, WaitPoint};

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
