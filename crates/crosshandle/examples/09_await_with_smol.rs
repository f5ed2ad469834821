//! Follows the timelines of another process with smol, as streams of the values that each timeline
//! reaches.
//!
//! Run it with `cargo run --example 09_await_with_smol`. A worker reads blocks and writes them, and
//! signals an event after each read and after each write. This process shows the worker's progress.
//! A stream returns the latest value and may skip earlier ones, so a slow reader still sees the
//! current progress and never delays the worker.

use crosshandle::{Context, Device, Event};
use smol::stream::{self, StreamExt};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const STEPS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).is_some() {
        return worker();
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg("worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let context = Context::new(&Device::find("host")?)?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let mut open = || -> Result<Event, Box<dyn Error>> {
        let handle = lines.next().ok_or("no handle")??;
        Ok(context.open_event(&handle.parse()?)?)
    };
    let (read, written) = (open()?, open()?);

    smol::block_on(async {
        let reads = read.values(0).map(|value| ("read", value));
        let writes = written.values(0).map(|value| ("written", value));
        let mut progress = stream::or(reads, writes);
        let (mut items, mut last) = (0, 0);
        while let Some((kind, value)) = progress.next().await {
            let value = value?;
            items += 1;
            if kind == "written" {
                assert!(value > last && value <= read.completed());
                last = value;
            }
            if last == STEPS {
                println!("client: {last} blocks are written, as {items} items told");
                break;
            }
        }
        // The worker ends when its input closes. A stream whose next value can never come returns
        // an error and ends.
        drop(child.stdin.take());
        let mut more = written.values(STEPS);
        let never = more.next().await.ok_or("an end without a reason")?;
        assert!(never.is_err_and(|error| error.is_peer_dead()));
        assert!(more.next().await.is_none());
        println!("client: there will be no more");
        Ok::<_, Box<dyn Error>>(())
    })?;

    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the worker failed: {status}").into());
    }
    Ok(())
}

fn worker() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let (read, written) = (context.create_event()?, context.create_event()?);
    println!("{}\n{}", read.handle()?, written.handle()?);
    for _ in 0..STEPS {
        read.signal()?;
        // This sleep stands for the work.
        std::thread::sleep(Duration::from_millis(1));
        written.signal()?;
    }
    // The worker keeps its events until its input closes.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
