//! Cases about access to a broker: users, directories and namespaces.

use super::stopped::Stopped;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, slowdown};
use crate::peer::PeerOptions;
use crate::suite::PASSED;
use crate::{Outcome, Peer, Transfer, procfs, raw};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{Command, Context, Error, PeerPolicy, report::SOCKET_DIR_VARIABLE};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

/// ID of the user and of the group without rights.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn needs_root() -> Verdict {
    Ok(Outcome::Unavailable(
        "only root can start peers of another user".into(),
    ))
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// The directory's mode and the checks of both sides refuse another user.
pub(crate) fn other_users_are_refused(harness: &Harness) -> Verdict {
    if !is_root() {
        return needs_root();
    }
    let context = harness.context()?;
    let memory = context.allocate(100)?;
    let handle = memory.handle()?;
    let stranger = harness.peer_with(PeerOptions::new().user(NOBODY))?;
    let refused = stranger.ask(format!("open-memory m {handle}"));
    let refused = refused.expect_err("the directory is closed");
    assert_eq!(refused.kind, "InvalidArgument", "{refused}");
    // The checks refuse the user even if the modes of the directory and the socket allow access.
    set_mode(harness.directory(), 0o711)?;
    set_mode(&crate::raw::only_socket(harness.directory())?, 0o666)?;
    stranger.refused(format!("open-memory m {handle}"), "NotAdmitted")?;
    stranger.ask("context trusting peers=anyone")?;
    let open = format!("open-memory m {handle} context=trusting");
    let refused = stranger.refused(&open, "NotAdmitted")?;
    assert!(refused.message.contains("65534"), "{refused}");
    // The exporter still serves its own user.
    harness.peer()?.ask(format!("open-memory m {handle}"))?;
    PASSED
}

/// Another user is served if both sides admit it, and gets only what was granted.
pub(crate) fn other_users_can_be_admitted(harness: &Harness) -> Verdict {
    if !is_root() {
        return needs_root();
    }
    set_mode(harness.directory(), 0o711)?;
    let options = harness.options().peers(PeerPolicy::Anyone);
    let context = Context::with_options(harness.device(), options)?;
    let transfer = Transfer::new(&context)?;
    let guest = harness.peer_with(PeerOptions::new().user(NOBODY))?;
    guest.ask("context c peers=anyone")?;
    let memory = context.allocate(100_000)?;
    guest.ask(format!("open-memory m {} context=c", memory.handle()?))?;
    guest.ask("write m 0 1 1000")?;
    transfer.check(&memory, 0, 1, 1_000)?;
    let event = context.create_event()?;
    guest.ask(format!("open-event e {} context=c", event.handle()?))?;
    guest.ask("signal e")?;
    event.wait_value_timeout(1, deadline())?;
    if harness.capabilities().read_only_memory {
        // The other user has a read-only descriptor, and cannot make a writable one of it.
        let unit = context.device().info().granularity;
        let physical = PhysicalMemory::new(&context, unit)?;
        let handle = physical.handle_read_only()?;
        guest.ask(format!("open-physical p {handle} read-only=yes context=c"))?;
        if harness.is_host() {
            let found = guest.ask("reopen-writable crosshandle-physical")?;
            assert_eq!(
                found,
                ["1", "0"],
                "descriptors, and those that can be made writable"
            );
        }
    }
    // Other users get no report of what is shared.
    let socket = raw::only_socket(harness.directory())?;
    let describe = format!("describe {}", socket.display());
    let refused = raw::NOT_ADMITTED.to_string();
    assert_eq!(guest.ask(&describe)?, [refused.as_str(), "0"]);
    assert_eq!(harness.peer()?.ask(&describe)?, ["0", "1"]);
    // A context that admits no other user stays closed, although the process's socket is
    // accessible.
    let private = harness.context()?;
    let secret = private.allocate(100)?;
    let open = format!("open-memory s {} context=c", secret.handle()?);
    guest.refused(&open, "NotAdmitted")?;
    PASSED
}

