//! Links to other hosts. Programs import `crosshandle.link`.

mod error;
mod objects;

pub(crate) use objects::{Link, Listener, RemoteEvent, RemoteMemory};

use crate::interrupt::seconds;
use crosshandle_link::{Certificates, Data, Identity, LinkOptions, Token};
use error::{Failure, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;

/// The options that `crosshandle.link` passes, for the connecting and the listening side of a link.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    token: Option<String>,
    token_file: Option<PathBuf>,
    /// The paths of the authority, the certificate and the key, and the host name that the
    /// listening host's certificate must contain.
    certificates: Option<(PathBuf, PathBuf, PathBuf, String)>,
    data: String,
    keep_alive: Option<f64>,
    interface: Option<String>,
    transports: Option<String>,
    names: bool,
}

impl Options {
    fn into_link(self) -> PyResult<LinkOptions> {
        let identity = match (self.token, self.token_file, self.certificates) {
            (Some(token), None, None) => {
                Identity::Token(token.parse::<Token>().map_err(Failure::from)?)
            }
            (None, Some(file), None) => {
                Identity::Token(Token::from_file(file).map_err(Failure::from)?)
            }
            (None, None, Some((authority, certificate, key, peer_name))) => {
                Identity::Certificates(Certificates {
                    authority,
                    certificate,
                    key,
                    peer_name,
                })
            }
            _ => {
                return Err(PyValueError::new_err(
                    "a link needs one of token, token_file and certificates",
                ));
            }
        };
        let data = match &*self.data {
            "ucx" => Data::Ucx,
            "tls" => Data::Tls,
            other => {
                return Err(PyValueError::new_err(format!(
                    "data is 'ucx' or 'tls', not '{other}'"
                )));
            }
        };
        let mut options = LinkOptions::new(identity).data(data);
        if let Some(keep_alive) = seconds(self.keep_alive)? {
            options = options.keep_alive(keep_alive);
        }
        if let Some(interface) = self.interface {
            options = options.interface(interface);
        }
        if let Some(transports) = self.transports {
            options = options.transports(transports);
        }
        Ok(match self.names {
            true => options.names(crosshandle::holder::Holder::new()),
            false => options,
        })
    }
}

/// Generates a new token and returns it as text. Both sides of a link need the same token.
#[pyfunction]
pub(crate) fn new_token() -> Result<String> {
    Ok(Token::generate()?.to_text())
}
