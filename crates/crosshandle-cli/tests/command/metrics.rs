//! The metrics port of a holder: metrics, health, and the page for people.

use crate::common::{Running, STEP_TIMEOUT, Sandbox, text};
use crate::holder::{Pair, kill};
use crosshandle::holder::{HoldOptions, Holder};
use crosshandle::{Context, ContextOptions, Device, Memory};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Requests a path. Returns the head and the body of the reply, or `None` if there is no
/// connection.
fn get(address: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(STEP_TIMEOUT))
        .expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// Repeats a request until its reply is as wanted.
fn await_answer(address: &str, path: &str, is_wanted: impl Fn(&str, &str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let answer = get(address, path);
        if let Some((head, body)) = &answer
            && is_wanted(head, body)
        {
            return body.clone();
        }
        assert!(begin.elapsed() < STEP_TIMEOUT, "{path}: {answer:?}");
        std::thread::yield_now();
    }
}

/// Starts a holder with a metrics port. Also returns the address.
fn start(sandbox: &Sandbox) -> (Pair<'_>, String) {
    let mut first = sandbox.start(["hold", "--metrics", "127.0.0.1:0"]);
    let address = loop {
        let line = first.stderr.line();
        if let Some((_, address)) = line.split_once("metrics at http://") {
            break address.trim_end_matches('/').to_owned();
        }
    };
    let pair = Pair::of(sandbox, first);
    pair.await_safe();
    (pair, address)
}

const HOSTILE: &str = "<img src=x onerror=document.title='owned'>\u{202e}\u{1b}[31m\"'&";

fn hand_over(sandbox: &Sandbox, name: &str) -> (Context, Memory) {
    let options = ContextOptions::new()
        .socket_dir(sandbox.sockets())
        .pooling(false);
    let device = Device::find("host").expect("there is always a host");
    let context = Context::with_options(&device, options).expect("a context");
    let memory = context.allocate(8192).expect("memory");
    let holder = Holder::new().socket_dir(sandbox.sockets());
    let options = HoldOptions::new().label(HOSTILE);
    let handed_over = holder.hand_over(name, &[("data", &memory)], options);
    handed_over.expect("held");
    (context, memory)
}

#[test]
fn a_port_has_metrics_health_and_a_page_also_after_a_takeover() {
    let sandbox = Sandbox::new();
    let (pair, address) = start(&sandbox);
    let _made = hand_over(&sandbox, "weights/a");
    let handle = Holder::new()
        .socket_dir(sandbox.sockets())
        .open("weights/a");
    let handle = handle.expect("held").parts[0].read_only.expect("a handle");
    let bytes = sandbox.run(["read", &handle.to_string()]).expect(0);
    assert_eq!(bytes.stdout.len(), 8192);

    let check = |takeovers: u64| {
        let line = |name: &str, value: u64| format!("\ncrosshandle_holder_{name} {value}\n");
        let metrics = await_answer(&address, "/metrics", |_, body| {
            body.contains(&line("safe", 1)) && body.contains(&line("takeovers_total", takeovers))
        });
        for (name, value) in [
            ("names", 1),
            ("held_bytes", 8192),
            ("successor", 1),
            ("lost_names", 0),
            ("version{name=\"weights/a\"}", 1),
            ("name_bytes{name=\"weights/a\"}", 8192),
            ("name_readers{name=\"weights/a\"}", 0),
            ("name_pinned{name=\"weights/a\"}", 0),
        ] {
            assert!(
                metrics.contains(&line(name, value)),
                "{name} {value}: {metrics}"
            );
        }
        assert!(metrics.ends_with("# EOF\n"), "{metrics}");
        let (head, health) = get(&address, "/healthz").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let health: serde_json::Value = serde_json::from_str(&health).expect("JSON");
        let checked = sandbox.run(["hold", "--check", "--json"]).expect(0).json();
        assert_eq!(health, checked);
        assert_eq!(
            (&health["names"], &health["is_safe"]),
            (&1.into(), &true.into())
        );
        let (head, page) = get(&address, "/").expect("an answer");
        assert!(
            head.contains("Content-Security-Policy: default-src 'none'"),
            "{head}"
        );
        assert!(
            page.contains("weights/a") && page.contains("&lt;img src=x"),
            "{page}"
        );
        assert!(
            !page.contains("<img") && !page.contains(['\u{202e}', '\u{1b}']),
            "{page}"
        );
        assert!(
            !page.contains("<script") && !page.contains("http://"),
            "nothing is fetched: {page}"
        );
    };
    check(0);
    kill(pair.await_safe().0);
    pair.await_safe();
    check(1);
    let (head, _) = get(&address, "/other").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");

    // The death of a reader is reported. This reader has a name open, and is killed.
    let file = sandbox.file("m.safetensors", &crate::holder::small_model());
    sandbox.run(["load", text(&file), "--name", "m"]).expect(0);
    let mut command = sandbox.command(["verify", "m", "--stay"]);
    command.env("LC_ALL", "C");
    let mut reader = Running::start_with(command, std::process::Stdio::piped());
    reader.stdout.line();
    let one = "crosshandle_holder_name_readers{name=\"m\"} 1\n";
    await_answer(&address, "/metrics", |_, body| body.contains(one));
    drop(reader);
    let page = await_answer(&address, "/", |_, body| body.contains(" ago</td>"));
    assert!(page.contains("<td>m</td></tr>"), "{page}");
    let died = "crosshandle_holder_reader_deaths_total 1\n";
    await_answer(&address, "/metrics", |_, body| body.contains(died));
}