/// The socket directory comes from the context's options, or otherwise from the environment.
pub(crate) fn directories_are_found(harness: &Harness) -> Verdict {
    let (a, b) = (harness.directory().join("a"), harness.directory().join("b"));
    let with = |path: &Path| {
        let options = PeerOptions::new().without_directory();
        harness.peer_with(options.variable(SOCKET_DIR_VARIABLE, path))
    };
    let exporter = with(&a)?;
    exporter.ask("allocate m 100")?;
    let handle = exporter.ask("memory-handle m")?.remove(0);
    assert_eq!(fs::read_dir(&a)?.count(), 1, "made when first needed");
    assert_eq!(fs::metadata(&a)?.permissions().mode() & 0o777, 0o700);
    with(&a)?.ask(format!("open-memory m {handle}"))?;
    let elsewhere = with(&b)?;
    let refused = elsewhere.refused(format!("open-memory m {handle}"), "ExporterGone")?;
    assert!(refused.message.contains(SOCKET_DIR_VARIABLE), "{refused}");
    elsewhere.ask(format!("context c directory={}", a.display()))?;
    elsewhere.ask(format!("open-memory m {handle} context=c"))?;
    // An exporter removes its socket when it ends.
    exporter.ask("close m default")?;
    drop(elsewhere);
    crate::harness::eventually("a socket goes with its last context", || {
        Ok(fs::read_dir(&a)?.count() == 0)
    })?;
    PASSED
}

/// An unusable directory is refused with a clear error, and everything else still works.
pub(crate) fn unusable_directories_are_refused(harness: &Harness) -> Verdict {
    let base = harness.directory();
    fs::write(base.join("file"), "")?;
    fs::create_dir(base.join("open"))?;
    set_mode(&base.join("open"), 0o777)?;
    let long = base.join("x".repeat(100));
    for path in [
        base.join("file"),
        base.join("file/below"),
        base.join("open"),
        long,
    ] {
        let options = harness.options().socket_dir(&path);
        let context = Context::with_options(harness.device(), options)?;
        let memory = context.allocate(100)?;
        for _ in 0..2 {
            match memory.handle() {
                Err(Error::InvalidArgument(message)) => {
                    assert!(message.contains(&*path.to_string_lossy()), "{message}");
                }
                other => return Err(Failure::new(format!("{path:?}: {other:?}"))),
            }
        }
        if path.ends_with("open") {
            set_mode(&path, 0o700)?;
            memory.handle()?;
        }
        // Memory that is never shared needs no directory.
        Transfer::new(&context)?.write(&memory, 0, &[1])?;
    }
    PASSED
}

/// The next exporter removes the sockets of killed processes, but never those of live processes.
pub(crate) fn dead_sockets_are_swept(harness: &Harness) -> Verdict {
    let export = |peer: &Peer| -> Result<String, Failure> {
        peer.ask("allocate m 100")?;
        Ok(peer.ask("memory-handle m")?.remove(0))
    };
    let living = harness.peer()?;
    let handle = export(&living)?;
    for _ in 0..3 {
        let victim = harness.peer()?;
        export(&victim)?;
        victim.kill();
    }
    let count = || fs::read_dir(harness.directory()).map(Iterator::count);
    assert_eq!(count()?, 2, "each of the dead was swept by the next");
    let last = harness.peer()?;
    export(&last)?;
    assert_eq!(count()?, 2);
    last.ask(format!("open-memory n {handle}"))?;
    PASSED
}

