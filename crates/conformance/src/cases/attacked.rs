//! Honest processes continue during each attack. Their opens and waits end as usual, and nothing
//! that the attacker did remains afterwards.

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

/// Minimum number of honest opens during an attack.
const OPENS: u32 = 20;
/// Minimum duration of an attack.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// Maximum time of an honest open. It is far more than an open takes, and far less than an attack
/// could delay it.
const SLOWEST: Duration = Duration::from_millis(1_000);

/// Time that an attacker may take to prepare. 50,000 locks take seconds.
const PREPARATION: Duration = Duration::from_secs(60);
/// Maximum number of the exporter's descriptors, which is the usual limit.
const DESCRIPTORS: u64 = 1024;

/// Maximum growth of the exporter's memory during an attack, in KiB. Most of the growth comes from
/// the honest processes. If a hang-up trusted forged words, it would use hundreds of megabytes.
const GROWTH: usize = 16 << 10;
/// The user ID of the user without rights.
const NOBODY: u32 = 65534;

/// An attack, and the conditions under which it runs.
#[derive(Clone, Copy)]
struct Plan {
    attacker: &'static str,
    /// Whether the attacker is another user, whom the exporter admits.
    by_another_user: bool,
    /// Whether the exporter cannot tell the kernel to refuse descriptors, as on Linux before 6.16.
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

/// An attacking process, which is killed when dropped.
pub(crate) struct Attack {
    child: Child,
    /// A copy of the program that every user may execute.
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

/// The user and the priority of an attacker.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// The user ID of another user, if the attacker runs as one.
    pub(crate) user: Option<u32>,
    /// Whether the attacker gets only idle processor time. It then slows down its victims only by
    /// making their threads work, and not by using their processors.
    pub(crate) is_idle: bool,
}

/// Starts an attacker and waits until its attack has begun. Returns the reason if it cannot run
/// here.
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
        // SAFETY: the closure makes one system call. It takes no lock and allocates no memory.
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

/// Limits this process to idle processor time.
fn take_idle_time() -> std::io::Result<()> {
    // SAFETY: the structure consists of numbers, so zeros are a valid value.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the structure.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns those of the handles to memory and to an event that an attacker needs.
pub(crate) fn given(name: &str, handles: &[String; 2]) -> Vec<String> {
    let found = attackers().iter().find(|attacker| attacker.name == name);
    match found.is_some_and(|attacker| attacker.needs_handles) {
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
    // The attacker's handles refer to objects of its own. If its arena cannot be trusted
    // afterwards, they are in a separate context.
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
        // This process is new, so the exporter must admit it.
        let newcomer = harness.peer()?;
        // Creating a driver's context is slow while other processes do it too, so it is not
        // measured.
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
    // The exporter's own calls must succeed too.
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
    // The exporter must close the attacker's connections within a bounded time.
    eventually("the exporter closes the attacker's connections", || {
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
    by_idle_connections Plan::of("idle-connections"), "The attacker opens 10,000 connections and sends nothing."
    by_idle_connections_of_another_user Plan::of("idle-connections").by_another_user(),
        "Another user, who may connect, opens 10,000 connections and sends nothing."
    by_connection_floods Plan::of("connection-flood"), "The attacker connects and hangs up without a pause."
    by_garbage Plan::of("garbage"), "The attacker sends invalid messages."
    by_slow_readers Plan::of("slow-readers"), "The attacker sends requests and never reads the replies."
    by_nasty_descriptors Plan::of("nasty-descriptors"), "The attacker sends descriptors that block the process that closes them."
    by_nasty_descriptors_on_older_systems Plan::of("nasty-descriptors").on_older_system(),
        "The attacker sends blocking descriptors, and the kernel does not refuse them."
    by_nasty_importers Plan::of("nasty-importer"), "An attached importer sends blocking descriptors."
    by_nasty_importers_on_older_systems Plan::of("nasty-importer").on_older_system(),
        "An attached importer sends blocking descriptors, and the kernel does not refuse them."
    by_forged_words Plan::of("forged-words"), "The attacker forges all words of the arena and hangs up."
    by_record_locks Plan::of("record-locks"), "The attacker sets 50,000 locks on the files that an importer receives."
    by_requeued_sleepers Plan::of("requeue"), "The attacker moves sleepers to another futex."
    by_priority_locks Plan::of("priority-locks"), "The attacker takes locks with priority inheritance on the words of events."
}
