//! Attackers of a holder, and the siege in which they attack a real pair of holder processes beside
//! honest programs.
//!
//! All that these attackers hand over has a name that begins with [`HOSTILE`], so the siege can remove it
//! afterwards. They replace and remove no honest name, which processes of the same user may do.

mod honest;
mod makers;
mod pair;
mod programs;
mod siege;

pub(super) use honest::{ROLE as HONEST, serve as serve_honest};
pub use siege::{Siege, siege};

use super::{Attacker, Victim, connections, messages, socket};
use crate::failure::Failure;
use crosshandle::holder::Holder;
use crosshandle::{Context, ContextOptions, Device, PeerPolicy};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// How the names of what attackers hand over begin.
const HOSTILE: &str = "hostile-";
/// How the names begin that honest readers keep.
const KEPT: &str = "kept-";
/// Longest time that an attacker's own call to the holder takes.
const CALL: Duration = Duration::from_millis(300);

/// Returns the attackers of a holder, those of every exporter that attack a holder too included.
pub(super) fn attackers() -> &'static [&'static dyn Attacker] {
    &[
        &programs::QuestionFlood,
        &programs::Waits,
        &programs::UnreadAnswers,
        &programs::UnreadMemory,
        &programs::StoppedReader,
        &programs::LongLabels,
        &makers::SilentMakers,
        &makers::ContextHoarder,
        &makers::RecordSquatter,
        &connections::IdleConnections,
        &connections::ConnectionFlood,
        &messages::Garbage,
    ]
}

/// Returns the holder as an attacker asks it, also if it runs as another user.
fn holder(directory: &Path) -> Holder {
    Holder::new()
        .socket_dir(directory)
        .peers(PeerPolicy::Anyone)
        .timeout(CALL)
}

/// Makes a context whose memory can be handed over.
fn context(directory: &Path) -> Result<Context, Failure> {
    let options = ContextOptions::new()
        .socket_dir(directory)
        .peers(PeerPolicy::Anyone)
        .pooling(false);
    Ok(Context::with_options(&Device::find("host")?, options)?)
}

/// Returns a question as programs of this release ask it.
fn question(question: &str) -> Vec<u8> {
    format!(r#"{{"protocol":2,"question":{question}}}"#).into_bytes()
}

/// Asks the holder, and keeps the connection. Does not wait for the answer.
fn ask(victim: &Victim, question: &[u8]) -> rustix::io::Result<OwnedFd> {
    let connection = socket::connect_to(&victim.directory.join("holder.sock"))?;
    socket::send(&connection, question, &[])?;
    Ok(connection)
}
