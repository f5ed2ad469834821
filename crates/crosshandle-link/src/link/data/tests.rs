use super::*;
use crate::tuning::FOLLOW_INTERVAL;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;

fn settings() -> Settings {
    Settings {
        interface: Some("lo".into()),
        transports: Some("tcp".into()),
    }
}

/// One side of a link whose two sides are in the same process. A thread drives both sides, and
/// passes the addresses of new endpoints directly between them.
struct Side {
    data: DataPath,
    keep: Vec<u8>,
}

fn sides(keep_alive: Duration) -> [Side; 2] {
    [(); 2].map(|()| Side {
        data: DataPath::new(&settings(), Staging::default(), keep_alive).expect("UCX"),
        keep: vec![0; 1 << 20],
    })
}

/// Drives both sides until `is_over` is true or a side fails.
fn look_after(sides: [&DataPath; 2], is_over: &AtomicBool) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        let (generation, address) = sides[from].address()?;
        sides[to].offer(generation, &address).unwrap();
    }
    while !is_over.load(Ordering::Acquire) {
        for (from, to) in [(0, 1), (1, 0)] {
            if let Some((generation, address)) = sides[from].look_after()?.address {
                sides[to].offer(generation, &address).unwrap();
            }
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The peer's worker is never driven, so the requested bytes never arrive over any endpoint.
#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn a_move_without_progress_ends_and_lets_go_of_its_memory() {
    let [still, mut moving] = sides(Duration::from_secs(1));
    moving.data.limits.stall = Duration::from_millis(200);
    let mut there = vec![7u8; 1 << 20];
    // SAFETY: the memory is registered only while it lives.
    let made = unsafe {
        still
            .data
            .register(there.as_mut_ptr(), there.len(), true)
            .unwrap()
    };
    let (generation, address) = still.data.address().unwrap();
    moving.data.offer(generation, &address).unwrap();
    assert!(moving.data.look_after().unwrap().has_connected);
    let key = moving.data.add_key(&made.key).unwrap();
    let piece = Piece {
        local: moving.keep.as_mut_ptr(),
        len: moving.keep.len(),
        remote: made.address,
    };
    let data = &moving.data;
    let start = Instant::now();
    let error = std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            loop {
                if let Err(error) = data.look_after() {
                    data.close();
                    return error;
                }
                std::thread::yield_now();
            }
        });
        // SAFETY: the local bytes live until the call returns.
        let moved = unsafe { data.move_pieces(Direction::Get, key, &[piece], &|| ()) };
        assert!(moved.is_err());
        looks.join().unwrap()
    });
    assert!(error.is_timeout(), "{error}");
    assert!(start.elapsed() >= Duration::from_secs(1));
    data.remove_key(key);
    still.data.unregister(&made);
}

/// A write fails if the link ends before its bytes have arrived, although UCX reports success for a
/// closed endpoint.
#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn writes_that_the_end_of_the_link_cuts_off_fail() {
    let [still, moving] = sides(Duration::from_secs(60));
    let mut there = vec![7u8; 1 << 20];
    // SAFETY: the memory is registered only while it lives.
    let made = unsafe {
        still
            .data
            .register(there.as_mut_ptr(), there.len(), true)
            .unwrap()
    };
    let data = &moving.data;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| look_after([&still.data, data], &is_over));
        let is_connected = |shared: &Shared| shared.is_usable() && shared.proven_by.is_none();
        while !is_connected(&data.shared()) {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Release);
        looks.join().unwrap().unwrap();
    });
    let key = data.add_key(&made.key).unwrap();
    let piece = Piece {
        local: moving.keep.as_ptr().cast_mut(),
        len: moving.keep.len(),
        remote: made.address,
    };
    std::thread::scope(|scope| {
        let ends = scope.spawn(move || {
            while data.shared().moves == 0 {
                std::thread::yield_now();
            }
            data.close();
            // No thread drives the worker when memory is unmapped.
            assert_eq!(data.shared().moves, 0);
        });
        // The peer's worker is no longer driven, so the bytes cannot have arrived.
        //
        // SAFETY: the local bytes live until the call returns.
        let moved = unsafe { data.move_pieces(Direction::Put, key, &[piece], &|| ()) };
        assert!(moved.is_err());
        ends.join().unwrap();
        // SAFETY: the local bytes live until the call returns.
        let moved = unsafe { data.move_pieces(Direction::Put, key, &[piece], &|| ()) };
        assert!(moved.unwrap_err().to_string().contains("is closed"));
    });
    assert!(!data.shared().may_progress() && !data.shared().needs_care());
    let upkeep = data.look_after().unwrap();
    assert!(upkeep.address.is_none() && upkeep.wake_at.is_none());
    data.remove_key(key);
    still.data.unregister(&made);
}

/// Environment variable that marks the child process in which a test runs.
const CHILD: &str = "CROSSHANDLE_LINK_TEST_CHILD";
/// Text that UCX 1.22 prints before it aborts the process. This happens when UCX replies to a write
/// over TCP and the endpoint has just failed.
const UCX_GIVES_UP: &str = "Fatal: unexpected error: Endpoint timeout";

