//! `crosshandle hold --metrics ADDRESS`: the state of a holder, for Prometheus, for health checks,
//! and for people.

mod exposition;
mod page;
mod sample;
mod server;

use crate::failure::{ErrorContext as _, Result};
use crate::output::log::{self, Level};
use crate::settings::Settings;
use sample::Sampler;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for a successor to bind the metrics port of its holder. A busy machine may not have
/// closed the port yet.
const METRICS_BIND_TIME: Duration = Duration::from_secs(10);

/// Interval between two attempts to bind the metrics port.
const METRICS_BIND_INTERVAL: Duration = Duration::from_millis(10);

/// Stack size in bytes of a thread that serves the metrics port. Unoptimized builds need much of
/// it, and unused pages take no memory.
const METRICS_STACK_BYTES: usize = 1 << 20;

/// A holder's metrics port that is bound but not served yet.
pub(super) struct Port(TcpListener);

impl Port {
    pub(super) fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address);
        Ok(Self(
            listener.context(format_args!("listening at {address}"))?,
        ))
    }

    /// Returns the bound address. If the requested port was 0, it contains the port that the system
    /// has chosen.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.0.local_addr().context("reading the address")
    }

    /// Starts threads that serve requests.
    pub(super) fn serve(self, settings: &Settings) {
        let sampler = Arc::new(Sampler::new(settings));
        let address = self.0.local_addr();
        let serves = spawn(move || server::serve(&self.0, &sampler));
        match (serves, address) {
            (Ok(()), Ok(address)) => {
                log::say(Level::Info, format_args!("metrics at http://{address}/"))
            }
            (Err(error), _) | (_, Err(error)) => {
                log::say(Level::Warn, format_args!("there are no metrics: {error}"));
            }
        }
    }
}

/// Starts a thread that binds the address of a holder that has died, and serves metrics there.
pub(super) fn take_over(address: SocketAddr, settings: &Settings) {
    let settings = settings.clone();
    let binds = spawn(move || {
        let begin = Instant::now();
        loop {
            match Port::bind(address) {
                Ok(port) => return port.serve(&settings),
                // The system may still be closing the dead holder's port.
                Err(_) if begin.elapsed() < METRICS_BIND_TIME => {
                    thread::sleep(METRICS_BIND_INTERVAL);
                }
                Err(error) => {
                    let message = format_args!("there are no metrics: {}", error.message());
                    return log::say(Level::Warn, message);
                }
            }
        }
    });
    if let Err(error) = binds {
        log::say(Level::Warn, format_args!("there are no metrics: {error}"));
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("metrics".into());
    thread.stack_size(METRICS_STACK_BYTES).spawn(body).map(drop)
}
