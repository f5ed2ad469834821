//! The hostile server. It listens at one port for each lie.

use super::lies::{About, LEN, Lie, Material, Then, Told, hello, lies, model};
use super::{is_long, write_certificates};
use crate::failure::Failure;
use crosshandle::{Context, ContextOptions, Device};
use crosshandle_link::control::message::{HELLO_SIZE, Hello, Message};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The command-line word that starts the server.
pub(crate) const ROLE: &str = "link-server";
/// Maximum time of one conversation. Clients give up earlier.
const CONVERSATION: Duration = Duration::from_secs(30);
/// Maximum time of a lie that is repeated many times.
const MANY_TIME: Duration = Duration::from_secs(2);
/// Number of repetitions of such a lie.
const MANY: usize = 20_000;

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// Serves all lies until standard input is closed. Prints a line with the name of each lie and its
/// port.
pub(crate) fn serve(directory: &Path) -> ExitCode {
    match begin(directory) {
        Ok(_context) => {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn begin(directory: &Path) -> Result<Context, Failure> {
    let options = ContextOptions::new().socket_dir(directory).pooling(false);
    let context = Context::with_options(&Device::find("host")?, options)?;
    // The handle stays well-formed after the memory is freed.
    let memory = *context.allocate(LEN)?.handle()?.as_bytes();
    let material = Arc::new(Material { memory });
    let config = Arc::new(config(directory)?);
    for lie in lies() {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        super::super::say(&format!("{} {}", lie.name, listener.local_addr()?));
        let (lie, material, config) = (Arc::new(lie), Arc::clone(&material), Arc::clone(&config));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (lie, material) = (Arc::clone(&lie), Arc::clone(&material));
                let config = Arc::clone(&config);
                // Clients end conversations at any point.
                std::thread::spawn(move || drop(tell(socket, config, &lie, &material)));
            }
        });
    }
    super::super::say("begun");
    Ok(context)
}

fn config(directory: &Path) -> Result<ServerConfig, Failure> {
    write_certificates(directory)?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
    let read = |name: &str| {
        CertificateDer::from_pem_file(directory.join(name)).map_err(|error| failed(&error))
    };
    let key = PrivateKeyDer::from_pem_file(directory.join("owner.key.pem"));
    let key = key.map_err(|error| failed(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(read("authority.pem")?)
        .map_err(|error| failed(&error))?;
    let roots = Arc::new(roots);
    let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| failed(&error))?;
    ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| {
            let chain =
                vec![read("owner.pem").map_err(|_| rustls::Error::NoCertificatesPresented)?];
            config
                .with_client_cert_verifier(clients)
                .with_single_cert(chain, key)
        })
        .map_err(|error| failed(&error))
}

/// Tells one lie on a connection.
fn tell(
    mut socket: TcpStream,
    config: Arc<ServerConfig>,
    lie: &Lie,
    material: &Material,
) -> io::Result<()> {
    socket.set_read_timeout(Some(CONVERSATION))?;
    socket.set_write_timeout(Some(MANY_TIME))?;
    socket.set_nodelay(true)?;
    if let About::Tls(bytes) = lie.about {
        let told = bytes();
        socket.write_all(&told.bytes)?;
        if told.then == Then::BeSilent {
            await_hang_up(&mut socket)?;
        }
        return Ok(());
    }
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    let mut hello_of_client = [0; HELLO_SIZE];
    stream.read_exact(&mut hello_of_client)?;
    let resumes = Hello::decode(&hello_of_client).is_ok_and(|hello| hello.session != [0; 16]);
    if resumes && !is_long(lie.name) {
        // The client waits for this connection in place of the one that was cut.
        return await_hang_up(&mut stream);
    }
    if let About::Greeting(bytes) = lie.about {
        let _ = say(&mut stream, &bytes())?;
        return Ok(());
    }
    stream.write_all(&hello().encode())?;
    if let About::First(first) = lie.about {
        let told = first(material);
        for _ in 0..MANY {
            if !say(&mut stream, &told)? {
                break;
            }
        }
        return await_hang_up(&mut stream);
    }
    let manifest = match lie.about {
        About::Model(manifest) => manifest().into_bytes(),
        _ => Vec::new(),
    };
    let mut received = Vec::new();
    loop {
        while let Some(len) = Message::frame_len(&received).map_err(io::Error::other)? {
            if received.len() < len {
                break;
            }
            let frame: Vec<_> = received.drain(..len).collect();
            let frame = &frame[crosshandle_link::control::message::PREFIX..];
            let asked = Message::decode(frame).map_err(io::Error::other)?;
            if matches!(
                asked,
                Message::Ack { .. } | Message::Close { .. } | Message::Bye { .. }
            ) {
                continue;
            }
            let told = match lie.about {
                About::Replies(reply) => reply(&asked, material),
                _ => Told {
                    bytes: model(&asked, material, &manifest),
                    then: Then::Continue,
                },
            };
            if !say(&mut stream, &told)? {
                return Ok(());
            }
        }
        let mut buffer = [0; 16 << 10];
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => received.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Sends bytes. Returns whether the conversation continues.
fn say(stream: &mut Stream, told: &Told) -> io::Result<bool> {
    stream.write_all(&told.bytes)?;
    stream.flush()?;
    if told.then == Then::BeSilent {
        await_hang_up(stream)?;
    }
    Ok(told.then == Then::Continue)
}

/// Reads and discards what the client sends, until it hangs up.
fn await_hang_up(stream: &mut impl Read) -> io::Result<()> {
    let begun = Instant::now();
    let mut buffer = [0; 16 << 10];
    while begun.elapsed() < CONVERSATION && stream.read(&mut buffer)? > 0 {}
    Ok(())
}
