//! One thread sleeps for many waiters. No waiter is forgotten while others register, cancel, signal
//! and die. Unless a scenario allows it, no sleep times out. A waiter that is not notified then
//! sleeps forever, and the checker reports a deadlock.
//!
//! The thread's set of awaited signals is the library's own. The messages to the thread, and its
//! sleeps, are modelled (`server.rs`, `sleeps.rs`).

mod server;
mod sleeps;

use crate::check::check;
use crate::event_protocol::{Liveness, Owner, WaitError};
use crate::hostile::Hostile;
use crate::ledger::Ledger;
use crate::platform::{self, Doorbell, one_in, pick};
use crate::stream::{Stream, stream};
use crate::wake_ups::signal_somehow;
use crate::world::{Process, World};
use server::{Await, Event, Fault, Mailbox, Server, Waiter};
use shuttle::thread::{JoinHandle, spawn, yield_now};
use sleeps::{Kind, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest sleep between two looks at an event that devices signal, like `LONGEST_STEP` in the
/// protocol.
const LONGEST_STEP: Duration = Duration::from_millis(1);
const SWEEP_INTERVAL: Duration = Duration::from_millis(160);

/// Starts a server for the events of some worlds, which share one memory or have one each.
fn serve<'a>(kind: Kind, fault: Fault, worlds: impl IntoIterator<Item = &'a World>) -> Server {
    let slots = worlds.into_iter().map(|world| Arc::clone(&world.slot));
    let memory = match one_in(2) {
        true => vec![Memory::of(slots)],
        false => slots.map(|slot| Memory::of([slot])).collect(),
    };
    Server::start(kind, fault, memory)
}

/// An event, and the server that sleeps for its waiters.
struct Scene {
    world: World,
    event: Event,
    server: Server,
}

impl Scene {
    fn new(kind: Kind, fault: Fault) -> Self {
        let world = World::new();
        Self::of(Event::of(&world), world, kind, fault)
    }

    fn of(event: Event, world: World, kind: Kind, fault: Fault) -> Self {
        let server = serve(kind, fault, [&world]);
        Self {
            world,
            event,
            server,
        }
    }

    fn begin(&self, number: u64, waiter: Waiter) -> Await {
        self.server.mailbox.begin(&self.event, number, waiter)
    }

    /// Starts a process that can await signals.
    fn register(
        &self,
        owner: u16,
        life: impl FnOnce(&Arc<Mailbox>, &Event, &Process) + Send + 'static,
    ) -> JoinHandle<()> {
        let (event, server) = (self.event.clone(), Arc::clone(&self.server.mailbox));
        let life = move |process: &Process| life(&server, &event, process);
        self.world.start(owner, life)
    }

    fn finish(self, processes: impl IntoIterator<Item = JoinHandle<()>>) {
        self.world.finish(processes);
        self.server.finish();
        self.event.check_let_go();
    }
}

/// Awaits a signal, and checks the result.
fn wait(server: &Arc<Mailbox>, event: &Event, process: &Process, number: u64) {
    let begun = server.begin(event, number, Waiter::new());
    expect(&begun, process, number);
}

/// Waits until a signal's waiter is notified, and checks the result.
fn expect(begun: &Await, process: &Process, number: u64) {
    let result = begun.answer.wait();
    process.world.ledger.check(number, result, process.slot());
    assert_eq!(result, Ok(()));
}

/// Lets other threads run for a while.
fn dally() {
    for _ in 0..pick(8) {
        yield_now();
    }
}

/// Two processes signal, immediately and by submission. Two others await these signals out of
/// order, possibly before they are taken. A fifth process sleeps on the same words by itself.
fn in_any_order(kind: Kind, fault: Fault) {
    let scene = Scene::new(kind, fault);
    let signaller = |owner| {
        scene.world.start(owner, |process| {
            for _ in 0..2 {
                signal_somehow(process);
            }
        })
    };
    let registrar = |owner| {
        scene.register(owner, |server, event, process| {
            let early = [1 + pick(4), 1 + pick(4)];
            let begun = early.map(|number| server.begin(event, number, Waiter::new()));
            wait(server, event, process, 1 + pick(4));
            for (begun, number) in begun.iter().zip(early) {
                expect(begun, process, number);
            }
        })
    };
    let sleeper = scene.world.start(5, |process| {
        process.wait(1 + pick(4)).unwrap();
        process.wait(4).unwrap();
    });
    let processes = [
        signaller(1),
        signaller(2),
        registrar(3),
        registrar(4),
        sleeper,
    ];
    scene.finish(processes);
}

