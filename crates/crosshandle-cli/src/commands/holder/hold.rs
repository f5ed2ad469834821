//! `crosshandle hold`, and the successor that it starts.

use super::metrics::{self, Port};
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::input::token::ShownToken;
use crate::output;
use crate::output::log::{self, Level};
use crate::settings::Settings;
use crosshandle::PeerPolicy;
use crosshandle::holder::{self, Holder, LogLevel, ServeOptions, Status};
use rustix::fs::FileType;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Maximum time for the successor of an upgraded program to take over. With a shorter time, a
/// program on a busy machine could be mistaken for one that cannot take over.
const UPGRADE_TIME: Duration = Duration::from_secs(30);

/// Interval between two checks of a holder that is being upgraded.
const UPGRADE_LOOK: Duration = Duration::from_millis(20);

pub(crate) const AFTER_HELP: &str = "\
Runs until SIGINT or SIGTERM, and then drops all held objects. Processes that have an object open keep it. SIGHUP \
is ignored, so closing the terminal does not end the holder. A second process, the successor, also holds every \
object. If this process is killed, the successor takes its place within milliseconds, under the same names, and \
starts a successor of its own. Each process reports on standard error when it holds, and warns if objects are not safe.

Programs hand memory over with `crosshandle load`, `crosshandle share --name`, or the libraries. \
`crosshandle ls` lists the held names.

Exit status:
  0  done
  1  an error, explained on standard error
  2  wrong usage";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Also let processes of these users send requests and open objects
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    users: Vec<u32>,
    /// Run without a successor. All held objects are lost when this process ends
    #[arg(long, conflicts_with = "stop")]
    no_successor: bool,
    /// Run in the background, and return when the holder accepts requests
    #[arg(long, conflicts_with_all = ["stop", "check"])]
    detach: bool,
    /// Marks the process that `--detach` starts
    #[arg(long, hide = true, conflicts_with_all = ["stop", "check", "detach"])]
    detached: bool,
    /// End the running holder and its successor
    #[arg(long)]
    stop: bool,
    /// Replace the running holder by the installed program, without interruption
    #[arg(long, conflicts_with_all = ["stop", "check", "detach", "no_successor"])]
    upgrade: bool,
    /// Show the state of the running holder, and fail if it has no complete successor
    #[arg(long, conflicts_with_all = ["stop", "no_successor"])]
    check: bool,
    /// With `--check`: print the state as JSON
    #[arg(long, requires = "check")]
    json: bool,
    /// Serve metrics for Prometheus (/metrics), health (/healthz, /livez) and a page for people (/)
    /// at this address of this host. Everyone who can reach the address can read the names
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["stop", "check", "upgrade"])]
    metrics: Option<std::net::SocketAddr>,
    /// With `--stop`: the token of names that need one
    #[command(flatten)]
    token: ShownToken,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SuccessorArgs {
    #[arg(long, value_delimiter = ',')]
    users: Vec<u32>,
    #[arg(long)]
    metrics: Option<std::net::SocketAddr>,
    /// Path of the installed program. If another program has been installed there, the successor
    /// runs that program
    #[arg(long)]
    program: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let asked = settings.holder(args.token.get()?.as_deref());
    if args.stop {
        return Ok(asked.stop()?);
    }
    if args.check {
        return check(&asked, args.json);
    }
    if args.upgrade {
        return upgrade(&asked);
    }
    if args.detach {
        return detach(args, settings);
    }
    if args.detached {
        // `setsid` fails only for the leader of a process group, and this process is not one.
        let _ = rustix::process::setsid();
    }
    raise_limit_of_files();
    let mut options = serve_options(&args.users, settings)?;
    let port = args.metrics.map(Port::bind).transpose()?;
    let address = port.as_ref().map(Port::address).transpose()?;
    if !args.no_successor {
        options = options.successor(
            OWN_PROGRAM,
            successor_arguments(&args.users, installed(), address, settings),
        );
    }
    holder::serve(options, || {
        if let Some(port) = port {
            port.serve(settings);
        }
        settings.log("ready");
        notify_service_manager("READY=1");
        if args.detached {
            // Printing fails if the process that started this one has ended.
            let _ = output::line("ready");
        }
    })?;
    Ok(())
}

