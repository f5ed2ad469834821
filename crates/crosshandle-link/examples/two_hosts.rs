//! Shares an array and an event with another host. `two_hosts.sh` in this directory runs both
//! halves in two network namespaces.
//!
//! ```text
//! two_hosts token FILE                                  makes a token in a new file
//! two_hosts owner ADDRESS FILE INTERFACE                has the array, prints its address and two handles
//! two_hosts user ADDRESS FILE INTERFACE MEMORY EVENT    changes the array, signals, then shares its link
//! two_hosts neighbour MEMORY EVENT                      reads the array over the user's link, and signals
//! ```
//!
//! Without UCX, or with `tls` for INTERFACE, the bytes travel over TLS.

use crosshandle::{Buffer, Context, Device};
use crosshandle_link::{
    Data, Identity, Link, LinkOptions, Listener, NeighbourLink, SharedLink, Token,
};
use std::error::Error;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

const ELEMENTS: usize = 1 << 20;
/// The name under which the user shares its link.
const SHARED: &str = "two-hosts";
const LIMIT: Duration = Duration::from_secs(30);

fn options(file: &str, interface: &str) -> Result<LinkOptions, Box<dyn Error>> {
    let options = LinkOptions::new(Identity::Token(Token::from_file(file)?));
    if interface == "tls" {
        return Ok(options.data(Data::Tls));
    }
    match crosshandle_link::ucx() {
        Ok(_) => Ok(options.interface(interface)),
        Err(error) => {
            eprintln!("{error}; the bytes travel over TLS");
            Ok(options.data(Data::Tls))
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let context = Context::new(&Device::find("host")?)?;
    match words[..] {
        ["token", file] => {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(file)?;
            writeln!(file, "{}", Token::generate()?.to_text())?;
        }
        ["owner", address, file, interface] => {
            let array = Buffer::from_slice(&context, &[1.0f32; ELEMENTS])?;
            let ready = context.create_event()?;
            let listener = Listener::bind(address, &context, &options(file, interface)?)?;
            println!(
                "{} {} {}",
                listener.local_address(),
                array.handle()?,
                ready.handle()?
            );
            let link = listener.accept_timeout(LIMIT)?;
            ready.wait_value_timeout(1, LIMIT)?;
            let mut elements = vec![0.0; ELEMENTS];
            array.read(0, &mut elements)?;
            let sum: f64 = elements.iter().copied().map(f64::from).sum();
            println!(
                "owner: {} has signalled; the array's sum is {sum}",
                link.peer()
            );
            ready.signal()?;
            // Wait until the remote side has seen the signal and closes the link.
            let start = Instant::now();
            while link.ended().is_none() && start.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        ["user", address, file, interface, memory, event] => {
            let memory = memory.parse()?;
            if let Err(error) = context.open_memory(&memory) {
                println!("user: without a link: {error}");
            }
            let link = Link::connect(address, &context, &options(file, interface)?)?;
            let (array, ready) = (
                link.open_memory(&memory)?,
                link.open_event(&event.parse()?)?,
            );
            // Every second element, written by a queue command as for any copy.
            let doubled = Buffer::from_slice(&context, &[2.0f32; ELEMENTS / 2])?;
            let queue = context.create_queue()?;
            let half = array.range(..array.len() / 2)?;
            queue.submit(half.copy_from(doubled.all())?)?;
            queue.submit(ready.signal_command())?;
            queue.finish()?;
            ready.mirror().wait_value_timeout(2, LIMIT)?;
            println!("user: {} has seen it", link.peer());
            let shared = SharedLink::new(&link, SHARED, None)?;
            println!("user: shares the link as '{SHARED}'");
            ready.mirror().wait_value_timeout(3, LIMIT)?;
            println!("user: a neighbour has signalled");
            // Wait until the neighbour has received the reply.
            while shared.neighbours() > 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        ["neighbour", memory, event] => {
            let link = NeighbourLink::connect(SHARED, &context, None)?;
            let (array, ready) = (
                link.open_memory_read_only(&memory.parse()?)?,
                link.open_event(&event.parse()?)?,
            );
            // The bytes move directly into memory of this process.
            let copy = Buffer::from_slice(&context, &[0.0f32; ELEMENTS])?;
            array.copy_to(0, copy.as_memory(), 0..array.len())?;
            let sum: f64 = copy.to_vec()?.into_iter().map(f64::from).sum();
            println!("neighbour: the array's sum is {sum}");
            ready.signal()?;
        }
        _ => return Err("see the top of this file for what it takes".into()),
    }
    Ok(())
}
