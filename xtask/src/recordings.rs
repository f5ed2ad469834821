//! Pictures of the command in a terminal, from its real output.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use crate::Result;
use crate::step::{Step, say};
use crate::workspace::Workspace;

/// Longer lines continue on the next line of the picture.
const COLUMNS: usize = 112;
const CHARACTER: f64 = 7.83;
const LINE: usize = 18;
const MARGIN: usize = 16;
/// Time after which a process that should wait is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the commands, and writes their output as `docs/pictures/terminal-*.svg`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let build = ["build", "--release", "--package", "crosshandle-cli"];
    Step::new(workspace, "build the command", workspace.cargo(&build)).run()?;
    let program = workspace.target.join("release/crosshandle");
    let sockets = env::temp_dir().join(format!("xh-recordings-{}", process::id()));
    let mut options = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut options, 0o700);
    options
        .create(&sockets)
        .map_err(|error| format!("cannot create {}: {error}", sockets.display()))?;
    let recorded = Recorder { program, sockets }.record();
    for (name, text) in recorded? {
        let path = workspace
            .root
            .join(format!("docs/pictures/terminal-{name}.svg"));
        fs::write(&path, picture(&text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}

struct Recorder {
    program: PathBuf,
    sockets: PathBuf,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

/// A process that is killed at the end of the recording.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Recorder {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("CROSSHANDLE_SOCKET_DIR", &self.sockets);
        command
    }

    fn start(&self, arguments: &[&str]) -> Result<Killed> {
        let mut command = self.command(arguments);
        let child = command.stdout(Stdio::piped()).spawn();
        Ok(Killed(child.map_err(|error| {
            format!("cannot run {arguments:?}: {error}")
        })?))
    }

    /// Runs a command, and returns what a terminal shows.
    fn output(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output();
        let output = output.map_err(|error| format!("cannot run {arguments:?}: {error}"))?;
        match output.status.success() {
            true => Ok(format!(
                "$ crosshandle {}\n{}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stdout)
            )),
            false => Err(format!(
                "{arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// Starts a command that prints a handle and holds its object.
    fn hold(&self, arguments: &[&str]) -> Result<(Killed, String)> {
        let mut held = self.start(arguments)?;
        let mut handle = String::new();
        let output = held.0.stdout.take().ok_or("no output")?;
        BufReader::new(output)
            .read_line(&mut handle)
            .map_err(|error| format!("{arguments:?}: {error}"))?;
        Ok((held, handle.trim().to_owned()))
    }

    fn record(&self) -> Result<Vec<(&'static str, String)>> {
        let demo = self.output(&["demo"])?;
        let weights = self.sockets.join("weights.bin");
        fs::write(&weights, vec![1; 4 << 20]).map_err(|error| error.to_string())?;
        let (_memory, _) = self.hold(&["share", &weights.to_string_lossy()])?;
        let (_event, event) = self.hold(&["event", "new"])?;
        let _waiter = self.start(&["event", "wait", &event, "--timeout", "10m"])?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ps = self.output(&["ps"])?;
            if ps.contains("has waited") {
                let top = self.output(&["top", "--once", "--stuck", "1ms"])?;
                return Ok(vec![("demo", demo), ("ps", ps), ("top", top)]);
            }
            if Instant::now() > deadline {
                return Err(format!("no process waits: {ps}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Draws text as a terminal shows it.
fn picture(text: &str) -> String {
    let wrapped: Vec<String> = text.trim_end().lines().flat_map(wrap).collect();
    let longest = wrapped.iter().map(|line| line.chars().count()).max();
    let width = longest.unwrap_or_default() as f64 * CHARACTER + 2.0 * MARGIN as f64;
    let height = wrapped.len() * LINE + 2 * MARGIN;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#12181f\"/>\n"
    );
    for (line, number) in wrapped.iter().zip(1..) {
        let colour = match line.starts_with("$ ") {
            true => "#5fd7a7",
            false => "#e6edf3",
        };
        let text = line.replace('&', "&amp;").replace('<', "&lt;");
        let y = MARGIN + number * LINE - 5;
        let _ = writeln!(
            picture,
            "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{colour}\" xml:space=\"preserve\">{text}</text>"
        );
    }
    picture + "</svg>\n"
}

/// Cuts a line into lines that fit.
fn wrap(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.trim_end().chars().collect();
    match letters.is_empty() {
        true => vec![String::new()],
        false => letters
            .chunks(COLUMNS)
            .map(|part| part.iter().collect())
            .collect(),
    }
}

#[test]
fn a_picture_has_every_line() {
    let long = "x".repeat(COLUMNS + 1);
    let picture = picture(&format!("$ a <b> &\n\n{long}\n"));
    assert_eq!(picture.matches("<text").count(), 4);
    assert!(picture.contains("$ a &lt;b> &amp;<") && picture.contains(">x</text>"));
}