/// Starts a holder in a new session in the background. Returns when the holder accepts requests.
fn detach(args: &Args, settings: &Settings) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["hold", "--detached"]);
    if args.no_successor {
        command.arg("--no-successor");
    }
    // If standard error is a file, the holder writes all its messages to it. To a terminal or a
    // pipe, it writes only the messages before it is ready. Otherwise, a process that reads the
    // pipe to its end would wait until the holder ends.
    let stderr = rustix::fs::fstat(io::stderr()).context("looking at standard error")?;
    let is_file = FileType::from_raw_mode(stderr.st_mode) == FileType::RegularFile;
    command
        .args(users_argument(&args.users))
        .args(
            args.metrics
                .iter()
                .flat_map(|address| ["--metrics".to_owned(), address.to_string()]),
        )
        .args(settings.as_arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(match is_file {
            true => Stdio::inherit(),
            false => Stdio::piped(),
        });
    let mut holder = command.spawn().context("starting a holder")?;
    let says = (holder.stderr.take())
        .map(|mut says| std::thread::spawn(move || io::copy(&mut says, &mut io::stderr())));
    let mut line = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .context("waiting for the holder")?;
    }
    if line.is_empty() {
        holder.wait().context("waiting for the holder")?;
        // Print all messages from the holder before the next line.
        let _ = says.map(std::thread::JoinHandle::join);
        return Err(Failure::error(
            "the holder has ended; its messages are above",
        ));
    }
    let pid = holder.id();
    output::line(format_args!("process {pid} holds"))
}

/// Raises this process's limit for file descriptors to the maximum, because each held object uses
/// some. Successors inherit the limit.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If this fails, the holder can keep fewer objects.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Runs the holder's successor until it takes over, and then the holder.
pub(crate) fn succeed(args: &SuccessorArgs, settings: &Settings) -> Result<()> {
    let program = args.program.clone();
    let arguments = successor_arguments(&args.users, program.clone(), args.metrics, settings);
    if let Some(program) = program.filter(|program| is_another(program)) {
        // `exec` returns only if the new program cannot be run. In that case, this program
        // continues.
        let error = Command::new(&program).args(&arguments).exec();
        settings.log(format_args!("{} cannot be run: {error}", program.display()));
    }
    let options = serve_options(&args.users, settings)?.successor(OWN_PROGRAM, arguments);
    // Notify the service manager of the new main process, because it knows only the predecessor.
    let state = format!("MAINPID={}\nREADY=1", std::process::id());
    Ok(holder::serve_as_successor(options, || {
        if let Some(address) = args.metrics {
            metrics::take_over(address, settings);
        }
        notify_service_manager(&state);
    })?)
}

/// Path of the program that this process runs, even if another program was installed since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns the path at which this process's program is installed. Returns `None` if another program
/// is at that path now.
fn installed() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    (path.exists() && !is_another(&path)).then_some(path)
}

/// Returns `true` if the program at `path` differs from the program that this process runs.
fn is_another(path: &Path) -> bool {
    let id = |path: &Path| {
        let status = std::fs::metadata(path).ok()?;
        Some((status.dev(), status.ino()))
    };
    id(path).is_some_and(|installed| id(Path::new(OWN_PROGRAM)) != Some(installed))
}

/// Replaces the running holder by the installed program. The holder first starts a successor from
/// that program, and then ends.
fn upgrade(holder: &Holder) -> Result<()> {
    let before = holder.status()?;
    let end = |pid: u32| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::error("the holder has no process here"))?;
        kill_process(pid, Signal::KILL).context(
            "ending a process of the holder; run this command as the holder's user, and in its PID namespace",
        )
    };
    if let Some(successor) = before.successor {
        end(successor)?;
    }
    let next = await_safe(holder, |status| status.successor != before.successor)?;
    end(next.pid)?;
    let after = await_safe(holder, |status| status.pid != next.pid)?;
    output::line(format_args!(
        "process {} has replaced process {} as the holder",
        after.pid, before.pid
    ))
}

/// Waits until the holder's successor has all objects and `is_it` returns `true` for the holder's
/// status.
fn await_safe(holder: &Holder, is_it: impl Fn(&Status) -> bool) -> Result<Status> {
    let begin = Instant::now();
    loop {
        let status = holder.status()?;
        if status.is_safe && is_it(&status) {
            return Ok(status);
        }
        if begin.elapsed() > UPGRADE_TIME {
            let why = status
                .why_unsafe
                .as_deref()
                .unwrap_or("the successor is the same");
            return Err(Failure::error(format!(
                "the installed program cannot replace the holder, so process {} continues: {why}",
                status.pid
            )));
        }
        std::thread::sleep(UPGRADE_LOOK);
    }
}

