//! Connections that are lost and replaced.

use super::*;

/// Connections are replaced while the owner handles messages from the previous connection. Each
/// message must be handled exactly once. The keep-alive is an hour, so that no timer wakes the
/// link's thread.
#[test]
fn no_message_is_lost_or_handled_twice_when_connections_are_replaced() {
    const ROUNDS: u32 = 40;
    const SIGNALS: u64 = 500;
    let owner = Owner::with_keep_alive(Duration::from_secs(3600));
    let event = owner.context.create_event().unwrap();
    let (mut channel, link) = owner.link();
    let session = link.session().id;
    channel.queue(&open(event.handle().unwrap().as_bytes()));
    let frame = next_frame(&mut channel);
    let Ok(Message::Event { id, .. }) = Message::decode(&frame) else {
        panic!("not opened");
    };
    let mut received = 1;
    let mut done = 0;
    let mut count = |frame: &[u8], received: &mut u64| {
        let message = Message::decode(frame).unwrap();
        *received += u64::from(message.is_sequenced());
        if let Message::Done { request, value } = message {
            done += 1;
            // Replies arrive in order, each with the number of its request.
            assert_eq!((request, value), (done + 1, done));
        }
        done
    };
    // Messages that the peer has sent, but that the owner may not have handled yet.
    let mut unconfirmed: std::collections::VecDeque<Vec<u8>> = [Vec::new()].into();
    let mut confirmed = 0;
    for round in 1..=ROUNDS {
        for number in 1..=SIGNALS {
            let request = 1 + u64::from(round - 1) * SIGNALS + number;
            let frame = Message::Signal { request, id }.encode();
            channel.queue(&frame);
            unconfirmed.push_back(frame);
        }
        let _ = channel.flush();
        // Read up to three replies before the next replacement.
        for _ in 0..round % 4 {
            count(&next_frame(&mut channel), &mut received);
        }
        let greeted = owner.greet(session, received, round, &[]).unwrap();
        let handled = greeted.hello.received;
        drop(channel);
        channel = greeted.into_channel().unwrap();
        while confirmed < handled {
            unconfirmed.pop_front().unwrap();
            confirmed += 1;
        }
        for frame in &unconfirmed {
            channel.queue(frame);
        }
    }
    let all = u64::from(ROUNDS) * SIGNALS;
    while count(&next_frame(&mut channel), &mut received) < all {}
    assert_eq!(event.submitted(), all);
    assert!(link.ended().is_none(), "{:?}", link.ended());

    // An attempt to reconnect with an old number is rejected, and the current connection stays.
    assert!(owner.greet(session, 0, ROUNDS, &[]).is_err());
    assert!(owner.greet(session, 0, 1, &[]).is_err());
    let request = 2 + all;
    channel.queue(&Message::Signal { request, id }.encode());
    while count(&next_frame(&mut channel), &mut received) <= all {}
    assert!(link.ended().is_none(), "{:?}", link.ended());
}

/// While there is no connection, the link's thread sleeps even if a confirmation is due.
#[test]
fn nothing_is_due_while_there_is_no_connection() {
    let owner = Owner::with_keep_alive(Duration::from_secs(100));
    let (_channel, link) = owner.link();
    let mut state = link.session().state();
    state.channel = None;
    state.spoke_at = Instant::now().checked_sub(Duration::from_secs(50)).unwrap();
    drop(state);
    let agenda = link.session().agenda().unwrap();
    assert!(agenda.wake_at > Instant::now() + Duration::from_secs(1));
}

/// A caller that waits to send a request continues when the greeting of a new connection confirms
/// earlier requests.
#[test]
fn a_new_connection_makes_room() {
    let owner = Owner::with_keep_alive(Duration::from_secs(3600));
    let (_channel, link) = owner.link();
    let session = link.session().id;
    let asker = link.clone();
    let asks = std::thread::spawn(move || {
        let bytes = vec![0; MAX_DATA];
        for _ in 0..2 * MAX_ASKED / MAX_DATA - 20 {
            let ask = asker.session().ask(|request| Message::Write {
                request,
                id: 1,
                offset: 0,
                bytes: &bytes,
            });
            ask.unwrap();
        }
    });
    wait_until_full(&link);
    let received = (MAX_ASKED / MAX_DATA) as u64;
    let _channel = owner.greet(session, received, 1, &[]).unwrap();
    let start = Instant::now();
    while !asks.is_finished() {
        assert!(start.elapsed() < LIMIT, "no thread has woken the waiter");
        std::thread::yield_now();
    }
    asks.join().unwrap();
}
