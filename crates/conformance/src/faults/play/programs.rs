//! Faults at every step of the programs' own processes: a holder and its successor, programs that
//! load, publish and fence, both ends of a link, and programs that update a model in place.
//!
//! One process of a *story* is the victim. It runs under the filter, and the supervisor counts its
//! steps and those of its children. Before the chosen step the victim is killed or stopped, or the
//! step fails. The other processes run normally. After each case, the invariants are checked: no
//! command takes longer than [`LIMIT`], promised models exist and are whole, and the holders have
//! as many descriptors as before. A victim that was only stopped, or whose call was only
//! interrupted, must succeed.

mod models;
mod updates;

pub use models::run_model_program;

use crate::failure::Failure;
use crate::faults::calls::{self, Call};
use crate::faults::filter;
use crate::faults::worker::listener;
use crosshandle::holder::{Holder, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Exit code of a program that has seen a broken promise.
const BROKEN_PROMISE: u8 = 3;
/// Maximum time of one command, whatever happens to the victim.
const LIMIT: Duration = Duration::from_secs(40);
/// Time after which a stopped victim is continued. It is longer than all waits of a program that
/// continues by itself, and shorter than the time after which an unresponsive process is replaced.
const STOPPED: Duration = Duration::from_millis(400);
/// Maximum time until a promised model is available again.
const RECOVERY: Duration = Duration::from_secs(10);
/// Interval at which the state of a process is checked.
const LOOK: Duration = Duration::from_millis(2);
/// Time between two requests to a holder. Each request costs a victim some steps.
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a link closes if its other side is silent.
const KEEP_ALIVE: &str = "2s";
/// Timeout of a fence, which takes long while many processes start and end.
const FENCE_WAIT: &str = "30s";
/// Number of cases in the fixed sample.
const SAMPLE: usize = 200;
/// Maximum time of the fixed sample, even if cases remain.
const SAMPLE_LIMIT: Duration = Duration::from_secs(40);

/// The fault that happens to the victim before a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    Stop,
    Fail(&'static str, i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    call: &'static str,
    /// Number of the call among the calls of this name. Counts from 1.
    occurrence: usize,
    fault: Fault,
}

/// Returns whether the victim must succeed. This is so if there was no fault, or a fault that a
/// correct program handles without an error.
fn must_succeed(plan: Option<Plan>) -> bool {
    plan.is_none_or(|plan| matches!(plan.fault, Fault::Stop | Fault::Fail("EINTR", _)))
}

/// The task of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    Load,
    Publish,
    Fence,
    Hold,
    HoldFence,
    Listen,
    Pull,
    Update,
    Claim,
    Follow,
}

const STORIES: [(Story, &str); 10] = [
    (Story::Load, "load"),
    (Story::Publish, "publish"),
    (Story::Fence, "fence"),
    (Story::Hold, "hold"),
    (Story::HoldFence, "hold-fence"),
    (Story::Listen, "listen"),
    (Story::Pull, "pull"),
    (Story::Update, "update"),
    (Story::Claim, "claim"),
    (Story::Follow, "follow"),
];

/// Steps that the supervisor of a victim has seen.
#[derive(Default)]
struct Seen {
    steps: Vec<&'static Call>,
    /// Number of steps by the name of their call.
    counts: BTreeMap<&'static str, usize>,
    has_hit: bool,
}

