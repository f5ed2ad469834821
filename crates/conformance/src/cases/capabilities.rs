//! A handle is a capability: a process that has it gets the object that it names, and no other.

use super::hostile::{attached, exporter};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::pattern::Random;
use crate::peer::PeerOptions;
use crate::raw::{self, ARENA, CHUNK, EVENTS, MEMORY, MIRROR, Request, Socket, WRONG_KEY, status};
use crate::suite::{Outcome, PASSED};
use crosshandle::{EventHandle, MemoryHandle, PeerPolicy};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

/// The user ID of the user without rights.
const NOBODY: u32 = 65534;

/// Sends a request, and returns the reply's status and descriptors.
fn ask(socket: &Socket, request: Request) -> Result<(u16, Vec<OwnedFd>), Failure> {
    socket.send(&request.bytes(), &[])?;
    let (answer, files) = socket.receive()?;
    Ok((status(&answer), files))
}

/// A process that has other events of a context cannot reach an isolated event, whatever it
/// requests and writes.
pub(crate) fn isolated_events_are_apart(harness: &Harness) -> Verdict {
    let (owner, user) = (harness.peer()?, harness.peer()?);
    let mut handles = Vec::new();
    for (name, options) in [
        ("apart", "isolated=yes"),
        ("other", "isolated=yes"),
        ("common", ""),
    ] {
        owner.ask(format!("event {name} {options}"))?;
        let handle = owner.ask(format!("event-handle {name}"))?.remove(0);
        user.ask(format!("open-event {name} {handle}"))?;
        handles.push(handle.parse::<EventHandle>()?);
    }
    // Each of the three events' handles is used to attack the other two.
    for (own, handle) in handles.iter().enumerate() {
        let handle = handle.as_bytes();
        let (socket, _books) = attached(harness, handle)?;
        let (granted, files) = ask(&socket, Request::about(ARENA, handle))?;
        assert_eq!((granted, files.len()), (0, 2), "arena and locks");
        let arena = File::from(files.into_iter().next().ok_or(Failure::new("no arena"))?);
        let len = arena.metadata()?.len();
        assert!(own == 2 || len < EVENTS / 2, "{len} bytes for one event");
        let key = Request::about(ARENA, handle).key;
        for (other, target) in handles
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != own)
        {
            let target = target.as_bytes();
            let refused = ask(
                &socket,
                Request {
                    key,
                    ..Request::about(ARENA, target)
                },
            )?;
            assert_eq!((refused.0, refused.1.len()), (WRONG_KEY, 0), "{other}");
        }
        let before = arena_of(&arena, len)?;
        let names = ["apart", "other", "common"];
        let mut random = Random(own as u64);
        for round in 0..20 {
            arena.write_all_at(&crate::pattern(random.next(), len as usize), 0)?;
            let name = names[(own + 1 + round % 2) % 3];
            let number = owner.ask(format!("signal {name}"))?.remove(0);
            user.ask(format!("wait-value {name} {number} 10000"))?;
            let status = user.ask(format!("status {name}"))?;
            assert_eq!(status, [&number, &number, "ok"], "{name}");
        }
        arena.write_all_at(&before, 0)?;
    }
    PASSED
}

fn arena_of(arena: &File, len: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    arena.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Without a pool, a process that has one allocation's handle gets no byte of another allocation.
pub(crate) fn unpooled_memory_is_apart(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        return Ok(Outcome::Skipped("memory that is files"));
    }
    let exporter = harness.peer()?;
    exporter.ask("context default pooling=no")?;
    for (name, seed) in [("before", 1), ("own", 2), ("after", 3)] {
        exporter.ask(format!("allocate {name} 5000"))?;
        exporter.ask(format!("write {name} 0 {seed} 5000"))?;
        exporter.ask(format!("memory-handle {name}"))?;
    }
    let handle: MemoryHandle = exporter.ask("memory-handle own")?.remove(0).parse()?;
    let (socket, _books) = attached(harness, handle.as_bytes())?;
    let (granted, mut files) = ask(&socket, Request::about(MEMORY, handle.as_bytes()).writing())?;
    assert_eq!((granted, files.len()), (0, 1));
    let file = File::from(files.remove(0));
    let len = file.metadata()?.len() as usize;
    let mut all = vec![0; len];
    file.read_exact_at(&mut all, 0)?;
    let own = crate::pattern(2, 5000);
    let at = all.windows(own.len()).position(|window| window == own);
    let at = at.ok_or(Failure::new("its own bytes are missing"))?;
    all[at..at + own.len()].fill(0);
    assert!(
        all.iter().all(|byte| *byte == 0),
        "bytes of another allocation"
    );
    // Writing to the whole file does not reach it either.
    file.write_all_at(&vec![0xFF; len], 0)?;
    assert!(file.set_len(1 << 30).is_err(), "it grew");
    exporter.ask("check before 0 1 5000")?;
    exporter.ask("check after 0 3 5000")?;
    PASSED
}

