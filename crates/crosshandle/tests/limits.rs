//! If the system refuses a resource, the result must be an error, never a signal or a panic.

#[allow(dead_code)]
mod common;

use common::{DEADLINE, Directory, Parent, Process, alone, context, is};
use crosshandle::{AllocationOptions, Context, ContextOptions, Device, Error, PeerPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;

fn lower(resource: Resource, bytes: usize) {
    let limit = Rlimit {
        current: Some(bytes as u64),
        maximum: getrlimit(resource).maximum,
    };
    setrlimit(resource, limit).expect("a lower limit");
}

/// Checks that the call failed for lack of memory, and that the error gives the reason.
#[track_caller]
fn assert_refused<T>(result: crosshandle::Result<T>, reason: &str) {
    let error = result.err().expect("refused");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn a_limit_of_files_is_no_signal() {
    alone("a_limit_of_files_is_no_signal", |_| {
        let context = context(ContextOptions::new());
        lower(Resource::Fsize, 1_000 << 10);
        // A normal shared segment has 64 MiB.
        let all: Vec<_> = (0..300)
            .map(|index| {
                let memory = context.allocate(10_000).expect("small memory");
                memory.write(0, &[index as u8; 10_000]).expect("written");
                memory
            })
            .collect();
        for (index, memory) in all.iter().enumerate() {
            let mut bytes = [0; 2];
            memory.read(9_998, &mut bytes).expect("read");
            assert_eq!(bytes, [index as u8; 2]);
        }
        context.allocate(500 << 10).expect("allowed");
        assert_refused(context.allocate(4 * MIB), "ulimit -f");
        assert_refused(context.allocate(1_001 << 10), "1024000 bytes");
    });
}

#[test]
fn a_limit_of_addresses_gives_smaller_segments() {
    alone("a_limit_of_addresses_gives_smaller_segments", |_| {
        let context = context(ContextOptions::new());
        let status = fs::read_to_string("/proc/self/statm").expect("/proc");
        let pages: usize = status.split(' ').next().unwrap().parse().unwrap();
        lower(Resource::As, pages * rustix::param::page_size() + 40 * MIB);
        let memory = context.allocate(10_000).expect("small memory");
        memory.write(0, &[7; 10_000]).expect("written");
        assert_refused(context.allocate(256 * MIB), "ulimit -v");
    });
}

#[test]
fn populated_memory_is_there() {
    alone("populated_memory_is_there", |_| {
        let context = context(ContextOptions::new().pooling(false));
        let populated = AllocationOptions::new(3 * MIB + 5).populate(true);
        let memory = context.allocate_with(populated).expect("memory");
        assert_eq!(resident(memory.as_ptr()), 4 * MIB);
        memory.write(0, &vec![1; memory.len()]).expect("written");
        // No machine has this much memory.
        let much = AllocationOptions::new(1 << 46).populate(true);
        let error = context.allocate_with(much).expect_err("refused");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    });
}

/// Returns the resident bytes of the mapping at an address.
fn resident(address: *const u8) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("/proc");
    let start = format!("{:x}-", address.addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let size = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    size.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

/// A control group with little memory, which is removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(bytes: usize) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
        let (root, limit) = match controllers {
            Ok(all) if all.contains("memory") => (root.to_owned(), "memory.max"),
            _ => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let path = root.join(format!("xh-limits-{}", std::process::id()));
        fs::create_dir(&path).expect("a control group");
        let group = Self(path);
        fs::write(group.0.join(limit), bytes.to_string()).expect("a limit");
        group
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "needs a control group; `cargo xtask test` runs it"]
fn a_control_group_is_asked_before_its_memory_is_taken() {
    const TEST: &str = "a_control_group_is_asked_before_its_memory_is_taken";
    if is("member") {
        let mut parent = Parent::new();
        let group = parent.hear().expect("a group");
        let join = fs::write(Path::new(&group).join("cgroup.procs"), "0");
        join.expect("this process joins it");
        let context = context(ContextOptions::new());
        let of = |len| context.allocate_with(AllocationOptions::new(len).populate(true));
        assert_refused(of(256 * MIB), &group);
        assert_refused(of(256 * MIB), "bytes left");
        let some = of(16 * MIB).expect("what there is");
        some.write(0, &vec![1; 16 * MIB]).expect("written");
        assert_refused(of(60 * MIB), &group);
        drop(some);
        // Memory that is already resident is not counted twice.
        let again = of(16 * MIB).expect("the same again");
        again.write(0, &[1]).expect("written");
        let limit = crosshandle::report::memory_limit().expect("a limit");
        assert_eq!(limit.group.as_deref(), Some(Path::new(&group)));
        assert_eq!(limit.limit, 64 * MIB as u64);
        return parent.say("done");
    }
    let group = Group::new(64 * MIB);
    let directory = Directory::new();
    let mut member = Process::start(TEST, "member", &directory);
    member.say(group.0.to_str().unwrap());
    assert_eq!(member.hear(), "done");
    member.end();
}

#[test]
#[ignore = "needs user namespaces; `cargo xtask test` runs it"]
fn users_who_are_not_mapped_are_nobody() {
    const TEST: &str = "users_who_are_not_mapped_are_nobody";
    const UNMAPPED: [&str; 2] = ["unshare", "--user"];
    const NOBODY: u32 = 65534;
    let admitting = |policy| {
        let directory = std::env::var_os(crosshandle::report::SOCKET_DIR_VARIABLE).unwrap();
        context(ContextOptions::new().peers(policy).socket_dir(directory))
    };
    if is("exporter") {
        let mut parent = Parent::new();
        assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
        // The owner of the directory is unknown in this user namespace.
        let nobody = context(ContextOptions::new());
        let refused = nobody.allocate(64).unwrap().handle().unwrap_err();
        assert!(refused.to_string().contains("does not map"), "{refused}");
        let named = admitting(PeerPolicy::Users(vec![NOBODY]));
        let (named, all) = (
            named.allocate(64),
            admitting(PeerPolicy::Anyone).allocate(64),
        );
        let (named, all) = (named.unwrap(), all.unwrap());
        parent.say(named.handle().unwrap());
        parent.say(all.handle().unwrap());
        return parent.wait();
    }
    if is("importer") {
        let mut parent = Parent::new();
        let mut handle = || parent.hear().unwrap().parse().unwrap();
        let (named, all) = (handle(), handle());
        let refuses = |policy, handle| {
            let result = admitting(policy).open_memory(&handle);
            let error = result.expect_err("refused");
            assert!(
                matches!(error, Error::NotAdmitted { uid: NOBODY }),
                "{error}"
            );
            assert!(error.to_string().contains("nobody"), "{error}");
        };
        refuses(PeerPolicy::SameUser, all);
        refuses(PeerPolicy::Users(vec![NOBODY]), all);
        // The exporter refuses.
        refuses(PeerPolicy::Anyone, named);
        admitting(PeerPolicy::Anyone)
            .open_memory(&all)
            .expect("opened");
        return parent.say("done");
    }
    let directory = Directory::new();
    let mut exporter = Process::start_by(&UNMAPPED, TEST, "exporter", &directory);
    let mut importer = Process::start_by(&UNMAPPED, TEST, "importer", &directory);
    for _ in 0..2 {
        importer.say(&exporter.hear());
    }
    assert_eq!(importer.hear(), "done");
    importer.end();
}

/// Makes a system call fail from now on, in all threads of this process.
fn forbid(call: libc::c_long, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let refusal = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        // The number of the system call is the first word of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, refusal),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `program` points to a filter that is valid during the call, which copies it.
    let result = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &program,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn sharing_goes_on_without_random_bytes() {
    const TEST: &str = "sharing_goes_on_without_random_bytes";
    if is("exporter") {
        let device = Device::find("host").unwrap();
        let first = Context::new(&device).expect("a context");
        let memory = first.allocate(4096).expect("memory");
        memory.write(0, b"shared").unwrap();
        forbid(libc::SYS_getrandom, libc::EIO);
        let mut parent = Parent::new();
        // All threads start after this point.
        parent.say(memory.handle().expect("a handle"));
        let event = first.create_event().expect("an event");
        parent.say(event.handle().expect("a handle"));
        let refused = Context::new(&device).expect_err("no keys for it");
        parent.say(refused);
        return parent.wait();
    }
    let directory = Directory::new();
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let context = directory.context();
    let memory = context.open_memory(&exporter.hear().parse().unwrap());
    let mut bytes = [0; 6];
    memory.expect("opened").read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"shared");
    let event = context.open_event(&exporter.hear().parse().unwrap());
    let event = event.expect("opened");
    let refused = exporter.hear();
    assert!(refused.contains("random bytes"), "{refused}");
    exporter.kill();
    let died = event.wait_value_timeout(1, DEADLINE).unwrap_err();
    assert!(died.is_peer_dead(), "{died}");
}

#[test]
fn a_sandbox_without_memfd_create_is_named() {
    alone("a_sandbox_without_memfd_create_is_named", |_| {
        let context = context(ContextOptions::new());
        forbid(libc::SYS_memfd_create, libc::EPERM);
        let error = context.allocate(64).expect_err("refused");
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("memfd_create") && text.contains("seccomp"),
            "{text}"
        );
    });
}
