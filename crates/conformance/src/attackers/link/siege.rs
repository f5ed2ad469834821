//! The siege of links: honest clients and holders next to hostile linked hosts.

use super::{CLIENT, OWNER_NAME, SERVER, write_certificates};
use crate::attackers::pair::{Pair, Taken};
use crate::attackers::running::Running;
use crate::failure::Failure;
use crate::pattern::pattern;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of one answer of a process.
const LIMIT: Duration = Duration::from_secs(240);
/// Maximum time of a pull. A request may take 60 s while the link is alive.
const PULL_LIMIT: Duration = Duration::from_secs(75);
/// Shortest siege that includes the lies that take a minute.
const LONG: Duration = Duration::from_secs(60);
/// Size of the honest model, in bytes.
const MODEL: usize = 300_000;

/// The options of a siege of links.
pub struct LinkSiege {
    /// The `crosshandle` command.
    pub command: PathBuf,
    /// Minimum duration.
    pub length: Duration,
}

/// The processes and directories of a siege. The directories are removed on drop.
struct Scene<'a> {
    siege: &'a LinkSiege,
    directory: PathBuf,
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Scene<'_> {
    fn command(&self, sockets: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(&self.siege.command);
        command
            .args(words)
            .env("CROSSHANDLE_SOCKET_DIR", sockets)
            .stdin(Stdio::null());
        command
    }

    /// Returns the options that name certificates.
    fn identity(&self, who: &str) -> [String; 4] {
        let file = |name: &str| self.directory.join(name).display().to_string();
        [
            format!("--authority={}", file("authority.pem")),
            format!("--certificate={}", file(&format!("{who}.pem"))),
            format!("--key={}", file(&format!("{who}.key.pem"))),
            format!("--server-name={OWNER_NAME}"),
        ]
    }

    /// Pulls a model, and returns the output. Checks that it is in time, and that no terminal could
    /// obey it.
    fn pull(&self, sockets: &Path, name: &str, from: &str) -> Result<Output, Failure> {
        let mut command = self.command(sockets, &["pull", name, "--from", from, "--replace"]);
        let begun = Instant::now();
        let output = command.args(self.identity("user")).output()?;
        let took = begun.elapsed();
        if took > PULL_LIMIT * crate::slowdown() {
            return Err(Failure::new(format!("it took {took:?}")));
        }
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let is_bad = |character: char| {
            let is_bidi = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            is_bidi || (character.is_control() && character != '\n')
        };
        if text.contains(is_bad) || text.contains("panicked") || output.status.code().is_none() {
            return Err(Failure::new(format!(
                "it ended with {}: {text:?}",
                output.status
            )));
        }
        Ok(output)
    }
}

/// Runs a siege of links. Returns whether no promise was broken.
///
/// # Errors
/// Fails if the siege cannot begin.
pub fn siege(siege: &LinkSiege) -> Result<bool, Failure> {
    let directory = std::env::temp_dir().join(format!("xhl-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let scene = Scene { siege, directory };
    write_certificates(&scene.directory)?;
    let start = |name: &str| Pair::start(&siege.command, scene.directory.join(name), None, &[]);
    let (owner, mut user) = (start("owner")?, start("user")?);

    let file = scene.directory.join("m.safetensors");
    let header =
        format!(r#"{{"t":{{"dtype":"U8","shape":[{MODEL}],"data_offsets":[0,{MODEL}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes().chain(pattern(1, MODEL)));
    fs::write(&file, bytes)?;
    let path = file.display().to_string();
    let loaded = scene
        .command(&owner.directory, &["load", &path, "--name", "m"])
        .output()?;
    if !loaded.status.success() {
        let why = String::from_utf8_lossy(&loaded.stderr).into_owned();
        return Err(Failure::new(why));
    }
    let mut listens = scene.command(
        &owner.directory,
        &["link", "listen", "127.0.0.1:0", "--names"],
    );
    listens.args(scene.identity("owner"));
    let listener = Running::start(&mut listens)?;
    let limit = LIMIT * crate::slowdown();
    let honest = listener.hear(limit)?;

    let own = std::env::current_exe()?;
    let hostile = scene.directory.join("hostile");
    fs::create_dir(&hostile)?;
    let server = Running::start(Command::new(&own).args(["attack", SERVER]).arg(hostile))?;
    let mut hosts = Vec::new();
    while let Some((lie, address)) = server.hear(limit)?.split_once(' ') {
        if siege.length >= LONG || !super::is_long(lie) {
            hosts.push((lie.to_owned(), address.to_owned()));
        }
    }
    let mut meets = Command::new(&own);
    meets
        .args(["attack", CLIENT])
        .arg(&scene.directory)
        .arg(&honest);
    meets.args(
        hosts
            .iter()
            .map(|(lie, address)| format!("{lie}={address}")),
    );
    let mut client = Running::start(&mut meets)?;

    let sockets = user.directory.clone();
    let pull = |what: &str, name: &str, from: &str| {
        let pulled = scene.pull(&sockets, name, from);
        pulled.map_err(|failure| Failure::new(format!("pull, {what}: {failure}")))
    };
    let (begun, is_long) = (Instant::now(), siege.length >= LONG);
    let (mut violations, mut rounds, mut honest_pulls, mut lies) = (Vec::new(), 0, 0, 0);
    let mut before: Option<[Taken; 2]> = None;
    while rounds < 2 || begun.elapsed() < siege.length {
        let is_short = rounds > 0 && !is_long;
        client.say(if is_short { "short" } else { "all" })?;
        let talking = hosts.iter().filter(|(lie, _)| is_long || !is_silent(lie));
        for (number, (lie, address)) in talking.enumerate() {
            // In the first rounds, pulls take turns, so that a short siege ends soon.
            if rounds < 2 && number % 8 != 4 * rounds {
                continue;
            }
            match pull(lie, "model", address) {
                Ok(output) if output.status.success() => {
                    violations.push(format!("pull, {lie}: it succeeded"));
                }
                Ok(_) => lies += 1,
                Err(failure) => violations.push(failure.to_string()),
            }
            if number % 8 != 4 * (rounds % 2) {
                continue;
            }
            match pull("honest", "m", &honest) {
                Ok(output) if output.status.success() => honest_pulls += 1,
                Ok(output) => {
                    let why = String::from_utf8_lossy(&output.stderr).into_owned();
                    violations.push(format!("an honest pull: {why}"));
                }
                Err(failure) => violations.push(failure.to_string()),
            }
        }
        let line = client.hear(limit)?;
        match line.strip_prefix("ok ") {
            Some(told) => println!("round {rounds}: {told}"),
            None => violations.push(line),
        }
        rounds += 1;
        // The resources of the first round are kept.
        match &before {
            None => {
                user.await_safe()?;
                before = Some(user.taken()?);
            }
            Some(before) => {
                if let Err(failure) = user.settle("model", before, false) {
                    violations.push(failure.to_string());
                }
            }
        }
    }
    drop(owner);
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    println!(
        "links: {} lies in {rounds} rounds; {lies} pulls of lies; {honest_pulls} honest pulls; {} violations",
        hosts.len(),
        violations.len()
    );
    Ok(violations.is_empty() && honest_pulls > 0)
}

/// Returns whether a host keeps its client waiting until the keep-alive of a pull is over, which
/// takes too long for a sample. The client of the siege has a shorter keep-alive.
fn is_silent(lie: &str) -> bool {
    let silent = [
        "silent",
        "half",
        "garbage-for-tls",
        "cut-reply",
        "hangs-up",
        "signals",
        "failures",
    ];
    silent.iter().any(|word| lie.starts_with(word))
}
