//! Copies from GPU memory of one process to GPU memory of another: over links, over plain UCX, and
//! with NIXL. The first run uses two hosts with TCP between them, which are network namespaces if
//! these can be made. The second run uses one host with all transports that UCX finds.
//!
//! Run `cargo bench -p crosshandle-link --bench gpus -- cuda:0 [PEER_DEVICE]`, with UCX in
//! `CROSSHANDLE_UCX`. For NIXL set `CROSSHANDLE_NIXL` to its unpacked directory, and
//! `CROSSHANDLE_PYTHON` to the interpreter that it was made for. With the device `host`, the
//! benchmark uses host memory.

#[allow(dead_code)]
#[path = "../tests/two_hosts/hosts.rs"]
mod hosts;

use hosts::{Hosts, Peer};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOKEN: &str = "xhlink-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const KIB: usize = 1 << 10;
const SIZES: [(&str, usize); 4] = [
    ("64 KiB", 64 * KIB),
    ("1 MiB", KIB * KIB),
    ("64 MiB", 64 * KIB * KIB),
    ("256 MiB", 256 * KIB * KIB),
];
const LARGEST: usize = SIZES[SIZES.len() - 1].1;
/// Duration of each measurement, in milliseconds.
const LIMIT: u32 = 400;
/// Number of bytes that are compared after a write.
const COMPARED: usize = 64 * KIB;

type Result<T> = std::result::Result<T, String>;
/// MB/s in both directions, for each size.
type Rates = Vec<[f64; 2]>;

/// The machines and devices of the two processes.
struct Place {
    name: &'static str,
    hosts: Option<Hosts>,
    devices: [String; 2],
    /// Transports over which plain UCX moves GPU memory. `None` lets UCX choose.
    raw: Option<&'static str>,
    /// The links to measure: a name, and how their data move.
    links: &'static [(&'static str, &'static str)],
}

fn main() {
    // Cargo passes an option of its own.
    let mut devices = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let device = devices.next().unwrap_or_else(|| "cuda:0".into());
    let devices = [device.clone(), devices.next().unwrap_or(device)];
    match crosshandle_link::ucx() {
        Ok(found) => println!("UCX {:?}, {}", found.version, found.path.display()),
        Err(error) => println!("no UCX, so over TLS alone: {error}"),
    }
    let hosts = Hosts::new("two network namespaces");
    let apart = match hosts {
        Some(_) => "two hosts, a pair of veths between two network namespaces, TCP",
        None => "one host, loopback, TCP",
    };
    let places = [
        Place {
            name: apart,
            hosts,
            devices: devices.clone(),
            raw: Some("tcp,cuda_copy,self"),
            links: &[
                ("link, staged", "ucx:tcp,cuda_copy,self:auto"),
                ("link, by UCX alone", "ucx:tcp,cuda_copy,self:needed"),
                ("link, TLS", "tls"),
            ],
        },
        Place {
            name: "one host, all transports that UCX finds",
            hosts: None,
            devices,
            raw: None,
            links: &[
                ("link, auto", "ucx:-:auto"),
                ("link, staged", "ucx:-:always"),
            ],
        },
    ];
    let mut has_failed = false;
    for place in &places {
        println!(
            "\n{}; {} and {}",
            place.name, place.devices[0], place.devices[1]
        );
        println!("{:24} {}", "MB/s there | back", header());
        let raw = told("UCX alone", place.raw(), &mut has_failed);
        let mut ours = Vec::new();
        for (name, data) in place.links {
            let rates = told(name, place.link(data), &mut has_failed);
            ours.extend(rates);
        }
        // NIXL may be missing.
        let nixl = told("NIXL", place.nixl(), &mut false);
        for (name, other) in [("UCX alone", raw), ("NIXL", nixl)] {
            if let (Some(other), false) = (other, ours.is_empty()) {
                compare(name, &ours, &other);
            }
        }
    }
    std::process::exit(has_failed.into());
}

fn header() -> String {
    let columns = SIZES.iter().map(|(name, _)| format!("{name:>18}"));
    columns.collect()
}

/// Prints a row of rates, or the reason why there are none.
fn told(name: &str, rates: Result<Rates>, has_failed: &mut bool) -> Option<Rates> {
    match rates {
        Ok(rates) => {
            let columns = rates
                .iter()
                .map(|[there, back]| format!("{there:8.0} |{back:8.0}"));
            println!("{name:24} {}", columns.collect::<String>());
            Some(rates)
        }
        Err(error) => {
            println!("{name:24} none: {error}");
            *has_failed = true;
            None
        }
    }
}

/// Prints the best of our links as a multiple of another program's rate.
fn compare(name: &str, ours: &[Rates], other: &Rates) {
    let columns = other.iter().enumerate().map(|(size, rates)| {
        let times = |way: usize| {
            let best = ours.iter().map(|rates| rates[size][way]);
            best.fold(0.0, f64::max) / rates[way]
        };
        format!("{:7.2}× |{:7.2}×", times(0), times(1))
    });
    println!(
        "{:24} {}",
        format!("best link to {name}"),
        columns.collect::<String>()
    );
}

/// Converts the first word of a reply, a median in nanoseconds, to a rate.
fn rate(answer: &str, len: usize) -> Result<f64> {
    let nanoseconds = answer
        .split(' ')
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    let nanoseconds = nanoseconds.ok_or_else(|| format!("no time: {answer}"))?;
    Ok(len as f64 / nanoseconds * 1000.0)
}