/// A read-only handle brings a read-only descriptor, and no way to make it writable. This holds for
/// another user, and for the same user except through `/proc`.
pub(crate) fn read_only_is_all_that_arrives(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        return Ok(Outcome::Skipped("memory that is files"));
    }
    let options = harness.options().peers(PeerPolicy::Anyone);
    let context = crosshandle::Context::with_options(harness.device(), options)?;
    let memory = context.allocate(5_000_000)?;
    let handle = memory.handle_read_only()?;
    let open = format!("seize {} {handle}", harness.directory().display());
    let own = harness.peer()?;
    // Each word of the reply is a way in which the system allowed a write.
    assert_eq!(own.ask(&open)?, ["reopen"], "the same user has /proc");
    if rustix::process::geteuid().is_root() {
        let listed = Permissions::from_mode(0o755);
        fs::set_permissions(harness.directory(), listed)?;
        let guest = harness.peer_with(PeerOptions::new().user(NOBODY))?;
        assert!(guest.ask(&open)?.is_empty(), "another user");
    }
    PASSED
}

/// Only the same user may read the report of `crosshandle ps`, even if other users may open
/// objects.
pub(crate) fn reports_are_for_the_same_user(harness: &Harness) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return Ok(Outcome::Unavailable(
            "only root can start peers of another user".into(),
        ));
    }
    let options = harness.options().peers(PeerPolicy::Anyone);
    let context = crosshandle::Context::with_options(harness.device(), options)?;
    let memory = context.allocate(100)?;
    let handle = memory.handle()?;
    // The exporter has checked the directory by now.
    let listed = Permissions::from_mode(0o755);
    fs::set_permissions(harness.directory(), listed)?;
    let guest = harness.peer_with(PeerOptions::new().user(NOBODY))?;
    let describe = format!("ask-report {}", harness.directory().display());
    // Each reply has a status and a number of descriptors, before and after the guest attaches.
    for answer in guest.ask(format!("{describe} {handle}"))? {
        let (status, files) = answer.split_once(':').ok_or(Failure::new(&answer))?;
        assert_ne!(status, "0", "an answer with {files} descriptors");
        assert_eq!(files, "0", "status {status}");
    }
    PASSED
}

/// A process of the same user without a handle gets no descriptor, whatever it requests. The
/// context, the record and the generation are no secrets, but the key is.
pub(crate) fn guesses_bring_no_descriptor(harness: &Harness) -> Verdict {
    const GUESSES: usize = 20_000;
    let (exporter, memory) = exporter(harness)?;
    exporter.ask("event e")?;
    let event: EventHandle = exporter.ask("event-handle e")?.remove(0).parse()?;
    let truths: [&[u8]; 2] = [memory.as_bytes(), event.as_bytes()];
    let (mut random, mut socket) = (Random(9), Socket::connect_in(harness.directory())?);
    let mut answers = 0;
    for round in 0..GUESSES {
        // The request is correct except for the key, or almost correct.
        let truth = truths[random.below(2)];
        let mut guess = Request::attach(truth);
        guess.operation = [raw::ATTACH, CHUNK, MEMORY, ARENA, MIRROR][random.below(5)];
        if guess.operation != raw::ATTACH {
            guess.context = 0;
        }
        match random.below(4) {
            0 => guess.key = [0; 16],
            // One bit is wrong.
            1 => guess.key[random.below(16)] ^= 1 << random.below(8),
            _ => {
                let half = |random: &mut Random| random.next().to_le_bytes();
                guess.key[..8].copy_from_slice(&half(&mut random));
                guess.key[8..].copy_from_slice(&half(&mut random));
            }
        }
        match random.below(6) {
            0 => guess.record = random.below(8) as u32,
            1 => guess.generation = random.next() >> random.below(64),
            2 => guess.access = random.below(2) as u32,
            _ => {}
        }
        let answer = ask(&socket, guess);
        match answer {
            // For example, generation zero would match a free record of the catalog.
            Ok((status, files)) if !files.is_empty() || (status == 0) => {
                return Err(Failure::new(format!(
                    "{} descriptors for {guess:?}",
                    files.len()
                )));
            }
            Ok((status, _)) if status != u16::MAX => answers += 1,
            // The connection has sent too many wrong requests.
            _ => socket = Socket::connect_in(harness.directory())?,
        }
        if round % 1000 == 0 {
            exporter.ask("pid")?;
        }
    }
    assert!(answers > GUESSES / 2, "{answers} answers");
    let peer = harness.peer()?;
    let waiting = peer.begin(format!("open-memory m {memory}"));
    waiting.reply(deadline())?;
    PASSED
}

/// An exporter without `/proc` cannot make a read-only descriptor, and says so. The importer is not
/// told to raise a limit, nor that it is on another host.
pub(crate) fn exporters_without_proc_say_so(harness: &Harness) -> Verdict {
    const HIDE: &str = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    if !harness.is_host() {
        return Ok(Outcome::Skipped("memory that is files"));
    }
    let wrapper = ["unshare", "--mount", "sh", "-c", HIDE];
    let permitted = std::process::Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return Ok(Outcome::Unavailable(
            "no mount namespace is permitted".into(),
        ));
    }
    let exporter = harness.peer_with(PeerOptions::new().wrapper(&wrapper))?;
    exporter.ask("allocate m 5000000")?;
    exporter.ask("write m 0 1 100")?;
    let whole = exporter.ask("memory-handle m")?.remove(0);
    let importer = harness.peer()?;
    importer.ask(format!("open-memory m {whole}"))?;
    importer.ask("check m 0 1 100")?;
    let message = match exporter.ask("memory-handle m read-only=yes") {
        Err(refused) => refused.message,
        Ok(handle) => {
            let open = format!("open-memory r {} read-only=yes", handle[0]);
            importer.refused(open, "Unsupported")?.message
        }
    };
    assert!(message.contains("/proc"), "{message}");
    assert!(!message.contains("RLIMIT_NOFILE"), "{message}");
    PASSED
}
