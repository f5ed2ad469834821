//! An honest program that is linked with hostile hosts, and with an honest one at the same time.

use super::lies::LEN;
use super::{CERTIFICATES, OWNER_NAME, is_long, is_silent_handshake};
use crate::failure::Failure;
use crate::procfs::{Usage, threads};
use crosshandle::{Context, ContextOptions, Device, EventHandle, MemoryHandle};
use crosshandle_link::{Certificates, Data, Error, Identity, Link, LinkOptions};
use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The command-line word that starts the program.
pub(crate) const ROLE: &str = "link-client";
/// The keep-alive of links with hostile hosts.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Maximum time of one call to a hostile host. A link has 5 s to shake hands.
const LIMIT: Duration = Duration::from_secs(8);
/// Maximum time of one call to a host that reconnects again and again. A request may take 60 s.
const LONG_LIMIT: Duration = Duration::from_secs(75);
/// Time that the program waits for signals of a hostile host's event.
const WAIT: Duration = Duration::from_millis(200);
/// Pause between two calls to the honest host.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of descriptors and threads that the program may have more than after its first
/// round.
const MAX_REMAINING: usize = 3;
/// Maximum growth of the program's resident memory after its first round, in KiB.
const MAX_GROWTH: usize = 24 << 10;

/// The address of a hostile host, and the lie that it tells.
#[derive(Clone)]
struct Host {
    lie: String,
    address: String,
}

struct Program {
    context: Context,
    memory: MemoryHandle,
    event: EventHandle,
    options: LinkOptions,
}

fn options(directory: &Path) -> LinkOptions {
    let [(authority, _), _, _, (certificate, _), (key, _)] = CERTIFICATES;
    LinkOptions::new(Identity::Certificates(Certificates {
        authority: directory.join(authority),
        certificate: directory.join(certificate),
        key: directory.join(key),
        peer_name: OWNER_NAME.to_owned(),
    }))
    .data(Data::Tls)
}

/// Makes a call that a hostile host may fail. Returns whether it failed.
///
/// # Errors
/// Fails if the call was late.
fn call<T>(
    what: &str,
    limit: Duration,
    call: impl FnOnce() -> Result<T, Error>,
) -> Result<Option<T>, Failure> {
    let begun = Instant::now();
    let result = call();
    let took = begun.elapsed();
    match took > limit * crate::slowdown() {
        true => Err(Failure::new(format!("{what} took {took:?}"))),
        false => Ok(result.ok()),
    }
}

impl Program {
    /// Uses a hostile host in every way.
    ///
    /// # Errors
    /// Fails if a call was late, or if none noticed the lie.
    fn meet(&self, host: &Host) -> Result<(), Failure> {
        let Host { lie, address } = host;
        let limit = if is_long(lie) { LONG_LIMIT } else { LIMIT };
        let mut failures = 0;
        let options = self.options.clone().keep_alive(KEEP_ALIVE);
        let connect = || Link::connect(&**address, &self.context, &options);
        // Each call gets a link of its own, since the lie may end the link.
        let mut with_link = |what: &str, use_it: &dyn Fn(&Link) -> Result<(), Error>| {
            let Some(link) = call("connect", limit, connect)? else {
                failures += 1;
                return Ok::<_, Failure>(false);
            };
            failures += usize::from(call(what, limit, || use_it(&link))?.is_none());
            Ok(true)
        };
        let is_linked = with_link("open_memory", &|link| {
            let memory = link.open_memory(&self.memory)?;
            memory.read(0, &mut [0; LEN])?;
            memory.write(7, &[1; 100])?;
            memory.read_many(&mut [(0, &mut [0; 100][..]), (100, &mut [0; 1000])])
        })?;
        if !is_linked {
            return Ok(());
        }
        with_link("open_event", &|link| {
            let event = link.open_event(&self.event)?;
            event.signal()?;
            Ok(event.mirror().wait_value_timeout(3, WAIT)?)
        })?;
        with_link("open_name", &|link| {
            let name = link.open_name("model")?;
            for part in &name.parts {
                part.memory.read(0, &mut [0; 100])?;
            }
            Ok(())
        })?;
        // A program that pulls a model checks its contents.
        if failures == 0 && !lie.starts_with("model") {
            return Err(Failure::new("no call failed"));
        }
        Ok(())
    }

