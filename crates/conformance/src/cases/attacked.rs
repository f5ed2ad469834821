//! Beside each attacker, honest processes go on: opens and waits end as always, nothing of what the
//! attacker did remains.

use super::faults::{event_of, memory_of};
use crate::attackers::attackers;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::suite::Outcome;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Honest opens while an attack is under way.
const OPENS: u32 = 20;
/// Least time for which an attack is withstood.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// Longest time of one of them: far more than it takes, far less than an attack could hold it up.
const SLOWEST: Duration = Duration::from_millis(1_000);

/// Time that an attacker may take to prepare itself: 50,000 locks take seconds.
const PREPARATION: Duration = Duration::from_secs(60);
/// Descriptors that the exporter may have, as is usual.
const DESCRIPTORS: u64 = 1024;

/// The most that the exporter's memory may have grown by after an attack, in KiB: most of it is what the
/// honest processes take. A hang-up that believes forged words takes hundreds of megabytes.
const GROWTH: usize = 16 << 10;
/// The user without rights.
const NOBODY: u32 = 65534;

/// An attack to withstand.
#[derive(Clone, Copy)]
struct Plan {
    attacker: &'static str,
    /// Whether another user attacks, whom the exporter admits.
    by_another_user: bool,
    /// Whether the exporter's system lets nobody refuse descriptors: Linux before 6.16.
    on_older_system: bool,
}

impl Plan {
    const fn of(attacker: &'static str) -> Self {
        Self {
            attacker,
            by_another_user: false,
            on_older_system: false,
        }
    }

    const fn by_another_user(self) -> Self {
        Self {
            by_another_user: true,
            ..self
        }
    }

    const fn on_older_system(self) -> Self {
        Self {
            on_older_system: true,
            ..self
        }
    }
}

/// A process that attacks until it is dropped.
pub(crate) struct Attack {
    child: Child,
    /// A copy of the program that every user may run.
    copy: Option<PathBuf>,
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(copy) = &self.copy {
            let _ = fs::remove_file(copy);
        }
    }
}

/// As whom an attacker runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Another user.
    pub(crate) user: Option<u32>,
    /// Whether it gets only processor time that nobody else wants, so that it can take time of its
    /// victims' threads alone, and none of their processors'.
    pub(crate) is_idle: bool,
}

/// Starts an attacker, and waits until it has begun; or returns why it can't.
pub(crate) fn start(
    harness: &Harness,
    name: &str,
    handles: &[String],
    terms: Terms,
) -> Result<Result<Attack, String>, Failure> {
    let mut program = harness.program().with_file_name("conformance");
    let mut copy = None;
    if terms.user.is_some() {
        let place = harness.directory().with_extension("attacker");
        fs::copy(&program, &place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        program.clone_from(&place);
        copy = Some(place);
    }
    let mut command = Command::new(&program);
    if let Some(user) = terms.user {
        command.uid(user).gid(user);
    }
    if terms.is_idle {
        // SAFETY: the closure makes one system call, and takes no lock and no memory.
        unsafe { command.pre_exec(take_idle_time) };
    }
    let mut child = command
        .args(["attack", name])
        .arg(harness.directory())
        .args(handles)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("starting {program:?}: {error}")))?;
    let output = child.stdout.take().ok_or(Failure::new("no output"))?;
    let attack = Attack { child, copy };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    match told.recv_timeout(PREPARATION * crate::slowdown())?.as_str() {
        "begun" => Ok(Ok(attack)),
        reason => Ok(Err(reason.to_owned())),
    }
}