cases! {
    signals_in_any_order: 1000, in_any_order(Kind::any(), Fault::None);
    #[should_panic = "deadlock"]
    a_thread_that_does_not_sleep_again_after_a_wake_up_is_found: 1500, in_any_order(Kind::any(), Fault::ForgetsWoken);
    #[should_panic = "deadlock"]
    a_thread_that_reads_its_word_after_the_messages_is_found: 1500, in_any_order(Kind::any(), Fault::ReadsItsWordLate);
    #[should_panic = "deadlock"]
    a_thread_that_looks_before_it_listens_is_found: 1500, in_any_order(Kind::LookingFirst, Fault::None);
    #[should_panic = "deadlock"]
    a_thread_that_reads_the_log_before_it_listens_is_found: 1500, in_any_order(Kind::ReadingFirst, Fault::None);
}

/// A signaller rings a doorbell after it has completed the word. With `early` it rings before,
/// which is wrong. `first` is the first entry's mark.
fn doorbells(early: bool, first: u32) {
    platform::number_entries_from(first);
    let scene = Scene::new(Kind::Doorbells, Fault::None);
    let ticket = scene.world.process(1).submit();
    let signaller = scene.world.start(1, move |process| {
        if early {
            platform::mute_doorbells();
            platform::ring(process.slot().word_of(ticket.number));
        }
        process.complete(ticket);
    });
    let registrar = scene.register(2, move |server, event, process| {
        wait(server, event, process, 1)
    });
    scene.finish([signaller, registrar]);
}

cases! {
    a_doorbell_rings_after_the_word: 1500, doorbells(false, 1);
    #[should_panic = "deadlock"]
    a_doorbell_that_rings_before_the_word_is_found: 1500, doorbells(true, 1);
    #[should_panic = "deadlock"]
    a_log_whose_first_entry_looks_written_is_found: 10_000, doorbells(false, 0);
}

/// All signals are immediate, so only `WATCHED` shows their signallers that they are awaited.
#[test]
fn signals_at_once() {
    check(1500, || {
        let scene = Scene::new(Kind::any(), Fault::None);
        let signaller = |owner, signals| {
            scene.world.start(owner, move |process| {
                for _ in 0..signals {
                    assert!(process.signal().is_empty());
                }
            })
        };
        let registrar = |owner, number| {
            scene.register(owner, move |server, event, process| {
                wait(server, event, process, number)
            })
        };
        let processes = [
            signaller(1, 6),
            signaller(2, 3),
            registrar(3, 1 + pick(9)),
            registrar(4, 1 + pick(9)),
            registrar(5, 9),
        ];
        scene.finish(processes);
    });
}

/// Several signals on one word are awaited with one sleep, while other processes sleep on the word.
#[test]
fn signals_of_one_word() {
    check(1500, || {
        let scene = Scene::new(Kind::any(), Fault::None);
        let signaller = scene.world.start(1, |process| {
            let early = one_in(2).then(|| process.submit());
            let jump = process.signal_up_to(8);
            process.complete_all(early.into_iter().chain(jump).collect());
            let jump = process.signal_up_to(15);
            process.complete_all(jump);
        });
        let registrar = |owner| {
            scene.register(owner, |server, event, process| {
                let late = server.begin(event, 8 + 7 * pick(2), Waiter::new());
                wait(server, event, process, 1 + 7 * pick(2));
                // Either of two waiters for the same signal may cancel.
                if one_in(2) || late.cancel() {
                    wait(server, event, process, 15);
                }
            })
        };
        let sleeper = scene.world.start(4, |process| {
            process.wait(1 + 7 * pick(2)).unwrap();
            process.wait(15).unwrap();
        });
        let processes = [signaller, registrar(2), registrar(3), sleeper];
        scene.finish(processes);
    });
}

