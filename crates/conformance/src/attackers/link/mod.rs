//! A hostile linked host: a server that proves its identity with a valid certificate, and then
//! lies. The siege connects honest clients to it, next to a link between two honest hosts.

mod client;
mod lies;
mod server;
mod siege;

pub(super) use client::{ROLE as CLIENT, serve as serve_client};
pub(super) use server::{ROLE as SERVER, serve as serve_server};
pub use siege::{LinkSiege, siege};

use std::fs;
use std::io;
use std::path::Path;

/// The certificates of the link's tests, by the names of their files.
const CERTIFICATES: [(&str, &str); 5] = [
    (
        "authority.pem",
        include_str!("../../../../crosshandle-link/tests/certificates/authority.pem"),
    ),
    (
        "owner.pem",
        include_str!("../../../../crosshandle-link/tests/certificates/owner.pem"),
    ),
    (
        "owner.key.pem",
        include_str!("../../../../crosshandle-link/tests/certificates/owner.key.pem"),
    ),
    (
        "user.pem",
        include_str!("../../../../crosshandle-link/tests/certificates/user.pem"),
    ),
    (
        "user.key.pem",
        include_str!("../../../../crosshandle-link/tests/certificates/user.key.pem"),
    ),
];
/// The name in the certificate of the listening side.
const OWNER_NAME: &str = "owner.example";

/// Returns whether a host keeps its client waiting until a request times out, which takes a minute.
fn is_long(lie: &str) -> bool {
    lie.starts_with("reconnects")
}

/// Returns whether a host lets its client wait in the handshake, which takes 5 s.
fn is_silent_handshake(lie: &str) -> bool {
    let silent = [
        "silent-before",
        "silent-in-tls",
        "silent-greeting",
        "half-greeting",
    ];
    silent.iter().any(|word| lie.starts_with(word))
}

fn write_certificates(directory: &Path) -> io::Result<()> {
    for (name, text) in CERTIFICATES {
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}
