//! The siege. Attackers attack a holder and its successor while honest programs use them, with one
//! user and with two. Every honest call must succeed in time. No process of the pair may end or
//! exceed its quota. Afterwards, all resources that the attackers took must be free again.

use super::honest::Honest;
use super::{HOSTILE, attackers};
use crate::attackers::pair::{Pair, Taken};
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Duration of each attack in a full siege.
const LENGTH: Duration = Duration::from_secs(5);
/// Number of processes of one attacker.
const PROCESSES: usize = 2;
/// Number of names that readers keep.
const KEPT_NAMES: u64 = 8;
/// User id of the honest programs if the attackers run as another user, `HOSTILE_USER`.
const HONEST_USER: u32 = 61_233;
const HOSTILE_USER: u32 = 61_234;
/// Maximum time until an attacker has begun.
const PREPARATION: Duration = Duration::from_secs(10);
/// Interval at which the pair is checked during an attack.
const LOOK: Duration = Duration::from_millis(20);
/// The attacker that only uses processor time and leaves the holder alone. It runs in every siege,
/// because other attackers use processor time too.
const CONTROL: &str = "busy-loop";
/// The attacker that runs while processes of the pair are killed.
const BESIDE_DEATHS: &str = "request-flood";
/// Command that runs a program as root of a user namespace with many users.
const UNSHARE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--map-auto"];

/// The options of a siege.
pub struct Siege {
    /// The `crosshandle` command.
    pub command: PathBuf,
    /// Duration of each attack.
    pub length: Duration,
    /// Only attackers whose name contains this text attack.
    pub attacker: String,
    /// The scheduling of the attacks, in order. For `true`, attackers only get processor time that
    /// is otherwise idle. For `false`, they are scheduled like any program.
    pub terms: &'static [bool],
    /// Whether the siege is a short sample.
    pub is_sample: bool,
    /// Whether only the part with two users runs.
    pub only_two_users: bool,
}

impl Siege {
    /// Returns the options of a full siege of holders that run this command.
    pub fn of(command: PathBuf) -> Self {
        Self {
            command,
            length: LENGTH,
            attacker: String::new(),
            terms: &[false, true],
            is_sample: false,
            only_two_users: false,
        }
    }
}

/// Durations of calls, sorted.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
        self.0.sort_unstable();
    }

    fn percentile(&self, percent: usize) -> u64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * percent / 100).copied().unwrap_or(0)
    }
}

/// The measurements of honest programs during an attack.
#[derive(Default)]
struct Row {
    hand_overs: Times,
    opens: Times,
    /// The highest resource use of each process of the pair.
    taken: [Taken; 2],
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.hand_overs.add(&other.hand_overs);
        self.opens.add(&other.opens);
    }

    /// Prints the row. The last two figures of each half compare it with the row without attackers
    /// and with the row next to [`CONTROL`].
    fn show(&self, name: &str, alone: &Self, control: &Self) {
        let half = |of: fn(&Self) -> &Times| {
            let (times, p99) = (of(self), of(self).percentile(99));
            let quotient = |other: &Self| p99 as f64 / of(other).percentile(99).max(1) as f64;
            format!(
                "{:>6} {:>7} {p99:>8} {:>6.1} {:>6.2}",
                times.0.len(),
                times.percentile(50),
                quotient(alone),
                quotient(control)
            )
        };
        println!(
            "{name:<40} {} | {}",
            half(|row| &row.hand_overs),
            half(|row| &row.opens)
        );
    }
}

/// The processes of a running attacker. Killed on drop.
struct Hostile(Vec<Child>);