    /// Meets all hostile hosts at the same time, and uses the link with the honest host meanwhile.
    /// Returns the longest call to the honest host in milliseconds, and the number of calls.
    fn round(&self, hosts: &[Host], honest: &Link) -> Result<(u128, u32), Failure> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let (mut longest, mut calls) = (Duration::ZERO, 0);
                while !is_over.load(Ordering::Relaxed) || calls == 0 {
                    let begun = Instant::now();
                    let name = honest.open_name("m")?;
                    let part = name.part("data").ok_or(Failure::new("no data"))?;
                    part.memory.read(0, &mut [0; 100])?;
                    longest = longest.max(begun.elapsed());
                    calls += 1;
                    std::thread::sleep(PAUSE);
                }
                Ok::<_, Failure>((longest.as_millis(), calls))
            });
            let meetings: Vec<_> = (hosts.iter())
                .map(|host| (host, scope.spawn(move || self.meet(host))))
                .collect();
            let mut failed = Vec::new();
            for (Host { lie, .. }, meeting) in meetings {
                match meeting.join() {
                    Ok(Ok(())) => {}
                    Ok(Err(failure)) => failed.push(format!("{lie}: {failure}")),
                    Err(_) => failed.push(format!("{lie}: a panic")),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let others = others.join().map_err(|_| Failure::new("a panic"));
            let others = others.and_then(|others| others);
            let others = others.map_err(|failure| Failure::new(format!("honest link: {failure}")));
            match failed.is_empty() {
                true => others,
                false => Err(Failure::new(failed.join("; "))),
            }
        })
    }
}

/// Returns the descriptors, threads and resident memory of this process, when idle threads have had
/// time to end.
fn usage() -> Result<[usize; 3], Failure> {
    let usage = Usage::of_self()?;
    let threads = threads(std::process::id())?;
    Ok([usage.descriptors, threads, usage.resident])
}

/// Runs the program. The words are a directory, the address of the honest host, and `LIE=ADDRESS`
/// for each hostile host. Each line of standard input is a round. A round that is `short` omits the
/// hosts that do not complete a handshake.
pub(crate) fn serve(mut words: impl Iterator<Item = String>) -> ExitCode {
    let directory = words.next().unwrap_or_default();
    let honest = words.next().unwrap_or_default();
    let host = |word: String| {
        let (lie, address) = word.split_once('=')?;
        let (lie, address) = (lie.to_owned(), address.to_owned());
        Some(Host { lie, address })
    };
    let hosts: Vec<_> = words.filter_map(host).collect();
    let begin = || {
        let options = options(Path::new(&directory));
        let own = ContextOptions::new().socket_dir(&directory).pooling(false);
        let context = Context::with_options(&Device::find("host")?, own)?;
        let memory = context.allocate(LEN)?;
        let program = Program {
            memory: memory.handle()?,
            event: context.create_event()?.handle()?,
            options: options.clone(),
            context,
        };
        let link = Link::connect(&*honest, &program.context, &options)?;
        Ok::<_, Failure>((program, memory, link))
    };
    let (program, _memory, link) = match begin() {
        Ok(begun) => begun,
        Err(failure) => {
            super::super::say(&format!("failed {failure}"));
            return ExitCode::FAILURE;
        }
    };
    let mut first: Option<[usize; 3]> = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut hosts = hosts.clone();
        if line == "short" {
            hosts.retain(|host| !is_silent_handshake(&host.lie));
        }
        let line = match program.round(&hosts, &link) {
            Ok((longest, calls)) => match grown(&mut first) {
                Ok(now) => {
                    format!("ok {calls} calls to the honest host, {longest} ms at most; {now:?}")
                }
                Err(failure) => format!("failed {failure}"),
            },
            Err(failure) => format!("failed {failure}"),
        };
        super::super::say(&line.replace('\n', " "));
    }
    ExitCode::SUCCESS
}

/// Checks that this process has grown by little since its first round, and returns what it has.
/// Threads of links that have ended need a moment.
fn grown(first: &mut Option<[usize; 3]>) -> Result<[usize; 3], Failure> {
    let begun = Instant::now();
    loop {
        let now = usage()?;
        let before = *first.get_or_insert(now);
        let most = [MAX_REMAINING, MAX_REMAINING, MAX_GROWTH];
        let is_small = (0..3).all(|kind| now[kind] <= before[kind] + most[kind]);
        if is_small {
            return Ok(now);
        }
        if begun.elapsed() > LIMIT * crate::slowdown() {
            return Err(Failure::new(format!(
                "descriptors, threads and KiB were {before:?}, and are {now:?}"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}
