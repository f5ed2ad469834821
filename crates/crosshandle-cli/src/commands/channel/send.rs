//! `crosshandle channel send HANDLE`.

use super::Opened;
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::settings::Settings;
use crate::units::parse_duration;
use crosshandle::Access;
use std::io::{self, BufRead, Read};
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    channel: Opened,
    /// Send all of standard input as one item, instead of each line without its line end
    #[arg(long)]
    whole: bool,
    /// Maximum time to wait for room, as in 5s or 250ms [default: forever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let channel = args
        .channel
        .open(Access::ReadWrite, args.timeout, settings)?;
    let mut producer = channel.producer()?;
    let mut input = io::stdin().lock();
    let mut item = Vec::new();
    let mut sent = 0_u64;
    // One byte more than a slot has is enough to find that an item is too long.
    let most = channel.slot_size() as u64 + 2;
    loop {
        item.clear();
        let mut part = input.by_ref().take(most);
        let read = match args.whole {
            true => part.read_to_end(&mut item),
            false => part.read_until(b'\n', &mut item),
        };
        let read = read.context("reading standard input")?;
        if read == 0 && (!args.whole || sent > 0) {
            break;
        }
        if !args.whole && item.last() == Some(&b'\n') {
            item.pop();
        }
        if item.len() > channel.slot_size() {
            return Err(Failure::error(format!(
                "item {sent} has more bytes than a slot, which has {}",
                channel.slot_size()
            )));
        }
        match args.timeout {
            None => producer.send(&item),
            Some(timeout) => producer.send_timeout(&item, timeout),
        }
        .map_err(Failure::from)
        .context(format_args!("sending item {sent}"))?;
        sent += 1;
    }
    settings.log(format_args!("sent {sent} items"));
    Ok(())
}
