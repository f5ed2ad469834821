//! Lookup of host names in a text file that lists the addresses at which each host listens.

use crate::error::{Error, Result};
use crate::link::Link;
use crate::options::LinkOptions;
use crosshandle::Context;
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a file with host names. It is enough for several hundred thousand
/// hosts.
const MAX_BYTES: u64 = 16 << 20;

/// A file that maps host names to the addresses at which the hosts listen for links. Each line has
/// a name and one or more addresses, separated by spaces. A `#` starts a comment:
///
/// ```text
/// # The store of the second rack, over either network.
/// llama  192.0.2.1:7417  198.51.100.1:7417
/// ```
///
/// Each lookup reads the file again, so it can be replaced at any time. Replace it with `rename`,
/// so that no reader sees an incomplete file. The file only selects the address to dial. The peer
/// still proves its identity through TLS.
#[derive(Clone, Debug)]
pub struct HostDirectory {
    path: PathBuf,
}

impl HostDirectory {
    /// Creates a directory from the path of its file. Does not read the file yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the addresses of a host in the order of the file, or `None` if the file does not
    /// contain the name.
    ///
    /// # Errors
    /// Returns [`Error::Os`] if the file cannot be read, or [`Error::InvalidArgument`] if its
    /// format is wrong.
    pub fn addresses(&self, name: &str) -> Result<Option<Vec<String>>> {
        let cannot = "reading the names of hosts";
        let file = OpenOptions::new()
            .read(true)
            // Without this flag, opening a FIFO would block.
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(&self.path)
            .map_err(Error::os(cannot))?;
        if !file.metadata().map_err(Error::os(cannot))?.is_file() {
            return Err(wrong(&self.path, "it is not a regular file"));
        }
        let mut text = String::new();
        // The file may grow while it is read, so the limit applies to the bytes that were read, not
        // to the file's size.
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(Error::os(cannot))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(&self.path, "it is longer than any list of hosts"));
        }
        find(&text, name).map_err(|why| wrong(&self.path, &why))
    }

    /// Creates a link to a named host. Dials the host's addresses in turn until one of them works.
    ///
    /// # Errors
    /// Returns the errors from [`addresses`](Self::addresses), and the error from [`Link::connect`]
    /// for the last address. Returns [`Error::InvalidArgument`] if the file does not contain the
    /// name.
    pub fn connect(&self, name: &str, context: &Context, options: &LinkOptions) -> Result<Link> {
        let addresses = self.addresses(name)?.ok_or_else(|| {
            let path = self.path.display();
            Error::invalid(format!(
                "no host is named {name} in {path}: add a line for it"
            ))
        })?;
        let mut last = None;
        for address in &addresses {
            match Link::connect(&**address, context, options) {
                Ok(link) => return Ok(link),
                Err(error) => last = Some(error),
            }
        }
        // A line has at least one address, so this is the error of the last attempt.
        Err(last.unwrap_or(Error::Protocol("a host has no address")))
    }
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

fn find(text: &str, name: &str) -> Result<Option<Vec<String>>, String> {
    let mut found = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let addresses: Vec<_> = words.map(str::to_owned).collect();
        if addresses.is_empty() {
            return Err(format!(
                "line {} names {first} without an address",
                index + 1
            ));
        }
        if let Some(address) = addresses.iter().find(|address| !has_port(address)) {
            let line = index + 1;
            return Err(format!(
                "line {line} has no port behind {address}: write host:port"
            ));
        }
        if first == name && found.replace(addresses).is_some() {
            return Err(format!("line {} names {name} a second time", index + 1));
        }
    }
    Ok(found)
}

/// Returns `true` if an address has the form `host:port`. An IPv6 address must be in brackets.
fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty() && (is_bracketed || !host.contains(':')) && port.parse::<u16>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Data, Identity, Listener, Token};
    use crosshandle::Device;

    #[test]
    fn lines_name_hosts_and_their_addresses() {
        let text = "# all\n\none 192.0.2.1:1 [2001:db8::1]:1 # both\n two\thost:2\n";
        let one = vec!["192.0.2.1:1".to_owned(), "[2001:db8::1]:1".to_owned()];
        assert_eq!(find(text, "one"), Ok(Some(one)));
        assert_eq!(find(text, "two"), Ok(Some(vec!["host:2".to_owned()])));
        assert_eq!(find(text, "three"), Ok(None));
        for (text, why) in [
            ("one", "without an address"),
            ("one host", "no port"),
            ("one host:", "no port"),
            ("one :1", "no port"),
            ("one 2001:db8::1", "no port"),
            ("one [2001:db8::1]", "no port"),
            ("one a:1\none b:1", "a second time"),
        ] {
            assert!(find(text, "one").unwrap_err().contains(why));
        }
    }

    #[test]
    fn addresses_are_dialled_until_one_answers() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let options = LinkOptions::new(Identity::Token(Token::generate().unwrap())).data(Data::Tls);
        let listener = Listener::bind("127.0.0.1:0", &context, &options).unwrap();
        // No socket listens at the first address, because this listener is closed at once.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = closed.local_addr().unwrap();
        drop(closed);
        let path = std::env::temp_dir().join(format!("xhl-hosts-{}", std::process::id()));
        let directory = HostDirectory::new(&path);
        assert!(directory.addresses("store").is_err());
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
        let error = directory.addresses("store").unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let line = format!("store {free} {}\n", listener.local_address());
        std::fs::write(&path, line).unwrap();
        let link = directory.connect("store", &context, &options).unwrap();
        assert_eq!(link.peer(), listener.local_address().to_string());
        let error = directory.connect("other", &context, &options).unwrap_err();
        assert!(
            error.to_string().contains("no host is named other"),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
    }
}