/// Gives this process only processor time that nobody else wants.
fn take_idle_time() -> std::io::Result<()> {
    // SAFETY: the structure is plain numbers.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the structure.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the handles that an attacker is given, of those of memory and of an event.
pub(crate) fn given(name: &str, handles: &[String; 2]) -> Vec<String> {
    let found = attackers().iter().find(|attacker| attacker.name() == name);
    match found.is_some_and(|attacker| attacker.needs_handles()) {
        true => handles.to_vec(),
        false => Vec::new(),
    }
}

fn withstand(harness: &Harness, plan: Plan) -> Verdict {
    let name = plan.attacker;
    let (exporter, waiter) = (harness.peer()?, harness.peer()?);
    if plan.on_older_system {
        exporter.ask("forbid-passrights")?;
    }
    if plan.by_another_user {
        if !rustix::process::geteuid().is_root() {
            return Ok(Outcome::Unavailable(
                "only root can start an attacker of another user".into(),
            ));
        }
        exporter.ask("context default peers=anyone")?;
        let listed = fs::Permissions::from_mode(0o755);
        fs::set_permissions(harness.directory(), listed)?;
    }
    // The attacker's handles are of objects of its own; of a context of its own, if nothing in its arena
    // can be believed any more.
    let place = match name {
        "forged-words" => " context=apart",
        _ => "",
    };
    exporter.ask("context apart")?;
    let given = [
        memory_of(&exporter, "given", 1)?.to_string(),
        event_of(&exporter, &format!("given-event{place}"))?.to_string(),
    ];
    let handles = self::given(name, &given);
    let terms = Terms {
        user: plan.by_another_user.then_some(NOBODY),
        ..Terms::default()
    };
    exporter.ask(format!("limit-files {DESCRIPTORS}"))?;
    let (memory, event) = (memory_of(&exporter, "m", 2)?, event_of(&exporter, "e")?);
    waiter.ask(format!("open-event e {event}"))?;
    let before = exporter.usage()?;
    let attack = match start(harness, name, &handles, terms)? {
        Ok(attack) => attack,
        Err(reason) => return Ok(Outcome::Unavailable(reason)),
    };
    let (mut slowest, mut number) = (Duration::ZERO, 0);
    let end = Instant::now() + UNDER_WAY;
    while number < OPENS || Instant::now() < end {
        number += 1;
        // A newcomer, who has to be let in.
        let newcomer = harness.peer()?;
        // A driver's context takes its own time, beside those of other processes.
        newcomer.ask("context default")?;
        let began = Instant::now();
        newcomer.ask(format!("open-memory m {memory}"))?;
        newcomer.ask("check m 0 2 100000")?;
        newcomer.ask(format!("open-event e {event}"))?;
        let waiting = waiter.begin(format!("wait-value e {number} 60000"));
        waiting.begun()?;
        exporter.ask("signal e")?;
        waiting.reply(deadline())?;
        slowest = slowest.max(began.elapsed());
    }
    // The exporter's own needs are served, too.
    exporter.ask("allocate more 70000000")?;
    exporter.ask("memory-handle more")?;
    exporter.ask("close more")?;
    let growth = exporter.usage()?.resident.saturating_sub(before.resident);
    drop(attack);
    if growth > GROWTH {
        return Err(Failure::new(format!(
            "{name}: the exporter took {growth} KiB"
        )));
    }
    if slowest > SLOWEST * crate::slowdown() {
        return Err(Failure::new(format!("{name}: a round took {slowest:?}")));
    }
    // Bounded time for the exporter to let go of the attacker's connections.
    eventually("the exporter lets go of the attacker", || {
        Ok(exporter.usage()?.descriptors <= before.descriptors)
    })?;
    Ok(Outcome::Passed(format!(
        "slowest round {slowest:?}, {growth} KiB"
    )))
}

macro_rules! rules {
    ($($rule:ident $plan:expr, $what:literal)*) => {
        $(#[doc = $what]
        pub(crate) fn $rule(harness: &Harness) -> Verdict {
            withstand(harness, $plan)
        })*
    };
}

rules! {
    by_idle_connections Plan::of("idle-connections"), "10,000 connections that say nothing."
    by_idle_connections_of_another_user Plan::of("idle-connections").by_another_user(),
        "10,000 connections of a user who may connect, that say nothing."
    by_connection_floods Plan::of("connection-flood"), "Connecting and hanging up without a pause."
    by_garbage Plan::of("garbage"), "Messages without sense."
    by_slow_readers Plan::of("slow-readers"), "Requests whose answers nobody reads."
    by_nasty_descriptors Plan::of("nasty-descriptors"), "Descriptors that block whoever closes them."
    by_nasty_descriptors_on_older_systems Plan::of("nasty-descriptors").on_older_system(),
        "The same, where the kernel doesn't refuse to send them."
    by_nasty_importers Plan::of("nasty-importer"), "The same descriptors, from who was let in."
    by_nasty_importers_on_older_systems Plan::of("nasty-importer").on_older_system(),
        "The same, where the kernel doesn't refuse to send them."
    by_forged_words Plan::of("forged-words"), "Hang-ups after which nothing in the arena is true."
    by_record_locks Plan::of("record-locks"), "50,000 locks on the files that a handle's holder gets."
    by_requeued_sleepers Plan::of("requeue"), "Sleepers moved away."
    by_priority_locks Plan::of("priority-locks"), "Locks with priority inheritance on the words of events."
}
