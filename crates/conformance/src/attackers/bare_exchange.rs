//! A bare exchange of descriptors over a Unix socket, as far as the kernel makes it: what any open is
//! measured against. Nobody attacks its server, which has its socket in a directory of its own.
//!
//! As in an open by a newcomer, the client connects, gets two descriptors for a first question and one for
//! a second, in messages of the same sizes. Nothing is checked, counted or mapped.

use crate::failure::Failure;
use crate::raw::{self, REPLY, REQUEST, Socket, borrowed};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The word that starts the server: `conformance attack bare-exchange PATH`.
pub(super) const SERVER: &str = "bare-exchange";
/// Bytes in each of the files whose descriptors are given.
const FILE_BYTES: u64 = 4096;

/// Answers one client after the other at `path`, until standard input is closed.
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
        // A client that was killed is none to answer.
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

/// A server in a process of its own, until this is dropped.
pub(super) struct BareExchange {
    server: Child,
    path: PathBuf,
}

impl BareExchange {
    /// Starts the server with its socket at `path`. `program`: that of the suite.
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

    /// Makes one exchange, and returns how long it takes.
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
