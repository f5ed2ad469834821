//! Processes in different kernel namespaces, as in containers, share like others. They only need a
//! common socket directory.

use super::faults::{event_of, leave_unfinished, memory_of};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::{Outcome, PASSED};
use crate::{Peer, PeerOptions};
use std::process::Command;

/// Options of `unshare` for a namespace of each kind, with what a container would add.
const PID: &[&str] = &["--pid", "--fork", "--kill-child", "--mount-proc"];
const IPC: &[&str] = &["--ipc"];
const UTS: &[&str] = &["--uts"];
const NET: &[&str] = &["--net"];
const MOUNT: &[&str] = &["--mount"];
const USER: &[&str] = &["--map-root-user"];
const CGROUP: &[&str] = &["--cgroup"];
/// The clocks differ by eleven days, so that a time that crosses between the processes is noticed.
const TIME: &[&str] = &[
    "--time",
    "--monotonic",
    "1000000",
    "--boottime",
    "1000000",
    "--fork",
    "--kill-child",
];

/// The place of a process, outside or in its own namespace.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Outside,
    Inside,
}

/// Every way to place an exporter and an importer in different namespaces.
const PLACES: [(Place, Place); 3] = [
    (Place::Inside, Place::Outside),
    (Place::Outside, Place::Inside),
    (Place::Inside, Place::Inside),
];