/// Signals of several events, in one memory or in several.
#[test]
fn signals_of_several_events() {
    check(1000, || {
        let worlds = [World::new(), World::new(), World::new()];
        let events = [0, 1, 2].map(|index| Event::of(&worlds[index]));
        let server = serve(Kind::any(), Fault::None, &worlds);
        let registrar = {
            let (worlds, events) = (worlds.clone(), events.clone());
            let server = Arc::clone(&server.mailbox);
            spawn(move || {
                let number = 1 + pick(2);
                let begun = [0, 1, 2].map(|index| {
                    dally();
                    server.begin(&events[index], number, Waiter::new())
                });
                for (begun, world) in begun.iter().zip(&worlds) {
                    expect(begun, &world.process(3), number);
                }
            })
        };
        for world in worlds {
            let signallers = [1, 2].map(|owner| world.start(owner, signal_somehow));
            world.finish(signallers);
        }
        registrar.join().unwrap();
        server.finish();
        events.iter().for_each(Event::check_let_go);
    });
}

/// Some waiters are cancelled at any time. They are notified at most once, and never after
/// cancellation. All remaining waiters are notified.
fn cancelling(fault: Fault) {
    let scene = Scene::new(Kind::any(), fault);
    let early = one_in(2).then(|| scene.world.process(1).submit());
    let signaller = scene.world.start(1, move |process| {
        process.complete_all(early.into_iter().collect());
        for _ in 0..2 {
            signal_somehow(process);
        }
    });
    let registrar = |owner| {
        scene.register(owner, |server, event, process| {
            let numbers = [1 + pick(2), 1 + pick(9), 1 + pick(9)];
            let begun = numbers.map(|number| server.begin(event, number, Waiter::new()));
            let [first, others @ ..] = begun;
            if one_in(2) {
                expect(&first, process, numbers[0]);
            }
            for (begun, number) in others.into_iter().zip(&numbers[1..]) {
                dally();
                let answer = begun.answer.clone();
                if !begun.cancel() {
                    let result = answer.wait();
                    process.world.ledger.check(*number, result, process.slot());
                }
            }
            expect(&first, process, numbers[0]);
        })
    };
    let sleeper = scene
        .world
        .start(4, |process| process.wait(1 + pick(2)).unwrap());
    let processes = [signaller, registrar(2), registrar(3), sleeper];
    scene.finish(processes);
}

cases! {
    cancelling_against_signals: 1000, cancelling(Fault::None);
    #[should_panic = "told after it was cancelled"]
    a_thread_that_tells_those_who_have_cancelled_is_found: 1500, cancelling(Fault::TellsTheCancelled);
}

/// A cancelled waiter is not counted as a sleeper, so a signal makes no wake call for it.
#[test]
fn nobody_sleeps_for_those_who_have_cancelled() {
    check(500, || {
        let world = World::new();
        let event = Event::of(&world);
        let first = world.process(1).submit();
        let server = serve(Kind::any(), Fault::None, [&world]);
        let begin = |number| server.mailbox.begin(&event, number, Waiter::new());
        let begun = [begin(1), begin(8), begin(1), begin(2), begin(9)];
        dally();
        for begun in begun {
            assert!(begun.cancel(), "nobody has signalled");
        }
        server.finish();
        event.check_let_go();
        let before = platform::wakes();
        world.process(1).complete(first);
        assert!(world.process(1).signal().is_empty());
        assert_eq!(platform::wakes(), before, "a sleeper is counted still");
        world.finish([]);
    });
}

/// Notified waiters await the next signal, on the thread itself.
fn awaiting_when_told(fault: Fault) {
    let scene = Scene::new(Kind::any(), fault);
    let signaller = scene.world.start(1, |process| {
        for _ in 0..2 {
            signal_somehow(process);
        }
    });
    let second = Waiter::new();
    let answer = second.answer();
    let first = {
        let (event, server) = (scene.event.clone(), Arc::clone(&scene.server.mailbox));
        Waiter::new().when_told(move || {
            server.begin(&event, 2, second);
        })
    };
    scene.begin(1, first);
    let registrar = scene.world.start(2, move |process| {
        let result = answer.wait();
        process.world.ledger.check(2, result, process.slot());
        assert_eq!(result, Ok(()));
    });
    scene.finish([signaller, registrar]);
}

