//! Opens the site in a headless browser. A server on the loopback interface serves the site, and
//! `check.html`, which loads each page in a frame and sends back what is wrong.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use crate::Result;
use crate::step::say;

const CHECK: &str = include_str!("check.html");
const BROWSERS: [&str; 5] = [
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
/// Time limit of the whole check. The browser loads each page four times.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time limit of a screenshot.
const SCREENSHOT_LIMIT: Duration = Duration::from_secs(60);
/// The widths and heights of the screenshots, in pixels: a phone and a desktop.
const SIZES: [(&str, &str); 2] = [("phone", "390,844"), ("desktop", "1280,900")];
/// The pages of the screenshots.
const SHOWN: [&str; 4] = ["index", "performance", "tutorial-python", "lives"];

/// Checks the site in a directory, and leaves screenshots of some pages in `screenshots`.
pub(super) fn run(site: &Path, screenshots: &Path) -> Result<()> {
    let browser = browser()?;
    let cannot = |what: &str, error: io::Error| format!("cannot {what}: {error}");
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| cannot("open a port", error))?;
    let address = listener.local_addr();
    let address = address.map_err(|error| cannot("open a port", error))?;
    let (results, result) = mpsc::channel();
    let directory = site.to_owned();
    thread::spawn(move || serve(&listener, &directory, &results));
    let profile = screenshots.with_extension("profile");
    fs::create_dir_all(screenshots).map_err(|error| cannot("create a directory", error))?;

    let mut check = Browser::start(
        browser,
        &profile,
        &[&format!("http://{address}/check.html")],
    )?;
    let faults = result.recv_timeout(LIMIT);
    let mut faults = faults.map_err(|_| "the browser does not finish the check".to_owned())?;
    faults.extend(check.complaints());
    if !faults.is_empty() {
        return Err(format!("the site has faults:\n  {}", faults.join("\n  ")));
    }
    // The profile remembers the theme that the check chose last.
    drop(check);
    let _ = fs::remove_dir_all(&profile);
    for (size, pixels) in SIZES {
        for page in SHOWN {
            for (theme, setting) in [("light", "1"), ("dark", "0")] {
                let image = screenshots.join(format!("{page}-{size}-{theme}.png"));
                let arguments = [
                    &format!("--screenshot={}", image.display()),
                    &format!("--window-size={pixels}"),
                    &format!("--blink-settings=preferredColorScheme={setting}"),
                    &format!("http://{address}/{page}.html"),
                ];
                let mut shot = Browser::start(browser, &profile, &arguments.map(String::as_str))?;
                let ended = crate::process::wait(&mut shot.0, SCREENSHOT_LIMIT)?;
                if !ended.is_some_and(|status| status.success()) || !image.exists() {
                    return Err(format!("the browser makes no screenshot of {page}"));
                }
            }
        }
    }
    let _ = fs::remove_dir_all(&profile);
    say(&format!(
        "ok     site in {browser}; screenshots in {}",
        screenshots.display()
    ));
    Ok(())
}

/// Returns the name of an installed browser.
fn browser() -> Result<&'static str> {
    let mut installed = BROWSERS.into_iter().filter(|name| {
        let found = Command::new(name).arg("--version").output();
        found.is_ok_and(|found| found.status.success())
    });
    let names = BROWSERS.join(", ");
    installed
        .next()
        .ok_or_else(|| format!("the check needs Chromium: PATH has none of {names}"))
}

/// A browser, which is killed when it is dropped, and the file of its messages.
struct Browser(Child, PathBuf);

impl Browser {
    fn start(name: &str, profile: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(name);
        command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--hide-scrollbars"]);
        // Messages of pages appear on standard error.
        command.arg("--enable-logging=stderr");
        command.arg(format!("--user-data-dir={}", profile.display()));
        // A browser with a port for tools stays after it has loaded a page.
        let stays = !arguments.iter().any(|it| it.starts_with("--screenshot"));
        command.args(stays.then_some("--remote-debugging-port=0"));
        let cannot = |error| format!("cannot start {name}: {error}");
        let log = profile.with_extension("log");
        let messages = File::create(&log).map_err(cannot)?;
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(messages);
        Ok(Self(command.spawn().map_err(cannot)?, log))
    }

    /// Kills the browser, and returns the errors and warnings that pages wrote to its console.
    fn complaints(&mut self) -> Vec<String> {
        let _ = self.0.kill();
        let text = fs::read_to_string(&self.1).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(":CONSOLE"));
        lines.map(str::to_owned).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves the site until the program ends. A request that fails is dropped, and the browser then
/// reports it.
fn serve(listener: &TcpListener, site: &Path, results: &Sender<Vec<String>>) {
    for stream in listener.incoming().flatten() {
        let (site, results) = (site.to_owned(), results.clone());
        thread::spawn(move || answer(stream, &site, &results));
    }
}

fn answer(mut stream: TcpStream, site: &Path, results: &Sender<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut request, mut length) = (String::new(), 0);
    reader.read_line(&mut request)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next(), words.next().unwrap_or("/"));
    let path = path.split('?').next().unwrap_or("/");
    let (status, body) = match (method, path) {
        (Some("POST"), "/check-result") => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let faults = serde_json::from_slice(&body);
            let _ = results.send(faults.unwrap_or_else(|error| vec![error.to_string()]));
            (200, Vec::new())
        }
        (_, "/check.html") => (200, CHECK.into()),
        (_, "/check-pages.json") => (200, pages(site)?.into()),
        // A browser asks for it, and the page of the check has none.
        (_, "/favicon.ico") => (204, Vec::new()),
        _ => match fs::read(site.join(path.trim_start_matches('/'))) {
            Ok(body) => (200, body),
            Err(_) => (404, Vec::new()),
        },
    };
    write!(
        stream,
        "HTTP/1.1 {status} \r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        media_type(path),
        body.len()
    )?;
    stream.write_all(&body)
}

/// Returns the addresses of the book's pages as JSON.
fn pages(site: &Path) -> io::Result<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(site)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // The first one contains all pages, and the second one is for addresses that do not exist.
        if name.ends_with(".html") && !["print.html", "404.html", "toc.html"].contains(&&*name) {
            pages.push(format!("/{name}"));
        }
    }
    pages.sort();
    Ok(serde_json::to_string(&pages)?)
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css",
        "js" => "text/javascript",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        _ => "text/plain; charset=utf-8",
    }
}
