//! Attackers of a holder, and the siege. In the siege, the attackers attack a real pair of holder
//! processes that honest programs use at the same time.
//!
//! The names of all memory that these attackers hand over begin with [`HOSTILE`], so that the siege
//! can remove them afterwards. The attackers do not replace or remove honest names, although
//! processes of the same user may do so.

mod honest;
mod makers;
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

/// Prefix of the names that attackers use.
const HOSTILE: &str = "hostile-";
/// Prefix of the names that honest readers keep.
const KEPT: &str = "kept-";
/// Maximum time of an attacker's own call to the holder.
const CALL: Duration = Duration::from_millis(300);

/// Returns the attackers of a holder, including attackers of any exporter that also attack a
/// holder.
pub(super) fn attackers() -> &'static [Attacker] {
    const ALL: &[Attacker] = &[
        Attacker::new("busy-loop", programs::busy_loop),
        Attacker::new("request-flood", programs::request_flood),
        Attacker::new("waits", programs::waits),
        Attacker::new("unread-answers", programs::unread_answers),
        Attacker::new("unread-memory", programs::unread_memory),
        Attacker::new("stopped-reader", programs::stopped_reader),
        Attacker::new("long-labels", programs::long_labels),
        Attacker::new("silent-makers", makers::silent_makers),
        Attacker::new("context-hoarder", makers::context_hoarder),
        Attacker::new("record-squatter", makers::record_squatter),
        Attacker::new("idle-connections", connections::idle_connections),
        Attacker::new("connection-flood", connections::connection_flood),
        Attacker::new("garbage", messages::garbage),
    ];
    ALL
}

/// Returns the client with which an attacker reaches the holder, even if the holder runs as another
/// user.
fn holder(directory: &Path) -> Holder {
    Holder::new()
        .socket_dir(directory)
        .peers(PeerPolicy::Anyone)
        .timeout(CALL)
}

/// Creates a context whose memory can be handed over.
fn context(directory: &Path) -> Result<Context, Failure> {
    let options = ContextOptions::new()
        .socket_dir(directory)
        .peers(PeerPolicy::Anyone)
        .pooling(false);
    Ok(Context::with_options(&Device::find("host")?, options)?)
}

/// Returns the bytes of a request in the current protocol version.
fn request(request: &str) -> Vec<u8> {
    format!(r#"{{"protocol":2,"request":{request}}}"#).into_bytes()
}

/// Sends a request to the holder, and returns the connection. Does not wait for the reply.
fn ask(victim: &Victim, request: &[u8]) -> rustix::io::Result<OwnedFd> {
    let connection = socket::connect_to(&victim.directory.join("holder.sock"))?;
    socket::send(&connection, request, &[])?;
    Ok(connection)
}
