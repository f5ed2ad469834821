//! Puts bugs into a copy of the sources, one at a time, and shows which check finds each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::step::{say, seconds};
use crate::workspace::Workspace;
use crate::{Result, process, soak, tools};

/// Longest time of one check, with the build of the copy.
const CHECK_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A change to one file that makes the library wrong.
struct Bug {
    name: &'static str,
    /// The file, from the root of the checkout.
    file: &'static str,
    /// Text that the file contains exactly once.
    right: &'static str,
    wrong: &'static str,
    check: Check,
}

/// The check that finds a bug.
#[derive(Clone, Copy)]
enum Check {
    /// The fault harness, with the cases of one workload.
    Faults(&'static str),
    /// A case of the conformance suite.
    Case(&'static str),
    /// A test of the library.
    Test(&'static str),
}

const BUGS: &[Bug] = &[
    Bug {
        name: "a survivor that fails a dead process's signals wakes no waiter",
        file: "crates/crosshandle-events/src/protocol/recovery.rs",
        right: "                wake_sleepers(word, current);\n",
        wrong: "",
        check: Check::Faults("orphan"),
    },
    Bug {
        name: "an importer reads the generation before it counts its open",
        file: "crates/crosshandle-ipc/src/open_count.rs",
        right: "    count.fetch_add(1, Ordering::SeqCst);\n    if generation",
        wrong: "    if generation.load(Ordering::SeqCst) != expected {\n        return false;\n    }\n    \
                count.fetch_add(1, Ordering::SeqCst);\n    if true || generation",
        check: Check::Faults("fan-out"),
    },
    Bug {
        name: "no key is checked",
        file: "crates/crosshandle-ipc/src/exporter/answers.rs",
        right: "if export.key != credential.key {",
        wrong: "if export.key != credential.key && false {",
        check: Check::Case("hostile::a_key_opens_one_object_alone"),
    },
    Bug {
        name: "a peer's descriptors are closed by the thread that received them",
        file: "crates/crosshandle-os/src/threads/disposer.rs",
        right: "impl Drop for PeerDescriptor {\n    fn drop(&mut self) {\n        \
                if let Some(file) = self.file.take() {\n            dispose(file);\n",
        wrong: "impl Drop for PeerDescriptor {\n    fn drop(&mut self) {\n        \
                if let Some(file) = self.file.take() {\n            drop(file);\n",
        check: Check::Test("a_peers_descriptor_blocks_nobody"),
    },
    Bug {
        name: "sleeps have no timeout",
        file: "crates/crosshandle-os/src/futex/mod.rs",
        right: "fn from_now(limit: Duration) -> Timespec {\n",
        wrong: "fn from_now(_: Duration) -> Timespec {\n    let limit = Duration::from_secs(30);\n",
        check: Check::Test("a_requeued_sleeper_keeps_its_timeout"),
    },
    Bug {
        name: "connections have no limits",
        file: "crates/crosshandle-ipc/src/broker/admission.rs",
        right: "let verdict = if is_stranger && ",
        wrong: "let verdict = if true {\n            Verdict::Welcome\n        } else if is_stranger && ",
        check: Check::Test("connections_that_say_nothing_are_few_and_short"),
    },
    Bug {
        name: "RLIMIT_FSIZE is not checked",
        file: "crates/crosshandle-os/src/memfd.rs",
        right: "if len > limit =>",
        wrong: "if len > limit && false =>",
        check: Check::Test("a_limit_of_files_is_no_signal"),
    },
    Bug {
        name: "late signals have no limit",
        file: "crates/crosshandle-ipc/src/event/late_completion.rs",
        right: "event.unfinished >= MAX_LATE_SIGNALS",
        wrong: "event.unfinished >= MAX_LATE_SIGNALS && false",
        check: Check::Test(
            "signals_behind_one_that_never_completes_are_bounded_and_end_with_their_context",
        ),
    },
    Bug {
        name: "attachments are kept without their exporter's number",
        file: "crates/crosshandle-ipc/src/attachment/context_id.rs",
        right: "            exporter: fields.exporter,\n",
        wrong: "            exporter: 0,\n",
        check: Check::Case("impostor::forgeries_stain_no_original"),
    },
    Bug {
        name: "the overflow user is treated as one user",
        file: "crates/crosshandle-os/src/process.rs",
        right: "    if uid != overflow.unwrap_or(USUAL_OVERFLOW_UID) {",
        wrong: "    if true || uid != overflow.unwrap_or(USUAL_OVERFLOW_UID) {",
        check: Check::Test("users_who_are_not_mapped_are_nobody"),
    },
    Bug {
        name: "a forked child keeps its parent's sockets",
        file: "crates/crosshandle-os/src/fork.rs",
        right: "    KEPT.replace_all();\n",
        wrong: "",
        check: Check::Test("a_child_does_not_keep_a_dead_importer_attached"),
    },
    Bug {
        name: "symbolic links in directories that all users may write are followed",
        file: "crates/crosshandle-ipc/src/broker/directory.rs",
        right: "FLAGS | OFlags::NOFOLLOW",
        wrong: "FLAGS",
        check: Check::Test("links_of_others_are_refused"),
    },
    Bug {
        name: "only 32 bits of a generation are compared",
        file: "crates/crosshandle-ipc/src/exporter/mod.rs",
        right: "now.load(Ordering::SeqCst) == record.generation",
        wrong: "now.load(Ordering::SeqCst) as u32 == record.generation as u32",
        check: Check::Case("hostile::a_key_opens_one_object_alone"),
    },
    Bug {
        name: "a process that cannot lock its byte is refused",
        file: "crates/crosshandle-ipc/src/event_arena/mod.rs",
        right: "            Err(Errno::AGAIN | Errno::ACCESS) => None,\n",
        wrong: "",
        check: Check::Test("places_that_are_held_keep_nobody_out"),
    },
    Bug {
        name: "each receive starts the timeout again",
        file: "crates/crosshandle-os/src/socket/messages.rs",
        right: "        wait_until(stream.as_fd(), PollFlags::IN, deadline)?;\n        match receive_now(",
        wrong: "        let _ = deadline;\n        let deadline = Deadline::after(crate::tuning::MAX_SOCKET_TIMEOUT);\n        \
                wait_until(stream.as_fd(), PollFlags::IN, deadline)?;\n        match receive_now(",
        check: Check::Test("one_deadline_holds_for_all_that_is_waited_for"),
    },
    Bug {
        name: "a panic ends the liveness thread",
        file: "crates/crosshandle-ipc/src/liveness.rs",
        right: "            Err(_) => answer(socket, Err(Errno::IO)),\n",
        wrong: "            Err(panic) => std::panic::resume_unwind(panic),\n",
        check: Check::Test("a_panic_on_the_thread_drops_no_lock"),
    },
];

impl Bug {
    fn path(&self, root: &Path) -> PathBuf {
        root.join(self.file)
    }

    /// Returns the file's text with the bug.
    fn planted(&self, text: &str) -> Result<String> {
        match text.matches(self.right).count() {
            1 => Ok(text.replacen(self.right, self.wrong, 1)),
            count => Err(format!(
                "{} has {count} places for: {}",
                self.file, self.name
            )),
        }
    }
}

/// Plants each bug whose name contains `filter`, and prints a row of a table for each: the bug, the
/// check that finds it, and how soon.
///
/// # Errors
/// A check does not find its bug, or fails without it.
pub(crate) fn run(workspace: &Workspace, filter: &str) -> Result<()> {
    let copy = copy(workspace)?;
    let mut missed = Vec::new();
    println!("| bug | found by | after |\n|---|---|---|");
    for bug in BUGS.iter().filter(|bug| bug.name.contains(filter)) {
        let path = bug.path(&copy.root);
        let cannot = |error| format!("cannot change {}: {error}", path.display());
        let right = fs::read_to_string(&path).map_err(cannot)?;
        let is_sound = passes(&copy, bug.check)?;
        fs::write(&path, bug.planted(&right)?).map_err(cannot)?;
        let started = Instant::now();
        let passed = passes(&copy, bug.check);
        fs::write(&path, right).map_err(cannot)?;
        let after = match (is_sound, passed?) {
            (true, false) => seconds(started.elapsed()),
            (true, true) => "never".to_owned(),
            (false, _) => "never: the check fails without the bug, too".to_owned(),
        };
        if after.starts_with("never") {
            missed.push(bug.name);
        }
        let check = match bug.check {
            Check::Faults(workload) => format!("fault harness, workload `{workload}`"),
            Check::Case(name) => format!("case `{name}`"),
            Check::Test(name) => format!("test `{name}`"),
        };
        say(&format!("| {} | {check} | {after} |", bug.name));
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("not found: {}", missed.join(", "))),
    }
}

/// Returns whether a check passes in the copy. A check that is late does not.
fn passes(copy: &Workspace, check: Check) -> Result<bool> {
    let mut command = match check {
        Check::Faults(workload) => {
            soak::build(copy)?;
            soak::harness(copy, &["faults", "--workload", workload, "--jobs", "2"])
        }
        Check::Case(name) => {
            let words = ["run", "--locked", "--package", "crosshandle-conformance"];
            let mut command = copy.cargo(&words);
            command.args(["--bin", "conformance", "--", name]);
            command
        }
        Check::Test(name) => {
            let mut command = Command::new(tools::NEXTEST.get(copy)?);
            copy.prepare(&mut command);
            command.args([
                "nextest",
                "run",
                "--locked",
                "--package",
                "crosshandle*",
                "-E",
            ]);
            command.arg(format!("test(/(^|::){name}$/)"));
            command
        }
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot run a check: {error}"))?;
    let ended = process::wait(&mut child, CHECK_LIMIT)?;
    Ok(ended.is_some_and(|status| status.success()))
}

/// Copies the tracked files into the target directory. Files that did not change keep their times,
/// so that they are not built again.
fn copy(workspace: &Workspace) -> Result<Workspace> {
    let cannot = |error| format!("cannot copy the sources: {error}");
    let directory = workspace.target.join("planted");
    let root = directory.join("sources");
    let mut list = Command::new("git");
    let listed = list.arg("ls-files").current_dir(&workspace.root).output();
    for name in String::from_utf8_lossy(&listed.map_err(cannot)?.stdout).lines() {
        let to = root.join(name);
        // A tracked file that was deleted.
        let Ok(bytes) = fs::read(workspace.root.join(name)) else {
            continue;
        };
        if !fs::read(&to).is_ok_and(|old| old == bytes) {
            fs::create_dir_all(to.parent().unwrap_or(&root)).map_err(cannot)?;
            fs::write(&to, bytes).map_err(cannot)?;
        }
    }
    let target = directory.join("target");
    Ok(Workspace { root, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_its_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for bug in BUGS {
            let text = fs::read_to_string(bug.path(root)).unwrap();
            assert_ne!(bug.planted(&text).unwrap(), text);
        }
    }
}
