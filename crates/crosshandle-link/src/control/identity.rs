//! Authentication with TLS 1.3. Both sides prove that they may link, with a shared token or with
//! certificates.

use crate::error::{Error, Result};
use data_encoding::BASE32_NOPAD;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A secret of 32 random bytes that both sides of a link share. Its text form is `xhlink-` followed
/// by 52 characters. `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

const TOKEN_PREFIX: &str = "xhlink-";

impl Token {
    /// Generates a new token.
    ///
    /// # Errors
    /// Returns [`Error::Os`] if the system provides no random bytes.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::os("making a token")(std::io::Error::other(error.to_string()))
        })?;
        Ok(Self(bytes))
    }

    /// Returns the token as text. Any process that knows the text can link.
    pub fn to_text(&self) -> String {
        let text = BASE32_NOPAD.encode(&self.0).to_ascii_lowercase();
        format!("{TOKEN_PREFIX}{text}")
    }

    /// Reads a token from a file. Only the file's owner may have access to the file.
    ///
    /// # Errors
    /// Returns [`Error::Os`] if the file cannot be read. Returns [`Error::Identity`] if the file
    /// does not contain a token, or if other users have access to it.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = path.as_ref();
        let metadata =
            std::fs::metadata(path).map_err(Error::os("reading the file of the token"))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(Error::Identity(
                format!(
                    "the token in {} can be read by other users: chmod 600 it, or make a new one",
                    path.display()
                )
                .into(),
            ));
        }
        let text =
            std::fs::read_to_string(path).map_err(Error::os("reading the file of the token"))?;
        text.trim().parse()
    }

    /// Derives the key pair that both sides use. A valid signature with this key proves knowledge
    /// of the token.
    fn key(&self) -> Result<Arc<CertifiedKey>> {
        use ring::hkdf::{HKDF_SHA256, Salt};
        use ring::signature::{Ed25519KeyPair, KeyPair};
        let cannot = |what: &str| Error::Identity(format!("the token's key: {what}").into());
        let secret = Salt::new(HKDF_SHA256, b"crosshandle link, version 1").extract(&self.0);
        let mut seed = [0; 32];
        secret
            .expand(&[b"ed25519"], HKDF_SHA256)
            .and_then(|output| output.fill(&mut seed))
            .map_err(|_| cannot("cannot be derived"))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| cannot("is refused"))?;
        // The fixed prefixes of an encoded Ed25519 private key and public key (RFC 8410).
        let mut private = vec![
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
            0x04, 0x20,
        ];
        private.extend_from_slice(&seed);
        let mut public = vec![
            0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
        ];
        public.extend_from_slice(pair.public_key().as_ref());
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(private));
        let signer = provider::sign::any_eddsa_type(match &private {
            PrivateKeyDer::Pkcs8(key) => key,
            _ => unreachable!("made above"),
        })
        .map_err(|error| cannot(&error.to_string()))?;
        Ok(Arc::new(CertifiedKey::new(
            vec![CertificateDer::from(public)],
            signer,
        )))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::Identity(
                "this is not a link token: a token has \"xhlink-\" and 52 characters; make one with \
                 Token::generate or `crosshandle link token FILE`"
                    .into(),
            )
        };
        let text = text.strip_prefix(TOKEN_PREFIX).ok_or_else(wrong)?;
        let bytes = BASE32_NOPAD
            .decode(text.to_ascii_uppercase().as_bytes())
            .map_err(|_| wrong())?;
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Certificates in PEM files. Each side trusts every certificate that the authority has signed, so
/// the authority should sign certificates only for hosts that may link.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificates of the authority that signed the peer's certificate.
    pub authority: PathBuf,
    /// This side's certificate, followed by any intermediate certificates up to the authority.
    pub certificate: PathBuf,
    /// The private key of this side's certificate.
    pub key: PathBuf,
    /// The host name that the listening side's certificate must contain. The connecting side checks
    /// it.
    pub peer_name: String,
}

