//! Failures and deaths that cross a link.

use super::*;

/// Creates a link with two honest sides, and returns both sides.
fn honest(owner: &Owner) -> (Link, Link) {
    let address = owner.listener.local_address();
    let link = Link::connect(address, &owner.context, &owner.options).unwrap();
    let other = owner.listener.accept_timeout(LIMIT).unwrap();
    (link, other)
}

#[test]
fn signals_that_failed_have_failed_at_the_other_side() {
    let owner = Owner::new();
    let (link, _other) = honest(&owner);
    let event = owner.context.create_event().unwrap();
    let handle = event.handle().unwrap();
    let early = link.open_event(&handle).unwrap();
    const MANY: u64 = 3 * MAX_LOOKED_AT;
    event.fail_value(1000, "no").unwrap();
    assert!(early.mirror().wait_value_timeout(1000, LIMIT).is_err());
    event.fail_value(MANY, "no again").unwrap();
    assert!(early.mirror().wait_value_timeout(MANY, LIMIT).is_err());
    event.signal().unwrap();
    early.mirror().wait_value_timeout(MANY + 1, LIMIT).unwrap();
    let late = link.open_event(&handle).unwrap();
    late.mirror().wait_value_timeout(MANY + 1, LIMIT).unwrap();
    for number in 1..=MANY {
        for remote in [&early, &late] {
            let result = remote.mirror().try_wait_value(number);
            assert!(result.is_err(), "{number}");
        }
    }
}

#[test]
fn an_event_that_was_given_up_is_given_up_over_every_link() {
    let owner = Owner::new();
    let (first, other) = honest(&owner);
    let (second, _second) = honest(&owner);
    let event = owner.context.create_event().unwrap();
    let handle = event.handle().unwrap();
    let remote = first.open_event(&handle).unwrap();
    let relayed = second
        .open_event(&remote.mirror().handle().unwrap())
        .unwrap();
    event.signal().unwrap();
    relayed.mirror().wait_value_timeout(1, LIMIT).unwrap();
    let is_over = |event: &crosshandle::Event| {
        event.try_wait_value(1).unwrap();
        let error = event.wait_value_timeout(2, LIMIT).unwrap_err();
        assert!(error.is_peer_dead(), "{error}");
        let error = event.wait_value_timeout(1 << 28, LIMIT).unwrap_err();
        assert!(error.is_peer_dead(), "{error}");
    };
    // End the link between the first and the second host.
    drop(other);
    first.session().end(first.session().ended("a test"), true);
    is_over(remote.mirror());
    is_over(relayed.mirror());
    // The event is opened once before it is abandoned and once after.
    let late = second
        .open_event(&remote.mirror().handle().unwrap())
        .unwrap();
    is_over(late.mirror());
    let open = second.open_event(&handle).unwrap();
    event.abandon().unwrap();
    is_over(open.mirror());
}
