//! Finds out which tests cannot run on this machine, because it lacks something that they need.
//! These tests are `#[ignore]`d, and fail if they run without it.

use std::path::PathBuf;
use std::process::Command;

/// Something that a machine may lack.
struct Need {
    what: &'static str,
    /// A shell script that succeeds if the machine has it.
    probe: &'static str,
    /// The tests that need it, as a filter of nextest.
    tests: &'static str,
}

const NEEDS: [Need; 9] = [
    Need {
        what: "root",
        probe: "test $(id -u) = 0",
        tests: "test(=contexts_keep_their_own_policies)\
            |test(=floods::a_users_flood_costs_that_user_alone)",
    },
    Need {
        what: "permission to mount",
        probe: "unshare --mount mount -t proc -o hidepid=2 proc /proc",
        tests: "test(=safety::what_a_full_disk_keeps_out_of_the_journal_is_not_safe)\
            |test(=proof::tests::the_kernel_says_that_a_proc_hides_processes)",
    },
    Need {
        what: "control groups that it may create",
        probe: "cd /sys/fs/cgroup && if grep -qs memory cgroup.subtree_control
            then limit=memory.max; else cd memory && limit=memory.limit_in_bytes; fi
            mkdir xh-probe && echo 64M > xh-probe/$limit; status=$?; rmdir xh-probe; exit $status",
        tests: "test(=a_control_group_is_asked_before_its_memory_is_taken)\
            |test(=limits::a_file_too_large_to_share_is_refused)",
    },
    Need {
        what: "user namespaces",
        probe: "unshare --user true && unshare --map-root-user --pid --fork --kill-child true &&
            unshare --map-root-user --mount mount -t tmpfs none /proc",
        tests: "test(=users_who_are_not_mapped_are_nobody)|test(=limits::a_full_disk_keeps_the_old_file)\
            |test(=limits::a_process_without_proc_is_on_the_same_host)\
            |test(=namespaces::memory_and_events_cross_pid_namespaces)",
    },
    Need {
        what: "network namespaces with pairs of veths",
        probe: "ip netns add xh-probe || exit
            ip -n xh-probe link add name one type veth peer name two; status=$?
            ip netns delete xh-probe; exit $status",
        tests: "binary_id(crosshandle-link::two_hosts)\
            &(test(/_over_(tls|ucx)$/)|test(/^endpoints::/))&not(test(/^devices::/))",
    },
    Need {
        what: "nftables",
        probe: "ip netns add xh-probe || exit
            ip netns exec xh-probe nft add table inet xhl; status=$?
            ip netns delete xh-probe; exit $status",
        tests: "binary_id(crosshandle-link::two_hosts)&test(/^endpoints::/)",
    },
    Need {
        what: "bubblewrap",
        probe: "${BWRAP:-bwrap} --unshare-all --ro-bind / / true",
        tests: "test(=namespaces::memory_and_events_cross_bubblewrap_containers)",
    },
    Need {
        what: "Podman",
        probe: "podman info",
        tests: "test(=namespaces::memory_and_events_cross_podman_containers)",
    },
    Need {
        what: "Chromium",
        probe: "for name in chromium chromium-browser google-chrome google-chrome-stable
            do $name --version 2>&1 && exit; done; echo none of its names is in PATH >&2; exit 1",
        tests: "test(=metrics::a_browser_shows_the_page_light_and_dark)",
    },
];

/// Returns a filter for the tests that cannot run here, and the reason, for each missing thing.
/// `variables` are those that the tests get.
pub(crate) fn missing(variables: &[(&'static str, PathBuf)]) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    for need in &NEEDS {
        let mut probe = Command::new("sh");
        probe.args(["-c", need.probe]);
        let reason = match probe.envs(variables.iter().cloned()).output() {
            Ok(output) if output.status.success() => continue,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        let last = reason.lines().last().unwrap_or_default();
        missing.push((
            need.tests,
            format!("this machine lacks {}: {last}", need.what),
        ));
    }
    missing
}
