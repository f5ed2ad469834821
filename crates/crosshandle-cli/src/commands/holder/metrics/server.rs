//! The HTTP server of the metrics port. Each connection has one request and one reply.

use super::sample::Sampler;
use super::{exposition, page, spawn};
use crate::commands::holder::hold;
use crate::output::clean;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections to the metrics port that have sent no request yet, and maximum
/// number of requests that are answered at a time. A further connection closes the oldest one
/// without a request. The limit bounds the threads and descriptors that a flood of connections can
/// use.
const METRICS_CONNECTIONS: usize = 16;

/// Timeout of a client of the metrics port, for sending its request and for reading the reply. A
/// silent client occupies a connection for this time.
const METRICS_REQUEST_TIME: Duration = Duration::from_secs(2);

/// Maximum size of the head of a request, in bytes. Browsers may send long cookies of other
/// programs on the same host.
const METRICS_HEAD_BYTES: usize = 16 << 10;

/// Limits the number of connections. It contains the connections without a complete request, oldest
/// first, and the number of requests in progress.
#[derive(Default)]
struct Places {
    next: u64,
    silent: VecDeque<(u64, TcpStream)>,
    answering: usize,
}

impl Places {
    /// Adds a new connection. If there are too many, closes the oldest connection without a
    /// request, so that silent clients cannot block health checks.
    fn admit(&mut self, stream: &TcpStream) -> std::io::Result<u64> {
        if self.silent.len() >= METRICS_CONNECTIONS
            && let Some((_, oldest)) = self.silent.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.next += 1;
        self.silent.push_back((self.next, stream.try_clone()?));
        Ok(self.next)
    }

    fn leave(&mut self, number: u64) {
        self.silent.retain(|(other, _)| *other != number);
    }
}

/// Serves requests until the process ends.
pub(super) fn serve(listener: &TcpListener, sampler: &Arc<Sampler>) {
    let places = Arc::new(Mutex::new(Places::default()));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Accepting fails if the process has no free descriptors.
            thread::sleep(METRICS_REQUEST_TIME / 10);
            continue;
        };
        let Ok(number) = locked(&places).admit(&stream) else {
            continue;
        };
        let (own, sampler) = (Arc::clone(&places), Arc::clone(sampler));
        let answers = spawn(move || {
            respond(stream, &sampler, &own, number);
            locked(&own).leave(number);
        });
        if answers.is_err() {
            locked(&places).leave(number);
        }
    }
}

fn locked(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request in progress, which is counted until this value is dropped.
struct Responding<'a>(&'a Mutex<Places>);

impl<'a> Responding<'a> {
    /// Counts a connection as a request in progress. Returns `None` if there are too many.
    fn begin(places: &'a Mutex<Places>, number: u64) -> Option<Self> {
        let mut all = locked(places);
        all.leave(number);
        if all.answering >= METRICS_CONNECTIONS {
            return None;
        }
        all.answering += 1;
        Some(Self(places))
    }
}

impl Drop for Responding<'_> {
    fn drop(&mut self) {
        locked(self.0).answering -= 1;
    }
}

struct Response {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Response {
    fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

fn respond(mut stream: TcpStream, sampler: &Sampler, places: &Mutex<Places>, number: u64) {
    let deadline = Instant::now() + METRICS_REQUEST_TIME;
    let Some(head) = read_head(&mut stream, deadline) else {
        return;
    };
    let Some(_place) = Responding::begin(places, number) else {
        return;
    };
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let respond = match method {
        Some("GET" | "HEAD") => response_to(path, sampler),
        _ => Response::text("405 Method Not Allowed", "GET and HEAD alone\n"),
    };
    let Response {
        status,
        content_type,
        body,
    } = &respond;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n",
        body.len()
    );
    let body = if method == Some("HEAD") { "" } else { body };
    // Writing fails if the client does not read its reply.
    let _ = write(&mut stream, (head + body).as_bytes());
}

/// Sends a reply. Fails if the client does not accept all of it in time.
fn write(stream: &mut TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    let deadline = Instant::now() + METRICS_REQUEST_TIME;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.write(bytes) {
            Ok(0) => break,
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted && !left.is_zero() => {}
            Err(error) => return Err(error),
        }
        if left.is_zero() {
            break;
        }
    }
    Ok(())
}

/// Reads the head of a request. Returns `None` if the head does not arrive in time, or is too long.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> Option<String> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .ok()?;
        match stream.read(&mut part) {
            Ok(count @ 1..) if head.len() + count <= METRICS_HEAD_BYTES && !left.is_zero() => {
                head.extend_from_slice(&part[..count]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

fn response_to(path: &str, sampler: &Sampler) -> Response {
    const PATHS: [&str; 4] = ["/", "/metrics", "/healthz", "/livez"];
    if !PATHS.contains(&path) {
        return Response::text("404 Not Found", format!("{}\n", PATHS.join("\n")));
    }
    let sample = match sampler.sample() {
        Ok(sample) => sample,
        Err(error) => {
            let error = error.to_string();
            return Response::text(
                "503 Service Unavailable",
                format!("{}\n", clean::line(&error)),
            );
        }
    };
    match path {
        "/metrics" => match exposition::text(&sample) {
            Ok(body) => Response {
                status: "200 OK",
                content_type: exposition::TYPE,
                body,
            },
            Err(_) => Response::text(
                "500 Internal Server Error",
                "the metrics cannot be encoded\n",
            ),
        },
        "/livez" => Response::text("200 OK", "the holder answers\n"),
        "/healthz" => {
            let text = serde_json::to_string(&hold::Health::of(&sample.status)).unwrap_or_default();
            Response {
                status: match sample.status.is_safe {
                    true => "200 OK",
                    false => "503 Service Unavailable",
                },
                content_type: "application/json",
                body: format!("{}\n", clean::json(&text)),
            }
        }
        _ => Response {
            status: "200 OK",
            content_type: "text/html; charset=utf-8",
            body: page::html(&sample),
        },
    }
}
