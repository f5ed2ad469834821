//! The soak test: faults at random moments, together with attackers, for a long time. No resource
//! may grow.

use super::bystanders::{Bystanders, ask};
use super::play::{Scene, play};
use super::stage::Plan;
use super::step::Fault;
use super::worker::Worker;
use super::workload;
use crate::attackers::attackers;
use crate::failure::Failure;
use crate::pattern::Random;
use crate::procfs::Usage;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum time between the start of the workers and a fault.
const LATEST_FAULT: Duration = Duration::from_millis(100);
/// Time between two measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// Time that each attacker runs before the next one starts.
const ATTACK: Duration = Duration::from_secs(10);
/// Interval at which the test checks whether an attacker has ended.
const ATTACK_LOOK: Duration = Duration::from_millis(20);
/// Permitted growth of resident memory between the second and the last third of a soak, in KiB.
/// `ALLOWED_COUNT` is the permitted growth of all other counts.
const ALLOWED_KIB: usize = 1024;
const ALLOWED_COUNT: usize = 6;

/// Runs a soak and prints its results. Returns whether there was no violation and no growth.
pub(super) fn run(
    scene: &Scene,
    seed: u64,
    jobs: usize,
    length: Duration,
) -> Result<bool, Failure> {
    let mut bystanders = Bystanders::start(scene)?;
    let mut exposed = scene.worker('E', false)?;
    let handles = exposed_handles(&mut exposed)?;
    let end = Instant::now() + length;
    let violations = Mutex::new(Vec::new());
    let plays = AtomicU64::new(0);
    let attacks = Mutex::new(BTreeMap::<&str, u32>::new());
    let mut measured = Series::default();
    let violated = |text: String| {
        println!("VIOLATION {text}");
        if let Ok(mut violations) = violations.lock() {
            violations.push(text);
        }
    };
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (violated, plays) = (&violated, &plays);
            scope.spawn(move || play_freely(scene, seed + job as u64, end, plays, violated));
        }
        let (attacks, violated_by, handles) = (&attacks, &violated, &handles);
        scope.spawn(move || {
            for attacker in attackers().iter().cycle() {
                if Instant::now() >= end {
                    break;
                }
                let until = end.min(Instant::now() + ATTACK);
                let name = attacker.name;
                let given = attacker.needs_handles.then_some(&handles[..]);
                match attack(scene, name, given.unwrap_or_default(), until) {
                    Ok(()) => {
                        if let Ok(mut attacks) = attacks.lock() {
                            *attacks.entry(name).or_default() += 1;
                        }
                    }
                    Err(failure) => violated_by(format!("attacker {name}: {failure}")),
                }
            }
        });
        let mut requests = 1_000;
        while Instant::now() < end {
            let next = Instant::now() + MEASURE_INTERVAL;
            if let Err(trouble) = bystanders.round() {
                violated(format!("a bystander was harmed: {trouble}"));
                break;
            }
            requests += 1;
            if let Err(trouble) = ask(&mut exposed, requests, "value e") {
                violated(format!("the exposed process does not answer: {trouble}"));
                break;
            }
            let processes = bystanders.pids().into_iter().chain([exposed.pid as u32]);
            if let Err(failure) = measured.measure(scene, processes) {
                violated(failure.to_string());
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    let growth = measured.growth();
    growth.iter().for_each(|text| println!("GROWTH {text}"));
    measured.show();
    let violations = violations.into_inner().unwrap_or_default();
    let attacks = attacks.into_inner().unwrap_or_default();
    println!(
        "soak on {} of {:.0} s: {} plays with faults at random moments, {} attacks by {} attackers, \
         {} violations, {} series grew",
        scene.device,
        length.as_secs_f64(),
        plays.load(Relaxed),
        attacks.values().sum::<u32>(),
        attacks.len(),
        violations.len(),
        growth.len()
    );
    Ok(violations.is_empty() && growth.is_empty())
}

/// Creates objects in the exposed process, and returns their handles.
fn exposed_handles(exposed: &mut Worker) -> Result<Vec<String>, Failure> {
    let mut number = 0;
    let mut asked = |command: &str| {
        number += 1;
        ask(exposed, number, command).map_err(Failure::new)
    };
    asked("event e")?;
    asked("allocate m 65536")?;
    Ok(vec![asked("memory-handle m")?, asked("event-handle e")?])
}

/// Runs an attacker in its own process until `until`.
fn attack(scene: &Scene, name: &str, handles: &[String], until: Instant) -> Result<(), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["attack", name])
        .arg(&scene.directory)
        .args(handles)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut ended = None;
    while Instant::now() < until && ended.is_none() {
        std::thread::sleep(ATTACK_LOOK);
        ended = child.try_wait()?;
    }
    drop(child.stdin.take());
    let end = Instant::now() + ATTACK;
    while ended.is_none() && Instant::now() < end {
        std::thread::sleep(ATTACK_LOOK);
        ended = child.try_wait()?;
    }
    let _ = child.kill();
    let _ = child.wait();
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Failure::new(format!("it ended with {status}"))),
        None => Err(Failure::new("it does not end")),
    }
}

