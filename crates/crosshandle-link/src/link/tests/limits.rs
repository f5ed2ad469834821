//! Limits for what a link keeps for its peer.

use super::*;

#[test]
fn whoever_asks_for_more_than_it_takes_is_cut_off() {
    let owner = Owner::new();
    let memory = owner.context.allocate(MAX_DATA).unwrap();
    let handle = memory.handle().unwrap();
    let open = Message::Open {
        request: 1,
        read_only: true,
        handle: handle.as_bytes(),
    };
    let reads = (2u64..).map(|request| {
        Message::Read {
            request,
            id: 1,
            offset: 0,
            len: MAX_DATA as u32,
        }
        .encode()
    });
    let (mut channel, link) = owner.link();
    channel.queue(&open.encode());
    let start = Instant::now();
    while !matches!(channel.next_frame(), Ok(Some(_))) {
        let _ = channel.flush();
        channel.fill();
        assert!(start.elapsed() < LIMIT);
    }
    for read in reads {
        if link.ended().is_some() {
            break;
        }
        assert!(start.elapsed() < LIMIT);
        channel.queue(&read);
        let _ = channel.flush();
    }
    let ended = link.ended().unwrap().to_string();
    assert!(ended.contains("more than it takes"), "{ended}");
    owner.check();
}

/// A peer that never confirms gets only some of the reports, so it makes the owner use only a
/// limited amount of memory. When the peer confirms, it gets the remaining reports.
#[test]
fn who_never_confirms_is_kept_little_for() {
    let owner = Owner::new();
    let (mut channel, link) = owner.link();
    // With many events, the link's thread sends many reports each time it runs.
    let events: [_; 128] = std::array::from_fn(|_| owner.context.create_event().unwrap());
    let (mut received, mut told) = (0, HashMap::new());
    for event in &events {
        channel.queue(&open(event.handle().unwrap().as_bytes()));
        let id = loop {
            match Message::decode(&next_frame(&mut channel)).unwrap() {
                Message::Event { id, .. } => break id,
                Message::Ack { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        received += 1;
        told.insert(id, 0);
    }
    let start = Instant::now();
    while !link.session().has_told_enough() {
        let number = events[0].submitted() + 1;
        for event in &events {
            event.signal().unwrap();
        }
        // Wait until the signals are reported, because several signals could share one report.
        while told.values().any(|told| *told < number) && !link.session().has_told_enough() {
            assert!(start.elapsed() < 3 * LIMIT);
            channel.fill();
            while let Some(frame) = channel.next_frame().unwrap() {
                if let Message::Reached { id, number } = Message::decode(&frame).unwrap() {
                    received += 1;
                    told.insert(id, number);
                }
            }
            std::thread::yield_now();
        }
    }
    assert!(received >= MAX_TOLD as u64);
    for event in &events {
        event.signal_value(event.submitted() + 10_000).unwrap();
    }
    channel.queue(&Message::Ack { received }.encode());
    let last = events[0].submitted();
    while told.values().any(|told| *told < last) {
        let frame = next_frame(&mut channel);
        if let Message::Reached { id, number } = Message::decode(&frame).unwrap() {
            told.insert(id, number);
        }
    }
    assert!(link.ended().is_none());
}

/// Reads beyond the limit wait, so that the peer never has more unconfirmed replies than it
/// permits.
#[test]
fn reads_wait_for_their_replies() {
    const READS: usize = MAX_READING / MAX_DATA + 50;
    let owner = Owner::new();
    let (mut channel, link) = owner.link();
    let asker = link.clone();
    let asks = std::thread::spawn(move || {
        for _ in 0..READS {
            let ask = asker.session().ask(|request| Message::Read {
                request,
                id: 1,
                offset: 0,
                len: MAX_DATA as u32,
            });
            ask.unwrap();
        }
    });
    wait_until_full(&link);
    assert!(!asks.is_finished());
    let bytes = vec![0; MAX_DATA];
    let mut replied = 0;
    while replied < READS {
        let frame = next_frame(&mut channel);
        if let Message::Read { request, .. } = Message::decode(&frame).unwrap() {
            let bytes = &bytes[..];
            channel.queue(&Message::Data { request, bytes }.encode());
            replied += 1;
        }
    }
    asks.join().unwrap();
    assert!(link.ended().is_none(), "{:?}", link.ended());
}

#[test]
fn one_confirmation_waits_to_be_sent_at_most() {
    let owner = Owner::new();
    let (_channel, link) = owner.link();
    let mut state = link.session().state();
    let channel = state.channel.as_mut().unwrap();
    channel.flush().unwrap();
    let ack = Message::Ack { received: 0 }.encode();
    let other = Message::Reached { id: 9, number: 1 }.encode();
    assert!(channel.queue_ack(&ack) && !channel.queue_ack(&ack));
    channel.queue(&other);
    assert!(!channel.queue_ack(&ack));
    channel.flush().unwrap();
    assert!(channel.queue_ack(&ack));
}
