//! Awaits the events of another process with Tokio, in one task per event and without extra
//! threads.
//!
//! Run it with `cargo run --example 08_await_with_tokio`. A worker does jobs and signals an event
//! for each job, and a task of this process awaits each job. Futures of signals work with every
//! runtime. Dropping one, as Tokio's `timeout` does, has no effect on the event. If the process
//! that was to submit the signal has died, the future returns an error.

use crosshandle::{Context, Device, Event};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(30);
const JOBS: usize = 200;

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
    let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    let mut events = Vec::new();
    for handle in output.lines().take(JOBS) {
        events.push(context.open_event(&handle?.parse()?)?);
    }
    // All events are open, so the worker may begin.
    let mut input = child.stdin.take().ok_or("no pipe")?;
    writeln!(input, "begin")?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        timeout(TIMEOUT, await_jobs(&events)).await??;
        // No process has submitted a second signal. The timeout drops the future, which cancels the
        // wait.
        let second = timeout(Duration::from_millis(50), events[0].reached(2)).await;
        assert!(second.is_err());
        println!("client: the wait for a second signal was cancelled");
        // The worker ends when its input closes, so the signal can never come.
        drop(input);
        let never = timeout(TIMEOUT, events[0].reached(2)).await?;
        assert!(never.is_err_and(|error| error.is_peer_dead()));
        println!("client: the worker has ended, and will do none");
        Ok::<_, Box<dyn Error>>(())
    })?;

    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the worker failed: {status}").into());
    }
    Ok(())
}

/// Awaits every job in its own task.
async fn await_jobs(events: &[Event]) -> Result<(), Box<dyn Error>> {
    let mut tasks = JoinSet::new();
    for event in events {
        tasks.spawn(event.reached(1));
    }
    let mut done = 0;
    while let Some(job) = tasks.join_next().await {
        job??;
        done += 1;
    }
    println!("client: {done} jobs are done, each awaited by a task of this thread");
    Ok(())
}

fn worker() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let done: Vec<Event> = (0..JOBS)
        .map(|_| context.create_event())
        .collect::<Result<_, _>>()?;
    for event in &done {
        println!("{}", event.handle()?);
    }
    let mut lines = std::io::stdin().lines();
    lines.next().ok_or("no word to begin")??;
    for event in done.iter().rev() {
        event.signal()?;
    }
    // The worker keeps its events until its input closes.
    lines.try_for_each(|line| line.map(drop))?;
    Ok(())
}
