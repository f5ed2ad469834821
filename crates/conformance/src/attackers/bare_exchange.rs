//! A minimal exchange of descriptors over a Unix socket. Other opens are compared with its time.
//! Its server is not attacked, because its socket is in a separate directory.
//!
//! As in an open by a new importer, the client connects, and receives two descriptors with the
//! first reply and one with the second. The messages have the same sizes as in an open. Nothing is
//! checked, counted or mapped.

use crate::failure::Failure;
use crate::raw::{self, REPLY, REQUEST, Socket, borrowed};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The word that starts the server, as in `conformance attack bare-exchange PATH`.
pub(super) const SERVER: &str = "bare-exchange";
/// Size of each file whose descriptor is sent, in bytes.
const FILE_BYTES: u64 = 4096;

/// Serves one client after another at `path`, until standard input is closed.
pub(super) fn serve(path: &Path) -> ExitCode {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match answer_all(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn answer_all(path: &Path) -> Result<(), Failure> {
    let files: Result<Vec<_>, _> = (0..3).map(|_| raw::memfd(FILE_BYTES, true)).collect();
    let files = files?;
    let listener = Socket::listen(path)?;
    super::say("begun");
    loop {
        let Some(client) = listener.accept_within(Duration::MAX)? else {
            continue;
        };
        // Fails if the client was killed.
        let _ = answer(&client, &files);
    }
}

fn answer(client: &Socket, files: &[std::os::fd::OwnedFd]) -> rustix::io::Result<()> {
    for files in [&files[..2], &files[2..]] {
        client.receive()?;
        client.send(&[0; REPLY], &borrowed(files))?;
    }
    Ok(())
}

/// A server in its own process. Ended on drop.
pub(super) struct BareExchange {
    server: Child,
    path: PathBuf,
}

impl BareExchange {
    /// Starts the server with its socket at `path`. `program` is the program of the test suite.
    pub(super) fn start(program: &Path, path: PathBuf) -> Result<Self, Failure> {
        let mut server = Command::new(program)
            .args(["attack", SERVER])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut begun = [0; 1];
        let output = server.stdout.as_mut();
        let begins = output.map(|output| output.read_exact(&mut begun));
        let exchange = Self { server, path };
        match begins {
            Some(Ok(())) => Ok(exchange),
            _ => Err(Failure::new("the bare exchange's server does not start")),
        }
    }

    /// Makes one exchange, and returns the time that it takes.
    pub(super) fn measure(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        let server = Socket::connect(&self.path)?;
        for count in [2, 1] {
            server.send(&[0; REQUEST], &[])?;
            let (_, files) = server.receive()?;
            if files.len() != count {
                return Err(Failure::new("the bare exchange brought other descriptors"));
            }
        }
        let taken = began.elapsed();
        drop(server);
        Ok(taken)
    }
}

impl Drop for BareExchange {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}
