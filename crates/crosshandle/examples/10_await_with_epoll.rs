//! Awaits events of another process in an epoll loop, together with a pipe and a timer.
//!
//! Run it with `cargo run --example 10_await_with_epoll`. A notifier is one descriptor for any
//! number of events, and it is readable while a notification is pending. The same descriptor works
//! with poll, select, mio, libuv and Python's asyncio (`loop.add_reader`).

use crosshandle::{Context, Device, Event, Notifier};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const JOBS: usize = 50;

/// The sources that the loop waits for.
const SIGNALS: u64 = 0;
const OUTPUT: u64 = 1;
const TIMER: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let handles: Vec<String> = std::env::args().skip(1).collect();
    match handles.is_empty() {
        true => client(),
        false => worker(&handles),
    }
}

fn client() -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    let events: Vec<Event> = (0..JOBS)
        .map(|_| context.create_event())
        .collect::<Result<_, _>>()?;
    let notifier = Notifier::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    for (token, event) in (0..).zip(&events) {
        notifier.add(event, 1, token)?;
        command.arg(event.handle()?.to_string());
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no pipe")?;
    let timer = timer(TIMEOUT)?;

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let read = EventFlags::IN;
    epoll::add(&epoll, &notifier, EventData::new_u64(SIGNALS), read)?;
    epoll::add(&epoll, &output, EventData::new_u64(OUTPUT), read)?;
    epoll::add(&epoll, &timer, EventData::new_u64(TIMER), read)?;
    let (mut done, mut printed, mut has_output) = (Vec::new(), 0, true);
    while done.len() < JOBS || has_output {
        let mut ready = Vec::with_capacity(8);
        epoll::wait(&epoll, spare_capacity(&mut ready), None)?;
        for source in ready {
            match source.data.u64() {
                // The descriptor itself is not read. It stops being readable when all notifications
                // are taken.
                SIGNALS => {
                    while let Some(notification) = notifier.next() {
                        notification.result?;
                        done.push(notification.token);
                    }
                }
                OUTPUT => {
                    let mut bytes = [0; 4096];
                    let count = rustix::io::read(&output, &mut bytes)?;
                    printed += count;
                    has_output = count > 0;
                    if !has_output {
                        epoll::delete(&epoll, &output)?;
                    }
                }
                _ => return Err("the worker is late".into()),
            }
        }
    }
    println!("client: {} jobs are done, {} first", done.len(), done[0]);
    println!("client: meanwhile the worker printed {printed} bytes");

    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the worker failed: {status}").into());
    }
    Ok(())
}

/// Creates a timer that becomes readable after `after`.
fn timer(after: Duration) -> Result<std::os::fd::OwnedFd, Box<dyn Error>> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: after.try_into()?,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(timer)
}

fn worker(handles: &[String]) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&Device::find("host")?)?;
    for (job, handle) in handles.iter().enumerate().rev() {
        let done = context.open_event(&handle.parse()?)?;
        println!("job {job}");
        done.signal()?;
    }
    Ok(())
}