/// The JSON that `hold --check --json` and `/healthz` return.
#[derive(Serialize)]
pub(super) struct Health<'a> {
    is_safe: bool,
    why_unsafe: Option<&'a str>,
    process: u32,
    successor: Option<u32>,
    names: u64,
    bytes: u64,
    takeovers: u64,
    lost_names: u64,
}

impl<'a> Health<'a> {
    pub(super) fn of(status: &'a Status) -> Self {
        Self {
            is_safe: status.is_safe,
            why_unsafe: status.why_unsafe.as_deref(),
            process: status.pid,
            successor: status.successor,
            names: status.names,
            bytes: status.bytes,
            takeovers: status.takeovers,
            lost_names: status.lost,
        }
    }
}

/// Returns the reason why held objects could be lost if the holder died now.
pub(super) fn why_unsafe(status: &Status) -> String {
    let why = status.why_unsafe.as_deref();
    let why = why.unwrap_or("the holder gives no reason");
    format!("what is held is not safe: {why}")
}

fn check(holder: &Holder, is_json: bool) -> Result<()> {
    let status = holder.status()?;
    if is_json {
        output::json(&Health::of(&status))?;
        return checked(&status);
    }
    let successor = match (status.successor, status.is_safe) {
        (Some(pid), true) => format!("process {pid} is the successor and is complete"),
        (Some(pid), false) => format!("process {pid} is the successor"),
        (None, _) => "there is no successor".into(),
    };
    output::line(format_args!(
        "process {} holds {} under {} name(s), after {} takeover(s); {successor}{}",
        status.pid,
        crate::units::bytes(status.bytes),
        status.names,
        status.takeovers,
        match status.lost {
            0 => String::new(),
            lost => format!(
                "; {lost} name(s) of a holder that died with its successor were not restored"
            ),
        }
    ))?;
    checked(&status)
}

fn checked(status: &Status) -> Result<()> {
    match status.is_safe {
        true => Ok(()),
        false => Err(Failure::error(why_unsafe(status))),
    }
}

fn users_argument(users: &[u32]) -> Vec<OsString> {
    if users.is_empty() {
        return Vec::new();
    }
    let users: Vec<_> = users.iter().map(u32::to_string).collect();
    vec!["--users".into(), users.join(",").into()]
}

fn successor_arguments(
    users: &[u32],
    program: Option<PathBuf>,
    metrics: Option<std::net::SocketAddr>,
    settings: &Settings,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["successor".into()];
    arguments.extend(users_argument(users));
    if let Some(program) = program {
        arguments.extend(["--program".into(), program.into()]);
    }
    if let Some(metrics) = metrics {
        arguments.extend(["--metrics".into(), metrics.to_string().into()]);
    }
    arguments.extend(settings.as_arguments());
    arguments
}

fn serve_options(users: &[u32], settings: &Settings) -> Result<ServeOptions> {
    let (stop, on_signal) = UnixStream::pair().context("catching signals")?;
    // Ignore SIGHUP, so that closing the terminal does not end the holder.
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, ignored).context("ignoring SIGHUP")?;
    for signal in [SIGINT, SIGTERM] {
        let write = on_signal.try_clone().context("catching signals")?;
        signal_hook::low_level::pipe::register(signal, write).context("catching signals")?;
    }
    let is_verbose = settings.is_verbose();
    let mut options = ServeOptions::new()
        .stop_when_readable(OwnedFd::from(stop))
        .log(move |level, line| {
            if is_verbose || level > LogLevel::Detail {
                let level = match level {
                    LogLevel::Warning => Level::Warn,
                    _ => Level::Info,
                };
                log::say(level, line);
            }
        });
    if !users.is_empty() {
        options = options.peers(PeerPolicy::Users(users.to_vec()));
    }
    if let Some(directory) = settings.holder_directory() {
        options = options.socket_dir(directory);
    }
    Ok(options)
}

/// Sends a state to the service manager whose socket `NOTIFY_SOCKET` names. Does nothing without
/// that variable.
fn notify_service_manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent =
        UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(state.as_bytes(), &address?));
    if let Err(error) = sent {
        log::say(
            Level::Warn,
            format_args!("notifying the service manager: {error}"),
        );
    }
}