/// A process whose steps are counted, and the thread of its supervisor.
struct Victim {
    child: Child,
    supervisor: Option<thread::JoinHandle<Result<Seen, Failure>>>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn process_of(thread: i32) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

/// Grants all steps except the planned one, until all processes under the filter have ended.
fn supervise(listener: &OwnedFd, plan: Option<Plan>) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    let mut stopped: Option<(Pid, Instant)> = None;
    let look = Timespec::try_from(Duration::from_millis(20))?;
    loop {
        if let Some((pid, _)) = stopped.take_if(|(_, since)| since.elapsed() > STOPPED) {
            let _ = kill_process(pid, Signal::CONT);
        }
        let mut descriptors = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut descriptors, Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let events = descriptors[0].revents();
        if !events.contains(PollFlags::IN) {
            return Ok(seen);
        }
        let Some(step) = filter::receive(listener.as_fd())? else {
            continue;
        };
        let mut error = None;
        if let Some(call) = calls::find(step.number, &step.arguments) {
            seen.steps.push(call);
            let count = seen.counts.entry(call.name).or_default();
            *count += 1;
            let is_planned = |plan: &Plan| (plan.call, plan.occurrence) == (call.name, *count);
            if let Some(plan) = plan.filter(is_planned) {
                seen.has_hit = true;
                match (plan.fault, process_of(step.thread)) {
                    (Fault::Fail(_, code), _) => error = Some(code),
                    (Fault::Kill, Some(pid)) => drop(kill_process(pid, Signal::KILL)),
                    (Fault::Stop, Some(pid)) => {
                        let _ = kill_process(pid, Signal::STOP);
                        stopped = Some((pid, Instant::now()));
                    }
                    (_, None) => seen.has_hit = false,
                }
            }
        }
        filter::respond(listener.as_fd(), step.id, error);
    }
}

/// The result of a command.
struct Ended {
    is_ok: bool,
    output: String,
    complaints: String,
}

/// A holder and its successor, with their own directory.
struct World<'a> {
    programs: &'a Programs,
    root: PathBuf,
    pair: Option<Child>,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        let first = self.pair.take();
        // After a failed story, a victim's successor may still run.
        if first.is_some() || self.status().is_ok() {
            let _ = self.run(&["rm", "m"]);
            let _ = self.run(&["hold", "--stop"]);
        }
        if let Some(mut first) = first {
            let _ = first.kill();
            let _ = first.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Paths of the programs that the stories run.
struct Programs {
    command: PathBuf,
    peer: PathBuf,
}

impl<'a> World<'a> {
    fn new(programs: &'a Programs, has_pair: bool) -> Result<Self, Failure> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("xh-programs-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root)?;
        for (name, byte) in [("one", 1u8), ("two", 2)] {
            let header = r#"{"t":{"dtype":"U8","shape":[70000],"data_offsets":[0,70000]}}"#;
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(header.as_bytes());
            file.extend(std::iter::repeat_n(byte, 70_000));
            fs::write(root.join(name), file)?;
        }
        let mut world = Self {
            programs,
            root,
            pair: None,
        };
        if has_pair {
            world.pair = Some(world.command(&["hold"]).spawn()?);
            world.await_safe()?;
        }
        Ok(world)
    }

    fn path(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    fn prepare(&self, command: &mut Command) {
        command
            .env("CROSSHANDLE_SOCKET_DIR", self.root.join("sockets"))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.command);
        command.args(words);
        self.prepare(&mut command);
        command
    }

    /// Runs a command that is not a victim, and must end in time.
    fn run(&self, words: &[&str]) -> Result<Ended, Failure> {
        self.run_prepared(self.command(words), words)
    }

    fn run_prepared(&self, mut command: Command, words: &[&str]) -> Result<Ended, Failure> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = end(command.spawn()?);
        ended.map_err(|why| Failure::new(format!("`{}` {why}", words.join(" "))))
    }

    /// Starts the victim with the given command.
    fn victim(&self, words: &[&str], plan: Option<Plan>) -> Result<Victim, Failure> {
        let mut command = Command::new(&self.programs.peer);
        command.arg("exec").arg(&self.programs.command).args(words);
        self.start_victim(command, plan)
    }

    fn start_victim(&self, mut command: Command, plan: Option<Plan>) -> Result<Victim, Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(Duration::from_secs(20)))?;
        self.prepare(&mut command);
        command
            .env(filter::VARIABLE, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn()?;
        drop(command);
        let listener = listener(&ours)?;
        Ok(Victim {
            child,
            supervisor: Some(thread::spawn(move || supervise(&listener, plan))),
        })
    }

    fn status(&self) -> crosshandle::Result<Status> {
        let holder = Holder::new().socket_dir(self.root.join("sockets"));
        holder.timeout(Duration::from_secs(5)).status()
    }

    fn await_safe(&self) -> Result<Status, Failure> {
        let since = Instant::now();
        loop {
            match self.status() {
                Ok(status) if status.is_safe => return Ok(status),
                other if since.elapsed() > LIMIT => {
                    return Err(Failure::new(format!("the holder is not safe: {other:?}")));
                }
                _ => sleep(REQUEST_INTERVAL),
            }
        }
    }

    /// Returns the number of descriptors of the holder and its successor together.
    fn descriptors(&self) -> Result<usize, Failure> {
        let status = self.await_safe()?;
        let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Ok(count(status.pid) + status.successor.map_or(0, count))
    }

    fn check_descriptors(&self, before: usize) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            match self.descriptors()? {
                now if now <= before => return Ok(()),
                now if since.elapsed() > RECOVERY => {
                    let why = format!("the holders have {now} descriptors, and had {before}");
                    return Err(Failure::new(why));
                }
                _ => sleep(REQUEST_INTERVAL),
            }
        }
    }

    fn has(&self, name: &str) -> Result<bool, Failure> {
        let ended = self.run(&["ls", "--json"])?;
        match ended.is_ok {
            true => Ok(ended.output.contains(&format!("\"{name}\""))),
            false => Err(Failure::new(format!("`ls`: {}", ended.complaints))),
        }
    }

    /// Checks that a model is whole. If it was not promised, it may also be absent.
    fn check_model(&self, name: &str, is_promised: bool) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let why = match self.has(name) {
                Ok(false) if !is_promised => return Ok(()),
                Ok(false) => "it is lost".to_owned(),
                Ok(true) => {
                    let verified = self.run(&["verify", name])?;
                    if verified.is_ok {
                        return Ok(());
                    }
                    verified.complaints
                }
                Err(error) => error.to_string(),
            };
            if since.elapsed() > RECOVERY {
                let promised = if is_promised {
                    ", which was promised"
                } else {
                    ""
                };
                return Err(Failure::new(format!("{name}{promised}: {why}")));
            }
            sleep(REQUEST_INTERVAL);
        }
    }
}