impl Hostile {
    /// Sets the scheduling policy of all threads, as far as this user is permitted to.
    fn set_policy(&self, policy: libc::c_int) {
        for child in &self.0 {
            let tasks = fs::read_dir(format!("/proc/{}/task", child.id()));
            for task in tasks.into_iter().flatten().flatten() {
                let Ok(thread) = task.file_name().to_string_lossy().parse() else {
                    continue;
                };
                // SAFETY: the structure contains only numbers.
                let none: libc::sched_param = unsafe { std::mem::zeroed() };
                // SAFETY: the kernel only reads the structure.
                unsafe { libc::sched_setscheduler(thread, policy, &raw const none) };
            }
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // Killed processes need processor time to end.
        self.set_policy(libc::SCHED_OTHER);
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// A pair with its honest programs.
struct Scene<'a> {
    siege: &'a Siege,
    /// Path of this program, which all users may run.
    program: PathBuf,
    hostile_user: Option<u32>,
    pair: Pair,
    maker: Honest,
    reader: Honest,
}

impl<'a> Scene<'a> {
    fn new(siege: &'a Siege, has_users: bool) -> Result<Self, Failure> {
        let users = has_users.then_some((HONEST_USER, HOSTILE_USER));
        let name = format!("xhs-{}-{}", std::process::id(), u8::from(has_users));
        let directory = std::env::temp_dir().join(name);
        let (mut program, mut command) = (std::env::current_exe()?, siege.command.clone());
        if has_users {
            let programs = directory.with_extension("programs");
            fs::create_dir(&programs)?;
            fs::set_permissions(&programs, fs::Permissions::from_mode(0o755))?;
            for path in [&mut program, &mut command] {
                let copy = programs.join(path.file_name().unwrap_or_default());
                fs::copy(&path, &copy)?;
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
                *path = copy;
            }
        }
        let honest = users.map(|(honest, _)| honest);
        // Admits this process too, because it asks the holder for its status.
        let admitted = users.map(|(_, hostile)| [hostile, rustix::process::geteuid().as_raw()]);
        let admitted = admitted.as_ref().map_or(&[][..], |users| &users[..]);
        let pair = Pair::start(&command, directory, honest, admitted)?;
        let mut maker = Honest::start(&program, &pair.directory, honest)?;
        let mut reader = Honest::start(&program, &pair.directory, honest)?;
        maker.ask(&format!("make {KEPT_NAMES}"))?;
        reader.ask(&format!("keep {KEPT_NAMES}"))?;
        Ok(Self {
            siege,
            program,
            hostile_user: users.map(|(_, hostile)| hostile),
            pair,
            maker,
            reader,
        })
    }

    /// Starts an attacker. Returns when all its processes have begun, or the reason why they
    /// cannot.
    fn attack(&self, name: &str, is_idle: bool) -> Result<Result<Hostile, String>, Failure> {
        let mut hostile = Hostile(Vec::new());
        let (tell, told) = channel();
        for _ in 0..PROCESSES {
            let mut command = Command::new(&self.program);
            if let Some(user) = self.hostile_user {
                command.uid(user).gid(user);
            }
            let mut child = command
                .args(["attack", name])
                .arg(&self.pair.directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let output = child.stdout.take();
            hostile.0.push(child);
            let tell = tell.clone();
            std::thread::spawn(move || {
                let lines = output.map(|output| BufReader::new(output).lines());
                for line in lines.into_iter().flatten().map_while(Result::ok) {
                    let _ = tell.send(line);
                }
            });
        }
        let end = Instant::now() + PREPARATION * crate::slowdown();
        for _ in 0..PROCESSES {
            let left = end.saturating_duration_since(Instant::now());
            match told.recv_timeout(left).as_deref() {
                Ok("begun") => {}
                Ok(reason) => return Ok(Err(reason.to_owned())),
                Err(_) => return Ok(Err("it does not begin".to_owned())),
            }
        }
        if is_idle {
            // Set only now, because the attacker may never begin on a busy machine with this
            // policy.
            hostile.set_policy(libc::SCHED_IDLE);
        }
        Ok(Ok(hostile))
    }

    /// Lets both honest programs work for `length`, and checks the pair during that time.
    fn measure(&mut self, length: Duration, before: &[Taken; 2]) -> Result<Row, Failure> {
        let millis = length.as_millis();
        self.maker.say(&format!("hand-over {millis}"))?;
        self.reader.say(&format!("open {millis}"))?;
        let end = Instant::now() + length;
        let mut row = Row::default();
        while Instant::now() < end {
            for (most, now) in row.taken.iter_mut().zip(self.pair.check(before)?) {
                *most = most.max(now);
            }
            sleep(LOOK);
        }
        let read = |answer: String| {
            let took = answer.split(' ').map(str::parse::<u64>);
            let mut took = took.collect::<Result<Vec<_>, _>>()?;
            took.sort_unstable();
            Ok::<_, Failure>(Times(took))
        };
        // Reads both answers, so that no answer is left for the next measurement.
        let (hand_overs, opens) = (self.maker.hear(length), self.reader.hear(length));
        row.hand_overs =
            read(hand_overs.map_err(|failure| Failure::new(format!("a hand-over: {failure}")))?)?;
        row.opens = read(opens.map_err(|failure| Failure::new(format!("an open: {failure}")))?)?;
        Ok(row)
    }

    /// Runs one attack. Returns the measurements of honest programs.
    fn round(&mut self, name: &str, is_idle: bool, before: &[Taken; 2]) -> Result<Row, Failure> {
        let hostile = match self.attack(name, is_idle)? {
            Ok(hostile) => hostile,
            Err(reason) => {
                return Err(Failure::new(format!(
                    "the attack is not possible: {reason}"
                )));
            }
        };
        let row = self.measure(self.siege.length, before);
        let same = self.pair.check_same();
        drop(hostile);
        let (row, ()) = (row?, same?);
        self.pair.settle(HOSTILE, before, false)?;
        Ok(row)
    }

    /// Kills the holder, and later both processes, during an attack. Returns the time in
    /// milliseconds until all names were restored.
    fn deaths(&mut self, is_idle: bool) -> Result<(Row, String), Failure> {
        let hostile = self.attack(BESIDE_DEATHS, is_idle)?.map_err(Failure::new)?;
        self.pair.kill_holder()?;
        let before = self.pair.taken()?;
        let mut row = self.measure(self.siege.length, &before)?;
        self.pair.kill_both()?;
        let back = self.reader.ask("back")?;
        let before = self.pair.taken()?;
        row.add(&self.measure(self.siege.length, &before)?);
        drop(hostile);
        Ok((row, back))
    }
}

/// Runs a siege. Returns whether no promise was broken.
///
/// # Errors
/// Fails if the siege cannot begin.
pub fn siege(siege: &Siege) -> Result<bool, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    let mut is_good = true;
    if !siege.only_two_users {
        is_good &= besiege(siege, false)?;
    }
    if is_root {
        is_good &= besiege(siege, true)?;
    } else {
        match in_namespace(siege)? {
            Some(passed) => is_good &= passed,
            None => println!(
                "skipped: attackers of another user, since this process is not root and `{}` does not work here",
                UNSHARE.join(" ")
            ),
        }
    }
    Ok(is_good)
}

/// Runs the part with two users as root of a user namespace. Returns `None` if the system does not
/// permit one.
fn in_namespace(siege: &Siege) -> Result<Option<bool>, Failure> {
    let [program, options @ ..] = UNSHARE;
    let unshare = |words: &mut dyn Iterator<Item = &str>| {
        let mut command = Command::new(program);
        command
            .args(options)
            .arg("--")
            .args(words)
            .stdin(Stdio::null());
        command
    };
    let mut tried = unshare(&mut ["true"].into_iter());
    let tried = tried.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let own = std::env::current_exe()?;
    let millis = siege.length.as_millis().to_string();
    let mut words = vec!["holders", "--two-users", "--millis", &millis];
    if siege.is_sample {
        words.push("--short");
    }
    if siege.terms == [true] {
        words.push("--idle");
    }
    if !siege.attacker.is_empty() {
        words.extend(["--attacker", &siege.attacker]);
    }
    let mut all = own.to_str().into_iter().chain(words);
    Ok(Some(unshare(&mut all).status()?.success()))
}

fn besiege(siege: &Siege, has_users: bool) -> Result<bool, Failure> {
    let programs;
    let mut violations = Vec::new();
    {
        let mut scene = Scene::new(siege, has_users)?;
        programs = scene.pair.directory.with_extension("programs");
        play(&mut scene, has_users, &mut violations)?;
    }
    let _ = fs::remove_dir_all(programs);
    Ok(violations.is_empty())
}

fn play(
    scene: &mut Scene<'_>,
    has_users: bool,
    violations: &mut Vec<String>,
) -> Result<(), Failure> {
    let siege = scene.siege;
    let users = if has_users {
        "another user"
    } else {
        "the same user"
    };
    let nothing = [Taken::default(); 2].map(|taken| Taken {
        resident: 1 << 30,
        ..taken
    });
    // The resources of the first calls are kept, so these calls are not part of the measurement.
    scene.measure(siege.length, &nothing)?;
    let alone = scene.measure(4 * siege.length, &nothing)?;
    let before = scene.pair.taken()?;
    println!(
        "attackers of {users}; \u{b5}s: hand-overs | opens, each with number, p50, p99, and p99 as a \
         multiple of that without attackers and of that next to {CONTROL}"
    );
    alone.show("nobody", &alone, &alone);
    let (mut all, mut most, mut count) = (Row::default(), [Taken::default(); 2], 0);
    let mut controls = BTreeMap::new();
    let is_chosen = |name: &str| name.contains(&siege.attacker);
    let attackers = attackers().iter();
    for attacker in attackers.filter(|of| of.name == CONTROL || is_chosen(of.name)) {
        for &is_idle in siege.terms {
            let name = attacker.name;
            let shown = format!("{name}{}", if is_idle { ", idle" } else { "" });
            match scene.round(name, is_idle, &before) {
                Ok(row) => {
                    row.show(&shown, &alone, controls.get(&is_idle).unwrap_or(&row));
                    for (most, now) in most.iter_mut().zip(row.taken) {
                        *most = most.max(now);
                    }
                    count += 1;
                    if name == CONTROL {
                        controls.insert(is_idle, row);
                    } else {
                        all.add(&row);
                    }
                }
                Err(failure) => {
                    println!("VIOLATION {shown}, of {users}: {failure}");
                    violations.push(shown);
                    scene.pair.settle(HOSTILE, &before, false)?;
                }
            }
        }
    }
    // Idle background threads take seconds to end, which is too long for a sample.
    let with_threads = !siege.is_sample;
    scene.pair.settle(HOSTILE, &before, with_threads)?;
    let mut back = String::new();
    for &is_idle in siege.terms {
        if !is_chosen(BESIDE_DEATHS) {
            continue;
        }
        let shown = format!("deaths of the pair{}", if is_idle { ", idle" } else { "" });
        match scene.deaths(is_idle) {
            Ok((row, millis)) => {
                let control = controls.get(&is_idle).unwrap_or(&row);
                row.show(&format!("{shown}, back {millis} ms"), &alone, control);
                back = format!("; all {KEPT_NAMES} names were back after {millis} ms");
            }
            Err(failure) => {
                println!("VIOLATION {shown}, of {users}: {failure}");
                violations.push(shown);
            }
        }
    }
    let [holder, successor] = most;
    println!(
        "the most that the holder and its successor had: {holder:?}, {successor:?}; before: {before:?}"
    );
    let mut control = Row::default();
    controls.values().for_each(|row| control.add(row));
    all.show("all attackers", &alone, &control);
    println!(
        "holders: {count} attacks of {users}, {} violations{back}",
        violations.len(),
    );
    Ok(())
}