/// Runs a test in a child process. UCX sometimes aborts the child, so this function makes several
/// attempts.
fn beside_what_ucx_ends(test: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    for _ in 0..8 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            &format!("link::data::tests::{test}"),
            "--exact",
            "--include-ignored",
            "--nocapture",
        ]);
        let output = command.env(CHILD, "1").output().unwrap();
        let (out, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        if output.status.success() {
            assert!(out.contains("1 passed"), "{out}");
            eprint!("{errors}");
            return;
        }
        let is_by_ucx =
            output.status.signal() == Some(libc::SIGABRT) && errors.contains(UCX_GIVES_UP);
        assert!(is_by_ucx, "{}: {out}{errors}", output.status);
    }
    panic!("UCX has ended each of 8 processes");
}

#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn endpoints_are_replaced_and_what_moves_arrives_once() {
    let test = "endpoints_are_replaced_and_what_moves_arrives_once";
    beside_what_ucx_ends(test, replace_endpoints_while_bytes_move);
}

/// One thread writes and reads while another closes endpoints on both sides.
fn replace_endpoints_while_bytes_move() {
    let [one, other] = sides(Duration::from_secs(20));
    let mut there = vec![0u8; 1 << 20];
    // SAFETY: the memory is registered only while it lives.
    let made = unsafe {
        other
            .data
            .register(there.as_mut_ptr(), there.len(), true)
            .unwrap()
    };
    let is_over = AtomicBool::new(false);
    let (own, their) = (&one.data, &other.data);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let looks = scope.spawn(move || look_after([own, their], is_over));
        let breaks = scope.spawn(move || {
            let mut round = 0;
            while round < 20 {
                std::thread::sleep(Duration::from_millis(1 + round * 7 % 13));
                let side = if round % 3 == 0 { their } else { own };
                let mut shared = side.shared();
                // Only an existing endpoint can fail.
                if shared.endpoint == Endpoint::Made {
                    shared.fail(Error::TimedOut("in a test"));
                    round += 1;
                }
            }
        });
        let key = own.add_key(&made.key).unwrap();
        let mut rounds = 0u64;
        while !breaks.is_finished() || rounds < 50 {
            rounds += 1;
            let (mut sent, mut back) = (vec![rounds as u8; 1 << 20], vec![0u8; 1 << 20]);
            let piece = |bytes: &mut [u8]| Piece {
                local: bytes.as_mut_ptr(),
                len: bytes.len(),
                remote: made.address,
            };
            let (put, get) = (piece(&mut sent), piece(&mut back));
            let halves = [
                Piece {
                    len: 1 << 19,
                    ..get
                },
                Piece {
                    local: get.local.wrapping_add(1 << 19),
                    len: 1 << 19,
                    remote: get.remote + (1 << 19),
                },
            ];
            // SAFETY: the bytes live until the calls return.
            unsafe {
                own.move_pieces(Direction::Put, key, &[put], &|| ())
                    .unwrap();
                own.move_pieces(Direction::Get, key, &halves, &|| ())
                    .unwrap();
            }
            assert!(back == sent, "round {rounds}");
        }
        is_over.store(true, Ordering::Release);
        looks.join().unwrap().unwrap();
        let generation = own.shared().generation;
        assert!(generation > 10, "{generation}");
        println!("{rounds} rounds over {generation} endpoints");
        own.remove_key(key);
    });
    own.close();
    their.close();
    their.unregister(&made);
    assert_eq!(there.len(), 1 << 20);
}

/// This side creates endpoints at a limited rate, even if the peer repeatedly claims that its own
/// endpoint has failed.
#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn a_side_that_replaces_over_and_over_is_followed_at_intervals() {
    let [one, other] = sides(Duration::from_secs(20));
    let (_, address) = other.data.address().unwrap();
    let started_at = Instant::now();
    for generation in 2..=5 {
        one.data.offer(generation, &address).unwrap();
        loop {
            let upkeep = one.data.look_after().unwrap();
            if let Some((next, _)) = upkeep.address {
                assert_eq!(next, generation);
                break;
            }
            // The link's thread sleeps until this time.
            assert!(upkeep.wake_at.unwrap() > started_at);
            std::thread::yield_now();
        }
    }
    // This side follows the first replacement at once, and each later replacement after an
    // interval.
    assert!(started_at.elapsed() >= FOLLOW_INTERVAL * 3);
    one.data.close();
}

#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn endpoints_that_there_cannot_be_are_refused() {
    let [one, _] = sides(Duration::from_secs(1));
    assert!(one.data.offer(1, b"").is_err());
    assert!(one.data.offer(0, b"x").is_err());
    assert!(one.data.offer(3, b"x").is_err());
    one.data.offer(2, b"x").unwrap();
    for again in 0..=2 {
        assert!(one.data.offer(again, b"x").is_err());
    }
}