#[test]
fn strangers_at_the_port_hold_up_nobody() {
    let sandbox = Sandbox::new();
    let (_pair, address) = start(&sandbox);
    // Each silent connection is newer than the last reply. No health check is refused for them.
    let mut silent = Vec::new();
    for _ in 0..8 {
        for _ in 0..20 {
            let mut connection = TcpStream::connect(&address).expect("a connection");
            connection.write_all(b"GET /live").expect("sent");
            silent.push(connection);
        }
        let (head, _) = get(&address, "/livez").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    // An endless head, and data that is not HTTP.
    let mut endless = TcpStream::connect(&address).expect("a connection");
    endless
        .set_write_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    for _ in 0..64 {
        if endless.write_all(&[b'a'; 1024]).is_err() {
            break;
        }
    }
    drop(endless);
    drop(silent);
    for request in [
        "",
        "\r\n\r\n",
        "POST / HTTP/1.1\r\n\r\n",
        "GET\r\n\r\n",
        "\u{0}\u{1}\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        stream.write_all(request.as_bytes()).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("its end");
        let mut answer = String::new();
        // The server may close the connection without a reply.
        let _ = stream.read_to_string(&mut answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{request:?}: {answer}"
        );
    }
    await_answer(&address, "/livez", |head, _| {
        head.starts_with("HTTP/1.1 200 ")
    });
    sandbox.run(["hold", "--metrics", &address]).expect(1);
}

/// Returns the name of an installed browser.
fn browser() -> &'static str {
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let mut installed = names.into_iter().filter(|name| {
        let found = Command::new(name).arg("--version").output();
        found.is_ok_and(|found| found.status.success())
    });
    installed.next().expect("Chromium")
}

/// Runs the browser, and returns its standard output.
fn run_browser(browser: &str, directory: &Path, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new("timeout")
        .args([
            "60",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .arg(format!(
            "--user-data-dir={}",
            directory.join("profile").display()
        ))
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("a browser");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    done.stdout
}

#[test]
#[ignore = "needs Chromium; `cargo xtask test` runs it"]
fn a_browser_shows_the_page_light_and_dark() {
    let browser = browser();
    let sandbox = Sandbox::new();
    let (_pair, address) = start(&sandbox);
    let _made = hand_over(&sandbox, "weights/a");
    let directory = sandbox.path("browser");
    fs::create_dir(&directory).expect("a directory");
    let url = format!("http://{address}/");
    let document = run_browser(browser, &directory, &["--dump-dom", &url]);
    let document = String::from_utf8(document).expect("text");
    assert!(document.contains("<td>weights/a</td>"), "{document}");
    assert!(
        document.contains("<title>Crosshandle"),
        "no text became a script: {document}"
    );
    assert!(!document.contains("<img"), "{document}");
    // The two themes give different images.
    let shot = |theme: &[&str], name: &str| {
        let path = directory.join(name);
        let output = format!("--screenshot={}", path.display());
        let arguments = [theme, &[&output, "--window-size=900,700", &url]].concat();
        run_browser(browser, &directory, &arguments);
        fs::read(&path).expect("an image")
    };
    let light = shot(&[], "light.png");
    let dark = shot(&["--blink-settings=preferredColorScheme=0"], "dark.png");
    assert!(light.starts_with(b"\x89PNG") && dark.starts_with(b"\x89PNG"));
    assert_ne!(light, dark);
    if let Some(kept) = std::env::var_os("CROSSHANDLE_SCREENSHOTS") {
        for (name, image) in [("light.png", light), ("dark.png", dark)] {
            fs::write(Path::new(&kept).join(name), image).expect("kept");
        }
    }
}