/// Sharing needs no ptrace permission. Both processes are not dumpable and, if the machine permits
/// it, have no privileges.
pub(crate) fn works_without_ptrace(harness: &Harness) -> Verdict {
    let directory = harness.directory().join("n");
    fs::create_dir(&directory)?;
    set_mode(&directory, 0o700)?;
    let mut options = PeerOptions::new();
    if is_root() {
        set_mode(harness.directory(), 0o711)?;
        chown(&directory, Some(NOBODY), Some(NOBODY))?;
        options = options.user(NOBODY);
    }
    let context = format!("context c directory={}", directory.display());
    let (one, two) = (
        harness.peer_with(options.clone())?,
        harness.peer_with(options)?,
    );
    for peer in [&one, &two] {
        // A driver may need the `/proc` files of its process while it starts.
        peer.ask(&context)?;
        peer.ask("undumpable")?;
    }
    one.ask("allocate m 5000000 context=c")?;
    one.ask("event e context=c")?;
    for handle in ["memory-handle m", "memory-handle m read-only=yes"] {
        let handle = one.ask(handle)?.remove(0);
        two.ask(format!("open-memory m {handle} read-only=yes context=c"))?;
    }
    let handle = one.ask("event-handle e")?.remove(0);
    two.ask(format!("open-event e {handle} context=c"))?;
    let waiter = two.begin("wait-value e 1 10000");
    one.ask("signal e")?;
    waiter.reply(deadline())?;
    // Deaths are noticed without ptrace as well.
    let waiter = two.begin("wait-value e 2");
    waiter.begun()?;
    one.kill();
    let refused = waiter.reply(deadline()).expect_err("no process signalled");
    assert_eq!(refused.kind, "PeerDied", "{refused}");
    PASSED
}

/// Two processes in different PID namespaces only need a common directory.
pub(crate) fn crosses_pid_namespaces(harness: &Harness) -> Verdict {
    // The namespace has its own `/proc`, as in containers, because a driver may read it.
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let permitted = std::process::Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return Ok(Outcome::Unavailable(
            "unshare --pid is not permitted".into(),
        ));
    }
    let (context, transfer) = harness.transfer()?;
    let inner = harness.peer_with(PeerOptions::new().wrapper(&wrapper))?;
    assert_eq!(inner.ask("pid")?, ["1"]);
    let (memory, event) = (context.allocate(1_000)?, context.create_event()?);
    inner.ask(format!("open-memory m {}", memory.handle()?))?;
    inner.ask(format!("open-event e {}", event.handle()?))?;
    inner.ask("write m 0 1 1000")?;
    inner.ask("signal e")?;
    event.wait_value_timeout(1, deadline())?;
    transfer.check(&memory, 0, 1, 1_000)?;
    // The inner process exports to the outer one, and then dies.
    inner.ask("event own")?;
    let handle = inner.ask("event-handle own")?.remove(0).parse()?;
    let own = context.open_event(&handle)?;
    inner.ask("event gate")?;
    inner.ask("queue q")?;
    inner.ask("submit q barrier after-value=gate:1 signal=e")?;
    inner.ask("submit q barrier signal=own")?;
    let killed = inner.kill();
    fails!(event.wait_timeout(deadline()), PeerDied);
    fails!(own.wait_timeout(deadline()), PeerDied);
    Ok(Outcome::Passed(format!(
        "death known after {:?}",
        killed.elapsed()
    )))
}

/// One connection serves all objects of a context.
pub(crate) fn connections_are_reused(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let memory = context.allocate(1_000)?;
    peer.ask(format!("open-memory m {}", memory.handle()?))?;
    // The first event also brings the arena of the events.
    let event = context.create_event()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    let (there, here) = (peer.usage()?, crate::Usage::of_self()?);
    let mut kept = Vec::new();
    for number in 0..200 {
        let (memory, event) = (context.allocate(1_000)?, context.create_event()?);
        peer.ask(format!("open-memory m{number} {}", memory.handle()?))?;
        peer.ask(format!("open-event e{number} {}", event.handle()?))?;
        kept.push((memory, event));
    }
    assert_eq!(peer.usage()?.descriptors, there.descriptors);
    assert_eq!(crate::Usage::of_self()?.descriptors, here.descriptors);
    if harness.is_host() {
        let segments = procfs::mappings_named(peer.pid(), "crosshandle-memory")?;
        assert_eq!(segments, 1, "small memory shares a segment");
    }
    PASSED
}

