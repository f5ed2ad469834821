//! `crosshandle link` and `crosshandle pull`, which use objects on other hosts.

mod pull;
mod way;

pub(super) use pull::{Args as PullArgs, run as pull};

use crate::failure::{Cause, ErrorContext as _, Failure, Result};
use crate::input::handle_text;
use crate::output;
use crate::settings::Settings;
use crate::tuning::FILE_CHUNK_BYTES;
use crate::units::parse_duration;
use crosshandle::{Context, Device};
use crosshandle_link::{
    Certificates, Data, Error, HostDirectory, Identity, Link, LinkOptions, Listener, SharedLink,
    Token,
};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use way::Way;

/// Interval at which `link share` checks whether its link has ended. Until then, it refuses
/// processes that connect.
const LINK_LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A subcommand of `crosshandle link`.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a token in a new file. Both sides of a link need it
    Token {
        /// The file, which only this user will be able to read
        file: PathBuf,
    },
    /// Let other hosts open the handles of this user's processes on this host
    Listen {
        /// The address to listen at, as in 192.0.2.1:7417
        address: String,
        /// Let other hosts read all named objects of this host's holder, without their handles
        #[arg(long)]
        names: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Link with another host, and share the link with all processes of this user on this host
    Share {
        /// The address at which the remote host listens, or its name in the file of --hosts
        address: String,
        /// The name of the link. Other commands use @NAME instead of an address, and need no token
        #[arg(long = "as", value_name = "NAME")]
        name: String,
        #[command(flatten)]
        options: Options,
    },
    /// Write the bytes of another host's memory to standard output
    Read {
        /// The address at which the remote host listens, its name in the file of --hosts, or @NAME
        /// of a shared link
        address: String,
        /// Handle of the memory, or `-` for the first line of standard input
        handle: String,
        #[command(flatten)]
        options: Options,
    },
    /// Signal another host's event, and print the signal's number
    Signal {
        /// The address at which the remote host listens, its name in the file of --hosts, or @NAME
        /// of a shared link
        address: String,
        /// Handle of the event, or `-` for the first line of standard input
        handle: String,
        #[command(flatten)]
        options: Options,
    },
    /// Wait for a signal of another host's event
    Wait {
        /// The address at which the remote host listens, its name in the file of --hosts, or @NAME
        /// of a shared link
        address: String,
        /// Handle of the event, or `-` for the first line of standard input
        handle: String,
        /// The number of the signal, which may be submitted later
        value: u64,
        /// Maximum time to wait, as in 5s or 250ms [default: forever]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        timeout: Option<Duration>,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The file with the token
    #[arg(long, value_name = "FILE", conflicts_with = "authority")]
    token: Option<PathBuf>,
    /// The certificates of the authority that signed both sides' certificates (PEM), to use instead
    /// of a token
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key", "server_name"])]
    authority: Option<PathBuf>,
    /// This side's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "authority")]
    certificate: Option<PathBuf>,
    /// The private key of this side's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "authority")]
    key: Option<PathBuf>,
    /// The name in the listening side's certificate
    #[arg(long, value_name = "NAME", requires = "authority")]
    server_name: Option<String>,
    /// Move memory over UCX on this network interface only, instead of over TLS
    #[arg(long, value_name = "INTERFACE")]
    ucx: Option<String>,
    /// A file that lists host names and the addresses at which they listen
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Maximum silence of the remote host before the link ends
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    keep_alive: Duration,
}

impl Options {
    fn to_link(&self) -> Result<LinkOptions> {
        let options = LinkOptions::new(self.identity()?).keep_alive(self.keep_alive);
        Ok(match &self.ucx {
            Some(interface) => options.interface(interface),
            None => options.data(Data::Tls),
        })
    }

    fn identity(&self) -> Result<Identity> {
        match (
            &self.token,
            &self.authority,
            &self.certificate,
            &self.key,
            &self.server_name,
        ) {
            (Some(token), ..) => {
                let token = Token::from_file(token).map_err(failed)?;
                Ok(Identity::Token(token))
            }
            (None, Some(authority), Some(certificate), Some(key), Some(server_name)) => {
                Ok(Identity::Certificates(Certificates {
                    authority: authority.clone(),
                    certificate: certificate.clone(),
                    key: key.clone(),
                    peer_name: server_name.clone(),
                }))
            }
            _ => Err(Failure::error(
                "a link needs a token (--token FILE) or certificates (--authority and others)",
            )),
        }
    }

    /// Creates a link to a host. `host` is an address, or a name in the file of hosts.
    fn connect(&self, host: &str, context: &Context) -> Result<Link> {
        let options = self.to_link()?;
        let Some(hosts) = self.hosts.as_ref().map(HostDirectory::new) else {
            return Link::connect(host, context, &options).map_err(failed);
        };
        match hosts.addresses(host).map_err(failed)? {
            None if host.contains(':') => Link::connect(host, context, &options),
            _ => hosts.connect(host, context, &options),
        }
        .map_err(failed)
    }
}

fn failed(error: Error) -> Failure {
    let cause = match () {
        () if error.is_peer_dead() => Cause::PeerDied,
        () if error.is_timeout() => Cause::TimedOut,
        () => Cause::Error,
    };
    Failure::new(cause, error.to_string())
}

fn host(settings: &Settings) -> Result<Context> {
    let device = Device::find("host")?;
    Ok(Context::with_options(&device, settings.context_options())?)
}

pub(crate) fn run(command: &Command, settings: &Settings) -> Result<()> {
    match command {
        Command::Token { file } => new_token(file),
        Command::Listen {
            address,
            names,
            options,
        } => listen(address, *names, options, settings),
        Command::Share {
            address,
            name,
            options,
        } => share(address, name, options, settings),
        Command::Read {
            address,
            handle,
            options,
        } => {
            let handle = handle_text(handle)?.parse()?;
            let memory = Way::to(address, options, settings)?.open_memory(&handle)?;
            let mut output = io::stdout().lock();
            let mut bytes = vec![0; FILE_CHUNK_BYTES];
            for offset in (0..memory.len()).step_by(FILE_CHUNK_BYTES) {
                let len = bytes.len().min(memory.len() - offset);
                memory.read(offset, &mut bytes[..len])?;
                output
                    .write_all(&bytes[..len])
                    .map_err(|error| Failure::output(&error))?;
            }
            output.flush().map_err(|error| Failure::output(&error))
        }
        Command::Signal {
            address,
            handle,
            options,
        } => {
            let handle = handle_text(handle)?.parse()?;
            let event = Way::to(address, options, settings)?.open_event(&handle)?;
            output::line(event.signal()?)
        }
        Command::Wait {
            address,
            handle,
            value,
            timeout,
            options,
        } => {
            let handle = handle_text(handle)?.parse()?;
            let begin = Instant::now();
            let event = Way::to(address, options, settings)?.open_event(&handle)?;
            match timeout {
                None => event.mirror().wait_value(*value),
                Some(timeout) => {
                    let left = timeout.saturating_sub(begin.elapsed());
                    event.mirror().wait_value_timeout(*value, left)
                }
            }
            .map_err(Failure::from)
            .context(format_args!("waiting for signal {value}"))
        }
    }
}

fn new_token(path: &Path) -> Result<()> {
    let token = Token::generate().map_err(failed)?;
    let doing = format_args!("making {}", path.display()).to_string();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .context(&doing)?;
    writeln!(file, "{}", token.to_text()).context(&doing)
}

fn listen(address: &str, names: bool, options: &Options, settings: &Settings) -> Result<()> {
    let context = host(settings)?;
    let mut options = options.to_link()?;
    if names {
        options = options.names(settings.holder(None));
    }
    let listener = Listener::bind(address, &context, &options).map_err(failed)?;
    output::line(listener.local_address())?;
    let mut links: Vec<Link> = Vec::new();
    loop {
        let link = listener.accept();
        settings.log(format_args!("{} has linked", link.peer()));
        links.retain(|link| link.ended().is_none());
        links.push(link);
    }
}

fn share(address: &str, name: &str, options: &Options, settings: &Settings) -> Result<()> {
    let link = options.connect(address, &host(settings)?)?;
    let shared = SharedLink::new(&link, name, settings.socket_dir.as_deref()).map_err(failed)?;
    output::line(format_args!("@{name}"))?;
    loop {
        if let Some(error) = link.ended() {
            drop(shared);
            return Err(failed(error));
        }
        thread::sleep(LINK_LOOK_INTERVAL);
    }
}
