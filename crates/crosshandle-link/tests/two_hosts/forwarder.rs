//! A simulated slow network. It forwards TCP connections with a delay and a limited rate, and can
//! cut them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Size of a forwarded chunk in bytes.
const CHUNK: usize = 8 << 10;

/// A forwarder to one address. It runs until the test's process ends.
pub(crate) struct Forwarder {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Forwarder {
    /// Forwards connections to `to`. Bytes in each direction are delayed by `delay`, and limited to
    /// `bytes_per_second`.
    pub(crate) fn new(to: &str, delay: Duration, bytes_per_second: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (to, made) = (to.to_owned(), Arc::clone(&connections));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (sender, chunks) = sync_channel(1 << 10);
                    thread::spawn(move || read(from, delay, &sender));
                    thread::spawn(move || write(to, bytes_per_second, &chunks));
                }
                made.lock().unwrap().push(client);
            }
        });
        Self {
            address,
            connections,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of connections that were forwarded so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for connection in self.connections.lock().unwrap().iter() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Reads chunks, and sends each with the time at which it must arrive. An empty chunk marks the
/// end.
fn read(
    mut from: TcpStream,
    delay: Duration,
    chunks: &std::sync::mpsc::SyncSender<(Instant, Vec<u8>)>,
) {
    loop {
        let mut bytes = vec![0; CHUNK];
        let len = from.read(&mut bytes).unwrap_or(0);
        bytes.truncate(len);
        if chunks.send((Instant::now() + delay, bytes)).is_err() || len == 0 {
            return;
        }
    }
}

fn write(mut to: TcpStream, bytes_per_second: u64, chunks: &Receiver<(Instant, Vec<u8>)>) {
    let mut free_at = Instant::now();
    for (due, bytes) in chunks {
        let now = Instant::now();
        let late = Duration::from_secs_f64(bytes.len() as f64 / bytes_per_second as f64);
        free_at = free_at.max(now) + late;
        thread::sleep(due.max(free_at).saturating_duration_since(now));
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