/// Waits until a process has ended, and kills it if it takes too long.
fn end(mut child: Child) -> Result<Ended, Failure> {
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if since.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::new("does not end"));
        }
        sleep(LOOK);
    };
    let text = |source: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        if let Some(source) = source {
            let _ = source.take(1 << 20).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Ended {
        is_ok: status.success(),
        output: text(child.stdout.as_mut().map(|source| source as &mut dyn Read)),
        complaints: text(child.stderr.as_mut().map(|source| source as &mut dyn Read)),
    })
}

impl Victim {
    /// Waits until the victim has ended, and returns whether it succeeded.
    fn finish(&mut self, plan: Option<Plan>) -> Result<bool, Failure> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let is_done = status.success();
                // A panic is always wrong. The dynamic loader, which is not part of this project,
                // treats an interrupted call as an error.
                let is_begun = status.code() != Some(127);
                let is_wrong = [Some(101), Some(BROKEN_PROMISE.into())].contains(&status.code())
                    || (!is_done && is_begun && must_succeed(plan));
                return match is_wrong {
                    true => Err(Failure::new(format!(
                        "the victim ended with {status}: {}",
                        self.complaints()
                    ))),
                    false => Ok(is_done),
                };
            }
            if since.elapsed() > LIMIT {
                return Err(Failure::new("the victim does not end"));
            }
            sleep(LOOK);
        }
    }

    /// Waits until all processes of the victim have ended.
    fn seen(mut self) -> Result<Seen, Failure> {
        let supervisor = self
            .supervisor
            .take()
            .ok_or(Failure::new("no supervisor"))?;
        let _ = self.child.kill();
        let _ = self.child.wait();
        let since = Instant::now();
        while !supervisor.is_finished() {
            if since.elapsed() > LIMIT {
                return Err(Failure::new("a process of the victim stays"));
            }
            sleep(LOOK);
        }
        supervisor
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the supervisor panicked")))
    }

    /// Returns what the victim has written to standard error so far. Does not wait for the end of
    /// the output, because the victim's successor may still run.
    fn complaints(&mut self) -> String {
        let mut bytes = [0; 4096];
        let Some(source) = &mut self.child.stderr else {
            return String::new();
        };
        let is_set = rustix::io::ioctl_fionbio(&*source, true).is_ok();
        let count = if is_set {
            source.read(&mut bytes)
        } else {
            Ok(0)
        };
        String::from_utf8_lossy(&bytes[..count.unwrap_or(0)]).into_owned()
    }

    /// Returns the first line that the victim prints. The line is empty if the victim has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        if let Some(output) = self.child.stdout.take() {
            // A stopped victim is continued, and the next command detects a hanging victim.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        line.trim().to_owned()
    }
}