cases! {
    waiters_await_more_when_they_are_told: 1500, awaiting_when_told(Fault::None);
    #[should_panic = "deadlock"]
    a_thread_that_sleeps_after_it_has_told_somebody_is_found: 1500, awaiting_when_told(Fault::SleepsAfterTelling);
}

/// A dropped waiter awaits another signal, or cancels one, on the thread itself. It may hold any
/// value of the program.
fn awaiting_when_dropped(fault: Fault) {
    let scene = Scene::new(Kind::any(), fault);
    let second = Waiter::new();
    let answer = second.answer();
    let other = scene.begin(9, Waiter::new());
    let first = {
        let (event, server) = (scene.event.clone(), Arc::clone(&scene.server.mailbox));
        Waiter::new().when_dropped(move || {
            other.cancel();
            server.begin(&event, 1, second);
        })
    };
    let first = scene.begin(2, first);
    dally();
    let signaller = scene.world.start(1, signal_somehow);
    dally();
    assert!(first.cancel(), "the second signal never comes");
    assert_eq!(answer.wait(), Ok(()));
    scene.finish([signaller]);
}

cases! {
    waiters_await_more_when_they_are_dropped: 1500, awaiting_when_dropped(Fault::None);
    #[should_panic = "deadlock"]
    a_thread_that_sleeps_after_it_has_let_go_of_somebody_is_found: 1500, awaiting_when_dropped(Fault::SleepsAfterLettingGo);
}

/// Returns a waiter that awaits a finished signal again and again, until it is stopped.
fn tireless(server: &Arc<Mailbox>, event: &Event, is_stopped: &Arc<AtomicBool>) -> Waiter {
    let (server, event) = (Arc::clone(server), event.clone());
    let is_stopped = Arc::clone(is_stopped);
    Waiter::new().when_told(move || {
        // Without this, some schedules would run no other thread.
        yield_now();
        if !is_stopped.load(Ordering::Relaxed) {
            let next = tireless(&server, &event, &is_stopped);
            server.begin(&event, 1, next);
        }
    })
}

/// The thread always has work, but all other waiters are served too.
fn beside_a_tireless_waiter(fault: Fault) {
    let scene = Scene::new(Kind::any(), fault);
    assert!(scene.world.process(1).signal().is_empty());
    let is_stopped = Arc::new(AtomicBool::new(false));
    let waiter = tireless(&scene.server.mailbox, &scene.event, &is_stopped);
    scene.begin(1, waiter);
    let registrar = scene.register(2, move |server, event, process| {
        wait(server, event, process, 2);
        is_stopped.store(true, Ordering::Relaxed);
    });
    let signaller = scene.world.start(1, signal_somehow);
    scene.finish([registrar, signaller]);
}

cases! {
    a_tireless_waiter_holds_up_no_other: 500, beside_a_tireless_waiter(Fault::None);
    #[should_panic = "exceeded max_steps"]
    a_thread_that_has_no_time_for_the_others_is_found: 500, beside_a_tireless_waiter(Fault::HasNoTimeForTheOthers);
}

/// The server process's knowledge of an event's processes. It sees deaths at once, and the
/// exporter's end when it is notified.
struct Notified {
    ledger: Arc<Ledger>,
    is_abandoned: AtomicBool,
}

impl Liveness for Notified {
    fn is_dead(&self, owner: Owner) -> bool {
        self.ledger.ask_whether_dead(owner)
    }

    fn is_known_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }
}

/// Makes a scene whose server learns of the exporter's end when it is notified.
fn notified() -> (Scene, Arc<Notified>) {
    let world = World::new();
    let notified = Arc::new(Notified {
        ledger: world.ledger.clone(),
        is_abandoned: AtomicBool::new(false),
    });
    let event = Event::new(&world.slot, notified.clone());
    let scene = Scene::of(event, world, Kind::any(), Fault::None);
    (scene, notified)
}

impl Notified {
    /// Notifies the server that the exporter has ended.
    fn abandon(&self, server: &Mailbox) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        server.alarm();
    }
}