/// If either side dies during a request, the other side continues at once.
pub(crate) fn death_in_the_middle_of_an_exchange(harness: &Harness) -> Verdict {
    let exporter = harness.peer()?;
    exporter.ask("allocate m 5000000")?;
    let handle = exporter.ask("memory-handle m")?.remove(0);
    // The importer dies. The exporter then resumes, and serves other importers.
    let (victim, survivor) = (harness.peer()?, harness.peer()?);
    let stopped = Stopped::new(&exporter)?;
    let asked = victim.begin_and_sleep(format!("open-memory m {handle}"))?;
    victim.kill();
    drop(asked);
    drop(stopped);
    survivor.ask(format!("open-memory m {handle}"))?;
    // The exporter dies. Importers with a pending request learn of it at once.
    exporter.ask("allocate n 5000000")?;
    let other = exporter.ask("memory-handle n")?.remove(0);
    let newcomer = harness.peer()?;
    let stopped = Stopped::new(&exporter)?;
    let questions = [
        newcomer.begin_and_sleep(format!("open-memory m {handle}"))?,
        survivor.begin_and_sleep(format!("open-memory n {other}"))?,
    ];
    let began = Instant::now();
    // The exporter stays stopped, because it is killed next.
    std::mem::forget(stopped);
    exporter.kill();
    for question in questions {
        let refused = question
            .reply(deadline())
            .expect_err("the exporter is dead");
        assert_eq!(refused.kind, "ExporterGone", "{refused}");
    }
    assert!(began.elapsed() < Duration::from_secs(2) * slowdown());
    survivor.ask("write m 0 1 100")?;
    PASSED
}

/// The broker accepts any timeout, however short or long.
pub(crate) fn any_timeout_will_do(harness: &Harness) -> Verdict {
    let exporter = harness.peer()?;
    exporter.ask("event e")?;
    let handle = exporter.ask("event-handle e")?.remove(0).parse()?;
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let options = harness.options().exchange_timeout(timeout);
        let context = Context::with_options(harness.device(), options)?;
        match context.open_event(&handle) {
            Ok(_) => {}
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for timeout in [Duration::from_secs(1 << 40), Duration::MAX] {
        let options = harness.options().exchange_timeout(timeout);
        let context = Context::with_options(harness.device(), options)?;
        context.open_event(&handle)?.signal()?;
    }
    PASSED
}

/// Threads that attach to an exporter and detach at the same time do not disturb each other. The
/// exporter still treats their process as alive afterwards.
pub(crate) fn attachments_come_and_go(harness: &Harness) -> Verdict {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 40;
    let (exporter, witness) = (harness.peer()?, harness.peer()?);
    exporter.ask("event e")?;
    exporter.ask("allocate m 5000000")?;
    let event = exporter.ask("event-handle e")?.remove(0);
    witness.ask(format!("open-event e {event}"))?;
    let event = event.parse()?;
    let memory = exporter.ask("memory-handle m")?.remove(0).parse()?;
    // Descriptors that a driver opens when it starts do not count as growth.
    drop(harness.context()?.create_queue()?);
    let before = (crate::Usage::of_self()?, exporter.usage()?);
    std::thread::scope(|scope| {
        let round = || -> Result<(), Failure> {
            let context = harness.context()?;
            context.open_event(&event)?.signal()?;
            context.open_memory(&memory)?;
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(move || (0..ROUNDS).try_for_each(|_| round())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("it doesn't panic"))
    })?;
    let all = THREADS * ROUNDS;
    witness.ask(format!("wait-value e {all} 10000"))?;
    assert_eq!(witness.ask("value e")?, [all.to_string()]);
    // The process attaches once more with a pending signal. No other process may treat it as dead.
    let context = harness.context()?;
    let (opened, gate) = (context.open_event(&event)?, context.create_event()?);
    let queue = context.create_queue()?;
    queue.submit(Command::barrier().after_value(&gate, 1).signal(&opened))?;
    witness.refused("wait e 200", "TimedOut")?;
    exporter.refused("wait e 200", "TimedOut")?;
    gate.signal()?;
    witness.ask("wait e 10000")?;
    drop((queue, opened, gate, context));
    crate::harness::eventually("nothing is left", || {
        let now = (crate::Usage::of_self()?, exporter.usage()?);
        // The broker's own descriptors were opened in the meantime, and the exporter's event may
        // have a native mirror by now.
        let event = if harness.expectations().has_driver_handles {
            3
        } else {
            0
        };
        Ok(now.0.descriptors <= before.0.descriptors + 3 + event
            && now.1.descriptors <= before.1.descriptors + event)
    })?;
    PASSED
}
