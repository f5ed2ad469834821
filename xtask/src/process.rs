//! Waits for a child with a deadline, and kills it with all its descendants.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::Result;

/// Waits until `child` ends. After `limit`, kills it with all its descendants and returns `None`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .map_err(|error| format!("cannot watch a child process: {error}"))?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|error| error.to_string())?;
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => return reap(child).map(Some),
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("cannot wait for a child process: {error}")),
        }
    }
    kill_tree(child);
    reap(child)?;
    Ok(None)
}

fn reap(child: &mut Child) -> Result<ExitStatus> {
    child
        .wait()
        .map_err(|error| format!("cannot wait for a child process: {error}"))
}

/// Kills `child` and its descendants. All of them are stopped first, because a running parent could
/// start more children, and the children of a dead parent can no longer be found.
fn kill_tree(child: &Child) {
    // The child was not reaped yet, so its number cannot belong to another process.
    let mut stopped = vec![Pid::from_child(child)];
    let mut next = 0;
    // A failure means that the process has ended in the meantime.
    while let Some(pid) = stopped.get(next).copied() {
        let _ = kill_process(pid, Signal::STOP);
        next += 1;
        if next == stopped.len() {
            let found = descendants(stopped[0]);
            let new = found.into_iter().filter(|pid| !stopped.contains(pid));
            stopped.extend(new.collect::<Vec<_>>());
        }
    }
    for pid in stopped {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the living descendants of `root`.
fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|text| text.parse().ok())
            .and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The format is "pid (name) state parent …", and the name may contain any characters.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let dead = matches!(fields.next(), Some("Z" | "X"));
        let parent = fields
            .next()
            .and_then(|text| text.parse().ok())
            .and_then(Pid::from_raw);
        if let (false, Some(parent)) = (dead, parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        if let Some(below) = children.remove(&parent) {
            found.extend(&below);
            next.extend(&below);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_late_child_is_killed_with_what_it_started() {
        // A child starts the grandchild, so only a search through the descendants finds it.
        let script = "sh -c 'sleep 600 & echo $!; wait'; exit 0";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let grandchild = pidfd_open(grandchild, PidfdFlags::empty()).unwrap();

        assert_eq!(wait(&mut child, Duration::ZERO).unwrap(), None);
        let limit = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        let ended = poll(&mut [PollFd::new(&grandchild, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ended, 1, "the grandchild outlived its deadline");
    }

    #[test]
    fn the_status_of_a_child_in_time_is_its_own() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let status = wait(&mut child, Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(status.code(), Some(7));
    }
}
