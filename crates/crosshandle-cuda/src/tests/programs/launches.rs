//! Tests of launches of kernels.

use super::*;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_compute_in_the_order_of_their_queue() {
    let fixture = fixture();
    let memory = fixture.memory(&[0; COUNT]);
    let queue = &fixture.queue;
    queue
        .submit(fill(&fixture.kernel("fill"), &memory, 7))
        .unwrap();
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(100_u32)
        .value(500_u32);
    let shape = LaunchShape::covering(500, 64).unwrap();
    queue
        .submit(launch(&fixture.kernel("scale"), shape, arguments))
        .unwrap();
    let read = fixture.read(&memory);
    assert!(
        read[..500].iter().all(|value| *value == 121),
        "{:?}",
        &read[..8]
    );
    assert!(read[500..].iter().all(|value| *value == 7));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn numbers_of_all_sizes_arrive() {
    let fixture = fixture();
    let y = fixture.memory(&[2.0_f32.to_bits(); COUNT]);
    let x = fixture.memory(&[3.0_f32.to_bits(); COUNT]);
    let arguments = KernelArguments::new()
        .with(&y.all())
        .with(&x.all())
        .value(1.5_f32)
        .bytes(&(COUNT as u32).to_ne_bytes());
    let shape = LaunchShape::covering(COUNT, 256).unwrap();
    fixture
        .queue
        .submit(launch(&fixture.kernel("saxpy"), shape, arguments))
        .unwrap();
    assert_eq!(fixture.read(&y), vec![6.5_f32.to_bits(); COUNT]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn blocks_get_the_shared_memory_that_the_launch_says() {
    let fixture = fixture();
    let kernel = fixture.kernel("reverse");
    let most = kernel.properties().dynamic_shared_memory;
    assert!(most > 48 << 10, "{most}");
    let values: Vec<u32> = (0..1024).collect();
    let reversed: Vec<u32> = [(0..512).rev(), (512..1024).rev()]
        .into_iter()
        .flatten()
        .collect();
    // A small amount, an amount that needs permission from the driver, and the maximum.
    for (bytes, place) in [(2048_usize, 0_u32), (64 << 10, 62 << 10), (most, 0)] {
        // This also works before a launch has obtained the permission.
        let suggested = kernel.suggested_block(bytes).unwrap();
        assert!(suggested > 1, "{suggested} threads with {bytes} bytes");
        let memory = fixture.memory(&values);
        let arguments = KernelArguments::new().with(&memory.all()).value(place);
        let shape = LaunchShape::new([2, 1, 1], [512, 1, 1]).shared_memory(bytes);
        fixture
            .queue
            .submit(launch(&kernel, shape, arguments))
            .unwrap();
        assert_eq!(fixture.read(&memory), reversed, "{bytes} bytes");
    }
    let memory = fixture.memory(&values);
    let arguments = KernelArguments::new().with(&memory.all()).value(0_u32);
    let shape = LaunchShape::new([2, 1, 1], [512, 1, 1]).shared_memory(most + 1);
    // SAFETY: never submitted.
    let refused = unsafe { Command::launch(&kernel, shape, arguments) };
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn wrong_arguments_and_shapes_are_refused() {
    let fixture = fixture();
    let kernel = fixture.kernel("number");
    let memory = fixture.memory(&[0; 64]);
    let one = LaunchShape::new([1; 3], [64, 1, 1]);
    let right = KernelArguments::new().with(&memory.all());
    for (shape, arguments) in [
        (one, KernelArguments::new()),
        (one, right.clone().value(1_u32)),
        (one, KernelArguments::new().value(1_u32)),
        (LaunchShape::new([1; 3], [0; 3]), right.clone()),
        (LaunchShape::new([1; 3], [2048, 1, 1]), right.clone()),
        (LaunchShape::new([1, 1 << 20, 1], [1; 3]), right.clone()),
    ] {
        let text = format!("{shape:?} {arguments:?}");
        // SAFETY: never submitted.
        let refused = unsafe { Command::launch(&kernel, shape, arguments) };
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{text}: {refused:?}"
        );
    }
    // A launch without blocks is not an error, and its event is signalled.
    let event = fixture.context.create_event().unwrap();
    let nothing = launch(
        &kernel,
        LaunchShape::new([0, 1, 1], [64, 1, 1]),
        right.clone(),
    );
    fixture.queue.submit(nothing.signal(&event)).unwrap();
    event.wait().unwrap();
    assert_eq!(event.submitted(), 1);
    fixture.queue.submit(launch(&kernel, one, right)).unwrap();
    assert_eq!(fixture.read(&memory), (0..64).collect::<Vec<u32>>());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cooperative_launches_have_as_many_blocks_as_run_at_once() {
    let fixture = fixture();
    let kernel = fixture.kernel("fill");
    let most = kernel.concurrent_blocks(256, 0).unwrap();
    let memory = fixture.memory(&vec![0; most as usize * 256]);
    let cooperative = |blocks: u32| {
        let arguments = KernelArguments::new()
            .with(&memory.all())
            .value(3_u32)
            .value(most * 256);
        let shape = LaunchShape::new([blocks, 1, 1], [256, 1, 1]).cooperative(true);
        fixture.queue.submit(launch(&kernel, shape, arguments))
    };
    cooperative(most).unwrap();
    assert!(fixture.read(&memory).iter().all(|word| *word == 3));
    let refused = cooperative(most + 1);
    assert!(
        matches!(refused, Err(Error::LimitReached { .. })),
        "{refused:?}"
    );
    // The refused launches leave the queue usable.
    fixture.queue.submit(fill(&kernel, &memory, 4)).unwrap();
    assert!(fixture.read(&memory).iter().all(|word| *word == 4));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn clusters_are_as_large_as_the_device_has_them() {
    let fixture = fixture();
    let kernel = fixture.kernel("fill");
    let memory = fixture.memory(&[0; 64 * 64]);
    let clusters = |blocks: u32, byte: u32| {
        let shape = LaunchShape::new([64, 1, 1], [64, 1, 1]).cluster([blocks, 1, 1]);
        let arguments = KernelArguments::new()
            .with(&memory.all())
            .value(byte)
            .value(64 * 64_u32);
        fixture.queue.submit(launch(&kernel, shape, arguments))
    };
    // The driver permits clusters of more than 8 blocks only on request. An H200 supports 16.
    for (blocks, byte) in [(4, 1), (8, 2), (16, 3)] {
        clusters(blocks, byte).unwrap();
        assert!(fixture.read(&memory).iter().all(|word| *word == byte));
    }
    assert!(clusters(64, 4).is_err());
    clusters(4, 5).unwrap();
    assert!(fixture.read(&memory).iter().all(|word| *word == 5));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn commands_keep_program_and_memory() {
    let fixture = fixture();
    let gate = fixture.context.create_event().unwrap();
    let memory = fixture.memory(&[0; COUNT]);
    let handle = memory.handle().unwrap();
    let kernel = fixture.kernel("fill");
    let command = fill(&kernel, &memory, 9).after_value(&gate, 1);
    fixture.queue.submit(command).unwrap();
    let copy = fixture.host(COUNT * 4);
    let read = Command::copy(memory.all(), copy.all()).unwrap();
    fixture.queue.submit(read).unwrap();
    let Fixture { queue, program, .. } = fixture;
    drop((kernel, program, memory, handle));
    gate.signal().unwrap();
    queue.finish().unwrap();
    let mut bytes = vec![0; COUNT * 4];
    copy.read(0, &mut bytes).unwrap();
    assert!(bytes.chunks(4).all(|word| word == 9_u32.to_ne_bytes()));
}

/// Returns the times of two kernels that are launched while another stream waits. Waits at most a
/// second for each kernel.
fn time_beside_a_wait(fixture: &Fixture, launches: [(&'static str, Command); 2]) -> Vec<String> {
    let gate = fixture.context.create_event().unwrap();
    let waiting = fixture.context.create_queue().unwrap();
    waiting
        .submit(Command::marker().after_value(&gate, 1))
        .unwrap();
    let (done, guard) = mpsc::channel::<()>();
    let opened = opened_after(gate, guard, Duration::from_secs(4));
    let times = launches.map(|(what, command)| {
        let start = Instant::now();
        fixture.queue.submit(command).unwrap();
        let submitted = start.elapsed();
        match fixture.queue.finish_timeout(Duration::from_secs(1)) {
            Ok(()) => format!("{what}: {submitted:?}, done {:?}", start.elapsed()),
            Err(error) => format!("{what}: {submitted:?}, {error}"),
        }
    });
    drop(done);
    opened.join().unwrap();
    fixture.queue.finish().unwrap();
    waiting.finish().unwrap();
    times.into()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_run_while_another_stream_waits() {
    let fixture = fixture();
    let memory = fixture.memory(&[0; COUNT]);
    let words = fixture.memory(&[0; COUNT]);
    let [known, new] = ["fill", "scale"].map(|name| fixture.kernel(name));
    fixture.queue.submit(fill(&known, &memory, 1)).unwrap();
    fixture.queue.finish().unwrap();
    let launches = [
        ("launched before", fill(&known, &memory, 2)),
        // The second kernel takes the same arguments.
        ("launched first", fill(&new, &words, 3)),
    ];
    let times = time_beside_a_wait(&fixture, launches);
    eprintln!("{times:?}");
    assert!(
        times.iter().all(|time| time.contains("done")),
        "something waited for another stream: {times:?}"
    );
    assert_eq!(fixture.read(&memory), vec![2; COUNT]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_take_timestamps_and_signal_in_any_order() {
    let fixture = fixture();
    let kernel = fixture.kernel("fill");
    let queue = fixture
        .context
        .create_queue_with(crosshandle_types::QueueOrder::OutOfOrder)
        .unwrap();
    let memories: Vec<_> = (0..8).map(|_| fixture.memory(&[0; COUNT])).collect();
    let options = crosshandle::EventOptions::new()
        .shareable(false)
        .profiling(true);
    let events: Vec<_> = memories
        .iter()
        .enumerate()
        .map(|(number, memory)| {
            let event = fixture.context.create_event_with(options).unwrap();
            let command = fill(&kernel, memory, number as u32).signal(&event);
            queue.submit(command).unwrap();
            event
        })
        .collect();
    for (number, (event, memory)) in events.iter().zip(&memories).enumerate() {
        event.wait().unwrap();
        let profile = event.profile().unwrap();
        eprintln!("{profile:?}");
        assert_eq!(fixture.read(memory), vec![number as u32; COUNT]);
    }
    // Measures what a launch costs the host.
    let start = Instant::now();
    for _ in 0..1000 {
        fixture
            .queue
            .submit(fill(&kernel, &memories[0], 5))
            .unwrap();
    }
    let each = start.elapsed() / 1000;
    fixture.queue.finish().unwrap();
    eprintln!(
        "a launch takes the host {each:?}, with its end {:?}",
        start.elapsed() / 1000
    );
}
/// Opens a gate when `guard`'s sender is dropped, or after `timeout`.
fn opened_after(
    gate: Event,
    guard: mpsc::Receiver<()>,
    timeout: Duration,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let _ = guard.recv_timeout(timeout);
        gate.signal().unwrap();
    })
}