/// The worlds in which one job plays its cases.
struct Stage<'a> {
    programs: &'a Programs,
    user: World<'a>,
    owner: World<'a>,
}

impl<'a> Stage<'a> {
    fn new(programs: &'a Programs) -> Result<Self, Failure> {
        let (user, owner) = (World::new(programs, true)?, World::new(programs, true)?);
        let token = owner.path("token");
        owner.run(&["link", "token", &token])?;
        let loaded = owner.run(&["load", &owner.path("one"), "--name", "m"])?;
        if !loaded.is_ok {
            return Err(Failure::new(loaded.complaints));
        }
        let stage = Self {
            programs,
            user,
            owner,
        };
        // The holders keep some resources after the first reader of another process. These are not
        // a leak.
        stage.pull(None)?;
        Ok(stage)
    }

    fn play(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        match story {
            Story::Load | Story::Publish => self.publish(story, plan),
            Story::Fence => self.fence(plan),
            Story::Hold | Story::HoldFence => self.hold(story, plan),
            Story::Listen => self.listen(plan),
            Story::Pull => self.pull(plan),
            Story::Update | Story::Claim | Story::Follow => self.update(story, plan),
        }
    }

    fn publish(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        let (world, is_new) = (&self.user, story == Story::Load);
        let before = world.descriptors()?;
        let (one, two) = (world.path("one"), world.path("two"));
        if !is_new && !world.run(&["load", &one, "--name", "m"])?.is_ok {
            return Err(Failure::new("the first version was not published"));
        }
        let mut words = vec!["load", &two, "--name", "m"];
        words.extend((!is_new).then_some("--replace"));
        let mut victim = world.victim(&words, plan)?;
        let is_done = victim.finish(plan)?;
        let seen = victim.seen()?;
        world.check_model("m", is_done || !is_new)?;
        if world.has("m")? {
            world.run(&["rm", "m"])?;
        }
        world.check_descriptors(before)?;
        Ok(seen)
    }

    fn fence(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let world = &self.user;
        let before = world.descriptors()?;
        let shared = world.run(&["share", &world.path("one"), "--name", "r"])?;
        if !shared.is_ok {
            return Err(Failure::new(shared.complaints));
        }
        let mut victim = world.victim(&["fence", "r", "--wait", FENCE_WAIT], plan)?;
        victim.finish(plan)?;
        let seen = victim.seen()?;
        // A dead writer must not block other writers.
        let next = world.run(&["fence", "r", "--wait", FENCE_WAIT])?;
        if !next.is_ok {
            return Err(Failure::new(format!(
                "`fence` after it: {}",
                next.complaints
            )));
        }
        world.run(&["rm", "r"])?;
        world.check_descriptors(before)?;
        Ok(seen)
    }

    /// Plays the holder's own start and end. Fencing is a separate story, because it examines every
    /// process of the machine and so takes most of the holder's steps.
    fn hold(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        let world = World::new(self.programs, false)?;
        let mut victim = world.victim(&["hold"], plan)?;
        let since = Instant::now();
        // The victim may end before it holds anything, but it must either hold or end.
        while !world.status().is_ok_and(|status| status.is_safe) {
            if victim.child.try_wait()?.is_some() && world.status().is_err() {
                victim.finish(plan)?;
                return victim.seen();
            }
            if since.elapsed() > LIMIT {
                return Err(Failure::new("it neither holds safely nor ends"));
            }
            sleep(REQUEST_INTERVAL);
        }
        let must = |words: &[&str]| {
            let ended = world.run(words)?;
            match ended.is_ok || !must_succeed(plan) {
                true => Ok(ended),
                false => {
                    let why = format!("`{}`: {}", words.join(" "), ended.complaints);
                    Err(Failure::new(why))
                }
            }
        };
        let loaded = must(&["load", &world.path("one"), "--name", "m"])?;
        let is_promised = loaded.is_ok && !loaded.complaints.contains("successor");
        if story == Story::HoldFence {
            must(&["share", &world.path("two"), "--name", "r"])?;
            must(&["fence", "r", "--wait", FENCE_WAIT])?;
            must(&["rm", "r"])?;
        } else {
            world.check_model("m", is_promised)?;
        }
        world.await_safe()?;
        world.check_model("m", is_promised)?;
        // Stops the remaining holder, which may be the former successor.
        let stopped = world.run(&["hold", "--stop"])?;
        if !stopped.is_ok {
            return Err(Failure::new(format!(
                "`hold --stop`: {}",
                stopped.complaints
            )));
        }
        victim.seen()
    }