/// Plays workloads with a fault at a random moment until `end`.
fn play_freely(
    scene: &Scene,
    seed: u64,
    end: Instant,
    plays: &AtomicU64,
    violated: &(impl Fn(String) + Sync),
) {
    let workloads = workload::all();
    let mut random = Random(seed);
    while Instant::now() < end {
        let script = &workloads[random.below(workloads.len())];
        let fault = match random.below(3) {
            0 => Fault::Stop,
            _ => Fault::Kill,
        };
        let after = LATEST_FAULT.as_micros() as usize;
        let plan = Plan::AtTime {
            victim: random.below(script.workers().len()),
            fault,
            after: Duration::from_micros(random.below(after) as u64),
        };
        match play(scene, script, random.next(), Some(plan), None, None) {
            Ok(played) if played.violations.is_empty() => {
                plays.fetch_add(u64::from(played.is_injected), Relaxed);
            }
            Ok(played) => violated(format!(
                "{} with {fault}:\n  {}",
                script.name,
                played.log.join("\n  ")
            )),
            Err(failure) => violated(format!("{}: {failure}", script.name)),
        }
    }
}

/// Measurements over time, by name.
#[derive(Default)]
struct Series(BTreeMap<String, Vec<usize>>);

impl Series {
    fn measure(
        &mut self,
        scene: &Scene,
        processes: impl Iterator<Item = u32>,
    ) -> Result<(), Failure> {
        for (place, pid) in processes.enumerate() {
            let name = ["honest exporter", "honest importer", "exposed exporter"][place.min(2)];
            let usage = Usage::of(pid)?;
            let threads = fs::read_dir(format!("/proc/{pid}/task"))?.count();
            self.note(format!("{name}: KiB resident"), usage.resident);
            self.note(format!("{name}: descriptors"), usage.descriptors);
            self.note(format!("{name}: mappings"), usage.mappings);
            self.note(format!("{name}: threads"), threads);
        }
        // Dead exporters leave sockets, which the next exporter removes.
        let sockets = fs::read_dir(&scene.directory)?.count();
        self.note("sockets in the directory".to_owned(), sockets);
        Ok(())
    }

    fn note(&mut self, name: String, value: usize) {
        self.0.entry(name).or_default().push(value);
    }

    /// Returns the series whose minimum in the last third exceeds the minimum in the second third.
    /// Minima are compared because an attacker may take resources temporarily.
    fn growth(&self) -> Vec<String> {
        let grown = self.0.iter().filter_map(|(name, values)| {
            let third = values.len() / 3;
            let before = values.get(third..2 * third)?.iter().min()?;
            let after = values.get(2 * third..)?.iter().min()?;
            let allowed = match name.contains("KiB") {
                true => ALLOWED_KIB,
                false => ALLOWED_COUNT,
            };
            (*after > before + allowed).then(|| format!("{name}: {before}, later {after}"))
        });
        grown.collect()
    }

    fn show(&self) {
        for (name, values) in &self.0 {
            let (first, last) = (values.first(), values.last());
            let most = values.iter().max();
            if let (Some(first), Some(last), Some(most)) = (first, last, most) {
                println!("{name}: {first} at first, {last} at the end, {most} at most");
            }
        }
    }
}