/// A submitter dies at any step, and so may a survivor that fails its signals. The exporter fails
/// them too, and reports the death to the server's process, which may not have been woken.
fn death_of_a_submitter(fault: Fault) {
    let scene = Scene::new(Kind::any(), fault);
    let mortal = scene.world.start_mortal(2, pick(60) as u32, |process| {
        let first = process.submit();
        let left = process.signal();
        process.complete(first);
        process.complete_all(left);
        let left = process.signal();
        process.complete_all(left);
    });
    let exporter = {
        let server = Arc::clone(&scene.server.mailbox);
        scene.world.start(1, move |process| {
            mortal.join().unwrap();
            let survivor = process.world.start_mortal(6, pick(60) as u32, |process| {
                process.slot().fail_orphans(&*process.world.ledger);
            });
            let is_early = one_in(2);
            if is_early {
                server.alarm();
            }
            process.slot().fail_orphans(&*process.world.ledger);
            survivor.join().unwrap();
            // This reports the survivor's death.
            server.alarm();
            let left = process.signal_up_to(4);
            process.complete_all(left);
        })
    };
    let registrar = |owner| {
        scene.register(owner, |server, event, process| {
            for _ in 0..2 {
                let number = 1 + pick(4);
                let result = server.begin(event, number, Waiter::new()).answer.wait();
                process.world.ledger.check(number, result, process.slot());
            }
        })
    };
    let processes = [exporter, registrar(3), registrar(4)];
    scene.finish(processes);
}

cases! {
    the_submitter_dies: 2000, death_of_a_submitter(Fault::None);
    #[should_panic = "deadlock"]
    a_thread_that_does_not_look_after_a_death_is_found: 3000, death_of_a_submitter(Fault::IgnoresAlarms);
}

/// The exporter dies at any step. Awaited signals that were never submitted never come.
#[test]
fn the_exporter_dies() {
    check(2000, || {
        let (scene, notified) = notified();
        let exporter = scene.world.start_mortal(1, pick(40) as u32, |process| {
            let first = process.submit();
            let second = process.signal();
            process.complete(first);
            process.complete_all(second);
        });
        let survivor = {
            let server = Arc::clone(&scene.server.mailbox);
            scene.world.start(2, move |process| {
                exporter.join().unwrap();
                if one_in(2) {
                    process.slot().fail_orphans(&*process.world.ledger);
                    notified.abandon(&server);
                } else {
                    notified.abandon(&server);
                    process.slot().fail_orphans(&*process.world.ledger);
                }
            })
        };
        let registrar = |owner| {
            scene.register(owner, |server, event, process| {
                let numbers = [1 + pick(3), 1 + pick(9)];
                let begun = numbers.map(|number| server.begin(event, number, Waiter::new()));
                for (begun, number) in begun.iter().zip(numbers) {
                    let result = begun.answer.wait();
                    process.world.ledger.check(number, result, process.slot());
                    if number > 2 {
                        assert_eq!(result, Err(WaitError::Abandoned));
                    }
                    if result == Err(WaitError::Abandoned) {
                        assert!(process.slot().issued() < number, "{number} was submitted");
                    }
                }
            })
        };
        let processes = [survivor, registrar(3), registrar(4)];
        scene.finish(processes);
    });
}

/// A signal that never comes is reported without waiting for the earlier signal on its word, which
/// another process completes slowly.
#[test]
fn the_exporter_dies_and_another_process_goes_on() {
    check(1000, || {
        let (scene, notified) = notified();
        let first = scene.world.process(2).submit();
        let exporter = {
            let server = Arc::clone(&scene.server.mailbox);
            scene.world.start(1, move |process| {
                process.world.ledger.died(Owner::EXPORTER);
                notified.abandon(&server);
            })
        };
        let registrar = scene.register(3, move |server, event, process| {
            let late = server.begin(event, 8, Waiter::new());
            let soon = server.begin(event, 1, Waiter::new());
            let later = server.begin(event, 15, Waiter::new());
            assert_eq!(late.answer.wait(), Err(WaitError::Abandoned));
            assert_eq!(later.answer.wait(), Err(WaitError::Abandoned));
            process.world.process(2).complete(first);
            expect(&soon, process, 1);
        });
        scene.finish([exporter, registrar]);
    });
}

