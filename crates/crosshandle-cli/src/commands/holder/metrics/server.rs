//! The HTTP server of the metrics port. Each connection has one request and one reply.

use super::sample::Sampler;
use super::{exposition, page, spawn};
use crate::commands::holder::hold;
use crate::output::clean;
use crate::tuning::{METRICS_CONNECTIONS, METRICS_HEAD_BYTES, METRICS_REQUEST_TIME};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Serves requests until the process ends.
pub(super) fn serve(listener: &TcpListener, sampler: &Arc<Sampler>) {
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // The process may be out of descriptors.
            thread::sleep(METRICS_REQUEST_TIME / 10);
            continue;
        };
        if busy.fetch_add(1, Ordering::AcqRel) >= METRICS_CONNECTIONS {
            // Dropping the stream closes the connection.
            busy.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (own, sampler) = (Arc::clone(&busy), Arc::clone(sampler));
        let answers = spawn(move || {
            answer(stream, &sampler);
            own.fetch_sub(1, Ordering::AcqRel);
        });
        if answers.is_err() {
            busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

fn answer(mut stream: TcpStream, sampler: &Sampler) {
    let deadline = Instant::now() + METRICS_REQUEST_TIME;
    let Some(head) = read_head(&mut stream, deadline) else {
        return;
    };
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let answer = match method {
        Some("GET" | "HEAD") => answer_to(path, sampler),
        _ => Answer::text("405 Method Not Allowed", "GET and HEAD alone\n"),
    };
    let Answer {
        status,
        content_type,
        body,
    } = &answer;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n",
        body.len()
    );
    let body = if method == Some("HEAD") { "" } else { body };
    // A client that does not read loses its reply.
    if stream.set_write_timeout(Some(METRICS_REQUEST_TIME)).is_ok() {
        let _ = stream.write_all((head + body).as_bytes());
    }
}

/// Reads the head of a request. Returns `None` if it does not arrive in time, or is too long.
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

fn answer_to(path: &str, sampler: &Sampler) -> Answer {
    const PATHS: [&str; 4] = ["/", "/metrics", "/healthz", "/livez"];
    if !PATHS.contains(&path) {
        return Answer::text("404 Not Found", format!("{}\n", PATHS.join("\n")));
    }
    let sample = match sampler.sample() {
        Ok(sample) => sample,
        Err(error) => {
            let error = error.to_string();
            return Answer::text(
                "503 Service Unavailable",
                format!("{}\n", clean::line(&error)),
            );
        }
    };
    match path {
        "/metrics" => match exposition::text(&sample) {
            Ok(body) => Answer {
                status: "200 OK",
                content_type: exposition::TYPE,
                body,
            },
            Err(_) => Answer::text(
                "500 Internal Server Error",
                "the metrics cannot be encoded\n",
            ),
        },
        "/livez" => Answer::text("200 OK", "the holder answers\n"),
        "/healthz" => {
            let text = serde_json::to_string(&hold::Health::of(&sample.status)).unwrap_or_default();
            Answer {
                status: match sample.status.is_safe {
                    true => "200 OK",
                    false => "503 Service Unavailable",
                },
                content_type: "application/json",
                body: format!("{}\n", clean::json(&text)),
            }
        }
        _ => Answer {
            status: "200 OK",
            content_type: "text/html; charset=utf-8",
            body: page::html(&sample),
        },
    }
}
