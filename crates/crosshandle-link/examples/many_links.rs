//! Measures the cost of a link. Links this process to itself over loopback, and prints the
//! resources that each side of a link uses.
//!
//! ```text
//! many_links COUNT...        such as: many_links 1 10 100 1000
//! ```

use crosshandle::{Context, Device};
use crosshandle_link::{Data, Identity, Link, LinkOptions, Listener, Token};
use std::error::Error;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Duration of the idle phase in which the CPU time of idle links is measured.
const IDLE: Duration = Duration::from_secs(10);

/// The resources that this process uses at a moment.
struct Taken {
    resident_kib: i64,
    threads: i64,
    descriptors: i64,
    cpu: Duration,
}

fn taken() -> Result<Taken, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let number = |name: &str| -> Result<i64, Box<dyn Error>> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(word.ok_or("no such line")?.parse()?)
    };
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Taken {
        resident_kib: number("VmRSS:")?,
        threads: number("Threads:")?,
        descriptors: std::fs::read_dir("/proc/self/fd")?.count() as i64,
        cpu: Duration::new(clock.tv_sec as u64, clock.tv_nsec as u32),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.allocate(4096)?;
    let event = context.create_event()?;
    let options = LinkOptions::new(Identity::Token(Token::generate()?)).data(Data::Tls);
    println!("links  KiB/side  threads/side  descriptors/side  ms/link  idle CPU µs/s/side");
    for count in std::env::args().skip(1) {
        let count: usize = count.parse()?;
        let listener = Listener::bind("127.0.0.1:0", &context, &options)?;
        let address = listener.local_address();
        let (before, start) = (taken()?, Instant::now());
        let mut links = Vec::new();
        for _ in 0..count {
            let dialled = Link::connect(address, &context, &options)?;
            let accepted = listener.accept_timeout(LIMIT)?;
            // Each link has open memory and an open event, as in real use.
            let there = dialled.open_memory(&memory.handle()?)?;
            let mirror = dialled.open_event(&event.handle()?)?;
            links.push((dialled, accepted, there, mirror));
        }
        let took = start.elapsed();
        let after = taken()?;
        std::thread::sleep(IDLE);
        let idle = taken()?.cpu - after.cpu;
        let sides = 2.0 * count as f64;
        let each = |now: i64, then: i64| (now - then) as f64 / sides;
        println!(
            "{count:5}  {:8.0}  {:12.1}  {:16.1}  {:7.2}  {:18.0}",
            each(after.resident_kib, before.resident_kib),
            each(after.threads, before.threads),
            each(after.descriptors, before.descriptors),
            took.as_secs_f64() * 1e3 / count as f64,
            idle.as_secs_f64() * 1e6 / IDLE.as_secs_f64() / sides,
        );
        if links.iter().any(|(link, ..)| link.ended().is_some()) {
            return Err("a link has ended".into());
        }
    }
    Ok(())
}