    fn listen(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let before = self.owner.descriptors()?;
        let token = self.owner.path("token");
        let words = [
            "link",
            "listen",
            "127.0.0.1:0",
            "--names",
            "--keep-alive",
            KEEP_ALIVE,
            "--token",
            &token,
        ];
        let mut victim = self.owner.victim(&words, plan)?;
        let address = victim.line();
        match address.is_empty() {
            true => drop(victim.finish(plan)?),
            false => drop(self.pull_from(&address, &token, None, must_succeed(plan))?),
        }
        let seen = victim.seen()?;
        self.owner.check_model("m", true)?;
        self.owner.check_descriptors(before)?;
        Ok(seen)
    }

    fn pull(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let token = self.owner.path("token");
        let words = [
            "link",
            "listen",
            "127.0.0.1:0",
            "--names",
            "--keep-alive",
            KEEP_ALIVE,
            "--token",
            &token,
        ];
        let mut command = self.owner.command(&words);
        let mut server = command.stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        if let Some(output) = server.stdout.take() {
            BufReader::new(output).read_line(&mut address)?;
        }
        let pulled = self.pull_from(address.trim(), &token, Some(plan), false);
        let _ = server.kill();
        let _ = server.wait();
        pulled?.ok_or(Failure::new("nothing was seen"))
    }

    /// Pulls a model. The puller is the victim if there is a plan.
    fn pull_from(
        &self,
        address: &str,
        token: &str,
        plan: Option<Option<Plan>>,
        is_due: bool,
    ) -> Result<Option<Seen>, Failure> {
        let world = &self.user;
        let before = world.descriptors()?;
        let words = [
            "pull",
            "m",
            "--from",
            address,
            "--keep-alive",
            KEEP_ALIVE,
            "--token",
            token,
        ];
        let (is_done, seen) = match plan {
            Some(plan) => {
                let mut victim = world.victim(&words, plan)?;
                (victim.finish(plan)?, Some(victim.seen()?))
            }
            None => {
                let pulled = world.run(&words)?;
                if is_due && !pulled.is_ok {
                    return Err(Failure::new(format!("`pull`: {}", pulled.complaints)));
                }
                (pulled.is_ok, None)
            }
        };
        world.check_model("m", is_done)?;
        if world.has("m")? {
            world.run(&["rm", "m"])?;
        }
        world.check_descriptors(before)?;
        Ok(seen)
    }
}

/// A case: a story, and a fault at one step.
struct Case {
    story: Story,
    name: String,
    plan: Plan,
}

/// Lists all cases of the stories whose names start with `chosen`.
fn cases(programs: &Programs, chosen: &str) -> Result<Vec<Case>, Failure> {
    let stage = Stage::new(programs)?;
    let mut cases = Vec::new();
    for (story, name) in STORIES.iter().filter(|(_, name)| name.starts_with(chosen)) {
        let seen = stage.play(*story, None)?;
        let mut counts = BTreeMap::new();
        for call in seen.steps {
            let occurrence = counts.entry(call.name).or_insert(0);
            *occurrence += 1;
            let errors = call.errors.iter();
            let errors = errors.map(|(name, code)| Fault::Fail(name, *code));
            for fault in [Fault::Kill, Fault::Stop].into_iter().chain(errors) {
                let what = match fault {
                    Fault::Kill => "kill",
                    Fault::Stop => "stop",
                    Fault::Fail(error, _) => error,
                };
                cases.push(Case {
                    story: *story,
                    name: format!("{name}/{}.{occurrence}/{what}", call.name),
                    plan: Plan {
                        call: call.name,
                        occurrence: *occurrence,
                        fault,
                    },
                });
            }
        }
    }
    Ok(cases)
}

