//! `crosshandle hold`, and the successor that it starts.

use crate::failure::{ErrorContext as _, Result};
use crate::output;
use crate::settings::Settings;
use crosshandle::PeerPolicy;
use crosshandle::holder::{self, Holder, ServeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

pub(crate) const AFTER_HELP: &str = "\
Runs until SIGINT or SIGTERM, and then lets go of everything; who has something open keeps it. A second \
process, the successor, has all that is held too. If this one is killed, the successor goes on within \
milliseconds, under the same names, and starts a successor of its own.

Programs hand memory over with `crosshandle load`, `crosshandle share --name`, or the libraries. \
`crosshandle ls` lists what is held.

Exit status:
  0  done
  1  an error, explained on standard error
  2  wrong usage";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Let processes of these users ask and open, too
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    users: Vec<u32>,
    /// Hold alone: what is held ends with this process
    #[arg(long, conflicts_with = "stop")]
    no_successor: bool,
    /// End the holder that runs, and its successor
    #[arg(long)]
    stop: bool,
    /// Say how the holder that runs is, and fail unless it has a successor which has everything
    #[arg(long, conflicts_with_all = ["stop", "no_successor"])]
    check: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SuccessorArgs {
    #[arg(long, value_delimiter = ',')]
    users: Vec<u32>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let asked = settings.holder(None);
    if args.stop {
        return Ok(asked.stop()?);
    }
    if args.check {
        return check(&asked);
    }
    raise_limit_of_files();
    let mut options = serve_options(&args.users, settings)?;
    if !args.no_successor {
        options = options.successor("/proc/self/exe", successor_arguments(&args.users, settings));
    }
    holder::serve(options, || {
        settings.log("ready");
        notify_service_manager("READY=1");
    })?;
    Ok(())
}

/// Lets this process and its successors have as many descriptors as the system permits: each object that is
/// held takes some.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If it is refused, fewer objects can be held.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Runs the successor's part.
pub(crate) fn succeed(args: &SuccessorArgs, settings: &Settings) -> Result<()> {
    let options = serve_options(&args.users, settings)?
        .successor("/proc/self/exe", successor_arguments(&args.users, settings));
    // The service manager knows its predecessor.
    let state = format!("MAINPID={}\nREADY=1", std::process::id());
    Ok(holder::serve_as_successor(options, || {
        notify_service_manager(&state);
    })?)
}

fn check(holder: &Holder) -> Result<()> {
    let status = holder.status()?;
    let successor = match (status.successor, status.is_safe) {
        (Some(pid), true) => format!("process {pid} is the successor and has everything"),
        (Some(pid), false) => format!("process {pid} is the successor and lacks something yet"),
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
                "; {lost} name(s) of a holder that died with its successor have not come back"
            ),
        }
    ))?;
    match status.is_safe {
        true => Ok(()),
        false => Err(crate::failure::Failure::error(
            "what is held would end with the holder",
        )),
    }
}

fn successor_arguments(users: &[u32], settings: &Settings) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["successor".into()];
    if !users.is_empty() {
        let users: Vec<_> = users.iter().map(u32::to_string).collect();
        arguments.extend(["--users".into(), users.join(",").into()]);
    }
    arguments.extend(settings.as_arguments());
    arguments
}

fn serve_options(users: &[u32], settings: &Settings) -> Result<ServeOptions> {
    let (stop, on_signal) = UnixStream::pair().context("catching signals")?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let write = on_signal.try_clone().context("catching signals")?;
        signal_hook::low_level::pipe::register(signal, write).context("catching signals")?;
    }
    let is_verbose = settings.is_verbose();
    let mut options = ServeOptions::new()
        .stop_when_readable(OwnedFd::from(stop))
        .log(move |line| {
            if is_verbose {
                let _ = writeln!(io::stderr(), "crosshandle: {line}");
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

/// Tells the service manager that `NOTIFY_SOCKET` names, if there is one.
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
        let _ = writeln!(
            io::stderr(),
            "crosshandle: telling the service manager: {error}"
        );
    }
}