/// A process writes anything into another event's slot, and the honest event's waiters are still
/// notified. With `rings` it also writes anything to the doorbell that both events share. Then the
/// waiters are notified when the thread looks at all words in rotation.
fn beside_a_hostile_event(kind: Kind, rings: bool) {
    if rings {
        platform::allow_timeouts_up_to(SWEEP_INTERVAL);
    }
    let (honest, hostile) = (World::new(), Hostile::new());
    let event = Event::of(&honest);
    let forged = Event::new(&hostile.slot, hostile.clone());
    let slots = [Arc::clone(&hostile.slot), Arc::clone(&honest.slot)];
    let memory = Memory::of(slots);
    let writer = hostile.start_writing(pick(12));
    let ringer = {
        let doorbell = Arc::clone(&memory.doorbell);
        spawn(move || {
            for _ in 0..pick(9) * u64::from(rings) {
                let value = pick(5) << 32 | [0, 1, u64::from(u32::MAX)][pick(3) as usize];
                let value = [value, pick(9), u64::MAX][pick(3) as usize];
                doorbell.overwrite(pick(Doorbell::WORDS as u64) as usize, value);
            }
        })
    };
    let server = Server::start(kind, Fault::None, vec![memory]);
    let signaller = honest.start(1, signal_somehow);
    let registrar = {
        let server = Arc::clone(&server.mailbox);
        let (event, forged) = (event.clone(), forged.clone());
        honest.start(3, move |process| {
            let begin = |event, number| server.begin(event, number, Waiter::new());
            let of_hostile = [begin(&forged, 1 + pick(9)), begin(&forged, 1 + pick(9))];
            wait(&server, &event, process, 1);
            for begun in of_hostile {
                begun.cancel();
            }
        })
    };
    writer.join().unwrap();
    ringer.join().unwrap();
    honest.finish([signaller, registrar]);
    server.finish();
    event.check_let_go();
    forged.check_let_go();
}

cases! {
    a_hostile_event_holds_up_no_other: 1500, beside_a_hostile_event(Kind::any(), false);
    a_hostile_doorbell_holds_up_nobody_for_long: 1500, beside_a_hostile_event(Kind::Doorbells, true);
}

/// Devices signal and wake no thread. Only sleeps in steps time out.
#[test]
fn devices_signal() {
    check(1500, || {
        platform::allow_timeouts_up_to(LONGEST_STEP);
        let world = World::new();
        world.slot.mark_device_signals();
        let scene = Scene::of(Event::of(&world), world, Kind::any(), Fault::None);
        let signaller = |owner| {
            scene.world.start(owner, |process| {
                let stream = stream(process, 1 + pick(4));
                let tickets = process.signal();
                process.complete_all(tickets);
                stream.join().unwrap();
            })
        };
        let registrar = |owner| {
            scene.register(owner, |server, event, process| {
                for _ in 0..2 {
                    wait(server, event, process, 1 + pick(4));
                }
            })
        };
        let sleeper = scene
            .world
            .start(5, |process| process.wait(1 + pick(4)).unwrap());
        let processes = [
            signaller(1),
            signaller(2),
            registrar(3),
            registrar(4),
            sleeper,
        ];
        scene.finish(processes);
    });
}

/// The event is marked while it is awaited, and the thread misses the wake that follows the mark.
/// The next look at all words finds the mark. From then on the thread sleeps in steps.
#[test]
fn devices_signal_what_is_awaited_already() {
    check(500, || {
        platform::allow_timeouts_up_to(SWEEP_INTERVAL);
        platform::mute_doorbells();
        let scene = Scene::new(Kind::Doorbells, Fault::None);
        let registrar = scene.register(2, move |server, event, process| {
            wait(server, event, process, 1)
        });
        let device = scene.world.start(1, |process| {
            let has_slept = |limit| platform::sleeps().iter().any(|(_, slept)| *slept <= limit);
            while !has_slept(SWEEP_INTERVAL) {
                yield_now();
            }
            let mut stream = Stream::of(process.world.process(1));
            stream.submit();
            while !has_slept(LONGEST_STEP) {
                yield_now();
            }
            stream.run();
            stream.record_finished();
        });
        scene.finish([registrar, device]);
    });
}