/// The options of `conformance faults --programs`.
pub(crate) struct Request<'a> {
    pub(crate) peer: &'a Path,
    /// Number of cases to play. `None` plays all.
    pub(crate) cases: Option<usize>,
    pub(crate) jobs: usize,
    pub(crate) story: &'a str,
    pub(crate) is_sample: bool,
    pub(crate) limit: Option<Duration>,
    /// The name of the only case to play.
    pub(crate) case: Option<&'a str>,
    /// Whether to print the names of the cases instead of playing them.
    pub(crate) list: bool,
    /// Whether to print the time of each case.
    pub(crate) is_logged: bool,
}

/// Chooses `count` cases: if possible, the same number from each story, and evenly among the
/// story's cases.
fn choose(cases: &[Case], count: usize) -> Vec<&Case> {
    let mut stories: Vec<Vec<&Case>> = STORIES
        .iter()
        .map(|(story, _)| cases.iter().filter(|case| case.story == *story).collect())
        .collect();
    stories.sort_by_key(Vec::len);
    let mut left = count;
    let mut shares: Vec<_> = stories
        .iter()
        .enumerate()
        .map(|(index, all)| {
            let share = (left / (stories.len() - index)).min(all.len());
            left -= share;
            (0..share).map(move |place| all[place * all.len() / share])
        })
        .collect();
    // Takes cases from the stories in rotation, so that a run that ends early has played cases of
    // each.
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let before = chosen.len();
        chosen.extend(shares.iter_mut().filter_map(Iterator::next));
        if chosen.len() == before {
            break;
        }
    }
    chosen
}

/// Plays cases, and prints the failed ones. Returns whether all passed.
pub(crate) fn run(request: &Request<'_>) -> Result<bool, Failure> {
    let programs = Programs {
        command: request.peer.with_file_name("crosshandle"),
        peer: request.peer.to_owned(),
    };
    if !programs.command.exists() {
        let why = format!(
            "there is no {}: build the command",
            programs.command.display()
        );
        return Err(Failure::new(why));
    }
    let all = cases(&programs, request.story)?;
    let total = all.len();
    let most = request.cases.or(request.is_sample.then_some(SAMPLE));
    let chosen: Vec<_> = match request.case {
        Some(name) => all.iter().filter(|case| case.name == name).collect(),
        None => choose(&all, most.unwrap_or(total)),
    };
    if chosen.is_empty() {
        return Err(Failure::new("there is no such case"));
    }
    if request.list {
        chosen.iter().for_each(|case| println!("{}", case.name));
        return Ok(true);
    }
    let (began, next) = (Instant::now(), AtomicUsize::new(0));
    let (failed, missed) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let is_broken = AtomicBool::new(false);
    let limit = request.limit;
    let limit = limit.or(request.is_sample.then_some(SAMPLE_LIMIT));
    let is_over = || limit.is_some_and(|limit| began.elapsed() > limit);
    thread::scope(|scope| {
        for _ in 0..request.jobs {
            scope.spawn(|| {
                let mut stage = None;
                while !is_over() {
                    let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    if stage.is_none() {
                        stage = Stage::new(&programs).ok();
                    }
                    let Some(worlds) = &stage else {
                        is_broken.store(true, Ordering::Relaxed);
                        return;
                    };
                    let case_began = Instant::now();
                    let result = worlds.play(case.story, Some(case.plan));
                    if request.is_logged {
                        println!("{:.2} s {}", case_began.elapsed().as_secs_f64(), case.name);
                    }
                    match result {
                        Ok(seen) if seen.has_hit => {}
                        Ok(_) => drop(missed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            println!("FAILED {}: {error}", case.name);
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            failed.push(case.name.clone());
                            // The state of this job's worlds is unknown after a failure.
                            stage = None;
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let played = next.into_inner().min(chosen.len());
    println!(
        "programs: {played} of {total} cases in {:.0} s, {} failed, {} did not reach their step",
        began.elapsed().as_secs_f64(),
        failed.len(),
        missed.into_inner(),
    );
    Ok(failed.is_empty() && !is_broken.into_inner())
}