/// The method with which the two sides of a link authenticate each other. There is no default, and
/// no method admits unknown hosts.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Both sides know the same token.
    Token(Token),
    /// Both sides have certificates.
    Certificates(Certificates),
}

/// TLS configurations for both roles.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// The server name that the client requests and checks.
    pub(crate) name: ServerName<'static>,
}

impl Identity {
    pub(crate) fn to_tls(&self) -> Result<Tls> {
        let provider = Arc::new(provider::default_provider());
        let (client, server, name) = match self {
            Self::Token(token) => {
                let key = token.key()?;
                let pinned = Arc::new(PinnedKey {
                    key: key.cert[0].as_ref().to_vec(),
                    algorithms: provider.signature_verification_algorithms,
                });
                let client = client(&provider)?
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::clone(&pinned) as _)
                    .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                        Arc::clone(&key),
                    )));
                let server = server(&provider)?
                    .with_client_cert_verifier(pinned)
                    .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
                (client, server, "crosshandle-link.invalid".to_owned())
            }
            Self::Certificates(files) => with_certificates(&provider, files)?,
        };
        let (mut client, mut server) = (client, server);
        // Disable session resumption, so that each new connection is fully authenticated.
        client.resumption = Resumption::disabled();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Tls {
            client: Arc::new(client),
            server: Arc::new(server),
            name: ServerName::try_from(name).map_err(|error| refused(&error))?,
        })
    }
}

fn refused(error: &dyn fmt::Display) -> Error {
    Error::Identity(format!("the identity of the link cannot be used: {error}").into())
}

fn client(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>> {
    ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| refused(&error))
}

fn server(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>> {
    ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| refused(&error))
}

fn with_certificates(
    provider: &Arc<CryptoProvider>,
    files: &Certificates,
) -> Result<(ClientConfig, ServerConfig, String)> {
    let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
        let unreadable =
            |error: &dyn fmt::Display| refused(&format!("{}: {error}", path.display()));
        let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
            .map_err(|error| unreadable(&error))?
            .collect();
        match found.map_err(|error| unreadable(&error))? {
            found if found.is_empty() => Err(unreadable(&"there is no certificate in it")),
            found => Ok(found),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in read(&files.authority)? {
        roots.add(certificate).map_err(|error| refused(&error))?;
    }
    let roots = Arc::new(roots);
    let chain = read(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refused(&format!("{}: {error}", files.key.display())))?;
    let of_server =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            .build()
            .map_err(|error| refused(&error))?;
    let of_client = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| refused(&error))?;
    let client = client(provider)?
        .with_webpki_verifier(of_server)
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(|error| refused(&error))?;
    let server = server(provider)?
        .with_client_cert_verifier(of_client)
        .with_single_cert(chain, key)
        .map_err(|error| refused(&error))?;
    Ok((client, server, files.peer_name.clone()))
}

/// A TLS verifier that accepts exactly one public key. The peer sends the key without a certificate
/// (RFC 7250).
#[derive(Debug)]
struct PinnedKey {
    key: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedKey {
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match key.as_ref() == self.key {
            true => Ok(()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }
}

/// The methods that the verifier for servers and the verifier for clients have in common.
macro_rules! raw_key_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _key: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("only TLS 1.3 is spoken".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    raw_key_signatures!();
}

impl ClientCertVerifier for PinnedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    raw_key_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_never_shown() {
        let token = Token::generate().unwrap();
        let text = token.to_text();
        assert_eq!(text.len(), 59);
        assert_eq!(text.parse::<Token>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&text[8..20]));
        assert_ne!(Token::generate().unwrap(), token);
    }

    #[test]
    fn short_and_foolish_tokens_are_refused() {
        for text in ["", "secret", "xhlink-", "xhlink-abc", "xhlink-0000"] {
            let error = text.parse::<Token>().unwrap_err();
            assert!(
                error.to_string().contains("not a link token"),
                "{text}: {error}"
            );
        }
    }
}