impl Place {
    fn start(&self, side: usize) -> Peer {
        Peer::spawn(self.command(side, &hosts::program()))
    }

    fn command(&self, side: usize, program: &Path) -> Command {
        let mut command = match &self.hosts {
            Some(hosts) => hosts.command(["a", "b"][side], program),
            None => Command::new(program),
        };
        command
            .env("CROSSHANDLE_LINK_DEVICE", &self.devices[side])
            .env("UCX_LOG_LEVEL", "fatal");
        command
    }

    fn address(&self) -> &'static str {
        self.hosts
            .as_ref()
            .map_or("127.0.0.1", |hosts| hosts.address("a"))
    }

    /// Returns the interface of a side for UCX. `-` lets UCX choose.
    fn interface(&self, side: usize) -> String {
        match (&self.hosts, self.raw) {
            (Some(hosts), _) => hosts.interface(["a", "b"][side]),
            (None, Some(_)) => "lo".into(),
            (None, None) => "-".into(),
        }
    }

    fn link(&self, data: &str) -> Result<Rates> {
        let (mut owner, mut user) = (self.start(0), self.start(1));
        let options = |side| format!("{TOKEN} {data} {} 10000", self.interface(side));
        let address = owner.try_ask(&format!("listen {}:0 {}", self.address(), options(0)))?;
        user.try_ask(&format!("connect {address} {}", options(1)))?;
        owner.try_ask("accept 10000")?;
        let handles = owner.try_ask(&format!("allocate {LARGEST}"))?;
        let handle = handles.split(' ').next().unwrap_or_default();
        user.try_ask(&format!("allocate {LARGEST}"))?;
        let opened = user.try_ask(&format!("open_memory {handle}"))?;
        let transports = user.try_ask("transports")?;
        println!("  {data}: {transports} {opened}");
        user.try_ask("fill 0 7")?;
        // Touch the pages first, so that page faults are not measured.
        owner.try_ask("fill 0 9")?;
        let mut rates = Rates::new();
        for (_, len) in SIZES {
            let mut measure = |what: &str| {
                let answer = user.try_ask(&format!("{what} {len} {LIMIT}"))?;
                rate(&answer, len)
            };
            rates.push([measure("copy_there")?, measure("copy_here")?]);
        }
        same(&mut owner, &format!("holds 0 7 0 {LARGEST}"))?;
        Ok(rates)
    }

    fn raw(&self) -> Result<Rates> {
        let (mut owner, mut user) = (self.start(0), self.start(1));
        let transports = self.raw.unwrap_or("-");
        let start =
            |side: usize| format!("raw start {} {transports} {LARGEST}", self.interface(side));
        let (of_owner, of_user) = (owner.try_ask(&start(0))?, user.try_ask(&start(1))?);
        user.try_ask(&format!("raw fill 7 {COMPARED}"))?;
        user.try_ask(&format!("raw connect {of_owner}"))?;
        owner.try_ask(&format!("raw connect {of_user}"))?;
        let mut rates = Rates::new();
        for (_, len) in SIZES {
            let mut measure = |what: &str| {
                owner.begin("raw serve");
                let answer = user.try_ask(&format!("raw {what} {len} {LIMIT}"))?;
                owner.end()?;
                rate(&answer, len)
            };
            rates.push([measure("put")?, measure("get")?]);
        }
        println!("  UCX alone: {}", user.try_ask("raw transports")?);
        same(&mut owner, &format!("raw holds 7 {COMPARED}"))?;
        Ok(rates)
    }

    fn nixl(&self) -> Result<Rates> {
        let missing = || "CROSSHANDLE_NIXL names no NIXL".to_owned();
        let directory = std::env::var_os("CROSSHANDLE_NIXL").ok_or_else(missing)?;
        let named =
            |variable: &str, default: OsString| std::env::var_os(variable).unwrap_or(default);
        let python = PathBuf::from(named("CROSSHANDLE_PYTHON", "python3".into()));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/nixl_peer.py");
        let script = named("CROSSHANDLE_NIXL_PEER", script.into());
        let start = |side: usize| {
            let mut command = self.command(side, &python);
            command.arg("-B").arg(&script).arg(&directory);
            if let Some(transports) = self.raw {
                command.env("UCX_TLS", transports);
                command.env("UCX_NET_DEVICES", self.interface(side));
            }
            Peer::spawn(command)
        };
        let (mut owner, mut user) = (start(0), start(1));
        let begin = |side: usize| format!("start {} {LARGEST}", self.devices[side]);
        let (of_owner, of_user) = (owner.try_ask(&begin(0))?, user.try_ask(&begin(1))?);
        user.try_ask(&format!("connect {of_owner}"))?;
        owner.try_ask(&format!("connect {of_user}"))?;
        user.try_ask(&format!("fill 7 {LARGEST}"))?;
        let mut rates = Rates::new();
        for (_, len) in SIZES {
            let mut measure = |what: &str| {
                let answer = user.try_ask(&format!("{what} {len} {LIMIT}"))?;
                rate(&answer, len)
            };
            rates.push([measure("put")?, measure("get")?]);
        }
        same(&mut owner, &format!("holds 7 {LARGEST}"))?;
        Ok(rates)
    }
}

/// Checks that the written bytes have arrived.
fn same(owner: &mut Peer, question: &str) -> Result<()> {
    match &*owner.try_ask(question)? {
        "true" => Ok(()),
        _ => Err("the bytes did not come".into()),
    }
}
