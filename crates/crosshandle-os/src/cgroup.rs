//! Memory that is left in this process's control groups, cgroups(7), and in the machine.
//!
//! A group that runs out of memory gets no error. Instead, the kernel kills one of its processes. A
//! process that must survive therefore checks before it allocates.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A limit of the memory that this process can use together with other processes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// Directory of the control group that has the limit, or `None` for the machine's own memory.
    pub group: Option<PathBuf>,
    /// The limit in bytes, for all processes of the group together.
    pub limit: u64,
    /// Bytes that can still be allocated. They include memory that the kernel can reclaim at once,
    /// such as cached files.
    pub headroom: u64,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            limit,
            headroom,
        } = self;
        match group {
            Some(group) => write!(
                f,
                "the control group {} has {headroom} of {limit} bytes left: raise its limit \
                 (memory.max), or the container's",
                group.display()
            ),
            None => write!(f, "the machine has {headroom} of {limit} bytes left"),
        }
    }
}

/// Returns the limit of the machine or of a control group that leaves this process the least
/// memory. Returns `None` if no limit is known, for example without `/proc`.
pub fn memory_limit() -> Option<MemoryLimit> {
    let groups = group_directories().into_iter().filter_map(|(path, names)| {
        let (limit, headroom) = limit_of(&path, names)?;
        Some(MemoryLimit {
            group: Some(path),
            limit,
            headroom,
        })
    });
    groups
        .chain(of_machine())
        .min_by_key(|limit| limit.headroom)
}

/// Returns the limit that leaves an allocation the least room. In contrast to [`memory_limit`], the
/// machine's swap space is included.
pub fn allocation_limit() -> Option<MemoryLimit> {
    let limit = memory_limit()?;
    if limit.group.is_some() {
        return Some(limit);
    }
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap = count(&text, "SwapFree:").unwrap_or(0) << 10;
    Some(MemoryLimit {
        headroom: limit.headroom.saturating_add(swap),
        ..limit
    })
}

/// Names of a control group's files.
#[derive(Clone, Copy)]
struct Names {
    limit: &'static str,
    used: &'static str,
    /// Prefix of the counts that include the subgroups.
    total: &'static str,
}

const SECOND_VERSION: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    total: "",
};
const FIRST_VERSION: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    total: "total_",
};

fn of_machine() -> Option<MemoryLimit> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name| count(&text, name).map(|kibibytes| kibibytes << 10);
    Some(MemoryLimit {
        group: None,
        limit: bytes("MemTotal:")?,
        headroom: bytes("MemAvailable:")?,
    })
}

/// Returns the directories of this process's group and of all visible groups that contain it.
fn group_directories() -> Vec<(PathBuf, Names)> {
    let (Ok(groups), Ok(mounts)) = (
        fs::read_to_string("/proc/self/cgroup"),
        fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let names = match controllers {
            "" => SECOND_VERSION,
            list if list.split(',').any(|name| name == "memory") => FIRST_VERSION,
            _ => continue,
        };
        let is_second = controllers.is_empty();
        let Some((root, mount)) = mounts.lines().find_map(|line| mount_of(line, is_second)) else {
            continue;
        };
        // If the group is outside of this mount, only the mounted part is visible.
        let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        let own = mount.join(inside);
        let around = own.ancestors().take_while(|path| path.starts_with(mount));
        all.extend(around.map(|path| (path.to_owned(), names)));
    }
    all
}

/// Returns the root and the mount point in a line of mountinfo, if the line is the control group
/// file system of this version.
fn mount_of(line: &str, is_second: bool) -> Option<(&str, &Path)> {
    let (mount, source) = line.split_once(" - ")?;
    let mut kinds = source.split(' ');
    let (kind, options) = (kinds.next()?, kinds.nth(1)?);
    let fits = match kind {
        "cgroup2" => is_second,
        "cgroup" => !is_second && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut fields = mount.split(' ').skip(3);
    let (root, place) = (fields.next()?, fields.next()?);
    fits.then_some((root, Path::new(place)))
}

/// Returns a group's limit and its headroom, if it has a limit.
fn limit_of(group: &Path, names: Names) -> Option<(u64, u64)> {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    // Parsing fails for "max", which means no limit.
    let limit: u64 = read(names.limit)?.trim().parse().ok()?;
    let used: u64 = read(names.used)?.trim().parse().ok()?;
    let counts = read("memory.stat").unwrap_or_default();
    let files = ["inactive_file", "active_file"]
        .iter()
        .filter_map(|name| count(&counts, &format!("{}{name}", names.total)))
        .sum::<u64>();
    // The first version expresses no limit by a number beyond all memory.
    (limit < 1 << 60).then(|| (limit, limit.saturating_sub(used.saturating_sub(files))))
}

/// Returns the number after a name, in a text with one name and number per line.
fn count(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(' ').then_some(rest)
    })?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_understood() {
        let second =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let first = "31 23 0:27 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let cpu = "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        let root = Path::new("/sys/fs/cgroup");
        assert_eq!(mount_of(second, true), Some(("/", root)));
        assert_eq!(mount_of(second, false), None);
        let memory = root.join("memory");
        assert_eq!(mount_of(first, false), Some(("/a", &*memory)));
        assert_eq!(mount_of(cpu, false), None);
    }

    #[test]
    fn limits_count_what_can_be_given_up() {
        let name = format!("xh-cgroup-{}", std::process::id());
        let group = std::env::temp_dir().join(name);
        fs::create_dir(&group).expect("a directory");
        let write = |name, text| fs::write(group.join(name), text).expect("a file");
        write("memory.max", "max\n");
        write("memory.current", "500\n");
        assert_eq!(limit_of(&group, SECOND_VERSION), None);
        write("memory.max", "800\n");
        assert_eq!(limit_of(&group, SECOND_VERSION), Some((800, 300)));
        write("memory.stat", "file 90\nactive_file 20\ninactive_file 30\n");
        assert_eq!(limit_of(&group, SECOND_VERSION), Some((800, 350)));
        write("memory.max", "100\n");
        assert_eq!(limit_of(&group, SECOND_VERSION), Some((100, 0)));
        fs::remove_dir_all(&group).expect("removed");
    }

    #[test]
    fn the_machine_has_memory() {
        let machine = of_machine().expect("/proc");
        assert!(machine.headroom <= machine.limit && machine.limit > 1 << 20);
        let least = memory_limit().expect("at least the machine's");
        assert!(least.headroom <= machine.limit);
    }
}