/// Returns the command that starts a program in its own namespaces.
fn unshare(options: &[&'static str]) -> Vec<&'static str> {
    let mut words = vec!["unshare"];
    // A user other than root can create namespaces only inside a user namespace.
    if !rustix::process::geteuid().is_root() && options != USER {
        words.extend(USER);
    }
    words.extend(options);
    words
}

/// Returns the reason why no program can be started in this way, if there is one.
fn refusal(wrapper: &[&str]) -> Option<String> {
    let output = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .output();
    let reason = match output {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("{}: {reason}", wrapper.join(" ")))
}

fn start(harness: &Harness, place: Place, wrapper: &[&str]) -> Result<Peer, Failure> {
    match place {
        Place::Outside => harness.peer(),
        Place::Inside => harness.peer_with(PeerOptions::new().wrapper(wrapper)),
    }
}

/// Shares in both directions for every placement of two processes.
fn share_across(harness: &Harness, options: &[&'static str]) -> Verdict {
    let wrapper = unshare(options);
    if let Some(reason) = refusal(&wrapper) {
        return Ok(Outcome::Unavailable(reason));
    }
    for (exporters, importers) in PLACES {
        let exporter = start(harness, exporters, &wrapper)?;
        let importer = start(harness, importers, &wrapper)?;
        check(&exporter, &importer, || start(harness, importers, &wrapper)).map_err(|failure| {
            let places = format!("exporter {exporters:?}, importer {importers:?}");
            Failure::new(format!("{places}: {failure}"))
        })?;
    }
    PASSED
}

/// Checks memory and events in both directions, then the importer's death and the exporter's death.
fn check(
    exporter: &Peer,
    importer: &Peer,
    another: impl FnOnce() -> Result<Peer, Failure>,
) -> Result<(), Failure> {
    let limit = deadline().as_millis();
    let (memory, event) = (memory_of(exporter, "m", 1)?, event_of(exporter, "e")?);
    importer.ask(format!("open-memory m {memory}"))?;
    importer.ask(format!("open-event e {event}"))?;
    importer.ask("check m 0 1 100000")?;
    importer.ask("write m 0 2 100000")?;
    let waiter = exporter.begin(format!("wait-value e 1 {limit}"));
    waiter.begun()?;
    importer.ask("signal e")?;
    waiter.reply(deadline())?;
    exporter.ask("check m 0 2 100000")?;
    let waiter = importer.begin(format!("wait-value e 2 {limit}"));
    waiter.begun()?;
    exporter.ask("signal e")?;
    waiter.reply(deadline())?;
    // A timeout has the same meaning on both sides, whatever their clocks show.
    exporter.refused("wait-value e 3 20", "TimedOut")?;
    importer.refused("wait-value e 3 20", "TimedOut")?;

    leave_unfinished(importer, "e")?;
    let waiter = exporter.begin("wait e");
    waiter.begun()?;
    importer.kill();
    told_of_death(waiter.reply(deadline()))?;

    let importer = another()?;
    importer.ask(format!("open-memory m {memory}"))?;
    importer.ask(format!("open-event e {event}"))?;
    leave_unfinished(exporter, "e")?;
    let waiter = importer.begin("wait e");
    waiter.begun()?;
    let unsignalled = importer.begin("wait-value e 9");
    unsignalled.begun()?;
    exporter.kill();
    told_of_death(waiter.reply(deadline()))?;
    told_of_death(unsignalled.reply(deadline()))?;
    importer.ask("check m 0 2 100000")?;
    // The wrapper may be reaped before the process that it started has ended.
    crate::harness::eventually("a dead exporter is gone", || {
        let answer = importer.ask(format!("open-event again {event}"));
        let _ = importer.ask("close again");
        Ok(answer.is_err_and(|refused| refused.kind == "ExporterGone"))
    })?;
    Ok(())
}

#[track_caller]
fn told_of_death(answer: crate::Reply) -> Result<(), Failure> {
    match answer {
        Err(refused) if refused.kind == "PeerDied" => Ok(()),
        other => Err(Failure::new(format!("a waiter got {other:?}"))),
    }
}

/// The processes have other numbers for each other, or none.
pub(crate) fn pid(harness: &Harness) -> Verdict {
    share_across(harness, PID)
}

/// The processes have no System V memory and no message queue in common.
pub(crate) fn ipc(harness: &Harness) -> Verdict {
    share_across(harness, IPC)
}

/// The processes see different host names.
pub(crate) fn uts(harness: &Harness) -> Verdict {
    share_across(harness, UTS)
}

/// The processes have no network and no list of sockets in common.
pub(crate) fn net(harness: &Harness) -> Verdict {
    share_across(harness, NET)
}

/// The processes have separate mounts.
pub(crate) fn mount(harness: &Harness) -> Verdict {
    share_across(harness, MOUNT)
}

/// The user is root inside the namespace, and both sides recognise it as the same user.
pub(crate) fn user(harness: &Harness) -> Verdict {
    share_across(harness, USER)
}

/// The processes have separate control groups.
pub(crate) fn cgroup(harness: &Harness) -> Verdict {
    share_across(harness, CGROUP)
}

/// The processes' clocks show different times.
pub(crate) fn time(harness: &Harness) -> Verdict {
    share_across(harness, TIME)
}

/// The processes have all namespaces of a container.
pub(crate) fn all_at_once(harness: &Harness) -> Verdict {
    let all = [IPC, UTS, NET, MOUNT, USER, CGROUP, PID, TIME].concat();
    share_across(harness, &all)
}

/// Without a mapping of users, every user looks like the overflow user. That user is treated as
/// different from all users, even from itself.
pub(crate) fn unmapped_users_are_nobody(harness: &Harness) -> Verdict {
    let wrapper = ["unshare", "--user"];
    if let Some(reason) = refusal(&wrapper) {
        return Ok(Outcome::Unavailable(reason));
    }
    for (exporters, importers) in PLACES {
        let exporter = start(harness, exporters, &wrapper)?;
        let importer = start(harness, importers, &wrapper)?;
        exporter.ask("allocate m 100000")?;
        let opened = exporter
            .ask("memory-handle m")
            .and_then(|words| importer.ask(format!("open-memory m {}", words.join(" "))));
        // An exporter inside does not even have a directory with a known owner.
        let is_refused = opened.as_ref().is_err_and(|refused| {
            refused.kind == "NotAdmitted" || refused.message.contains("does not map")
        });
        if !is_refused {
            return Err(Failure::new(format!(
                "exporter {exporters:?}, importer {importers:?}: {opened:?}"
            )));
        }
    }
    PASSED
}
