//! `crosshandle channel receive HANDLE`.

use super::Opened;
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::settings::Settings;
use crate::units::parse_duration;
use crosshandle::channel::ChannelFault;
use crosshandle::{Access, Error};
use std::io::{self, Write};
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    channel: Opened,
    /// Number of items to receive [default: until all producers have left]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Write the items without line ends between them
    #[arg(long)]
    raw: bool,
    /// Maximum time to wait for each item, as in 5s or 250ms [default: forever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let channel = args
        .channel
        .open(Access::ReadOnly, args.timeout, settings)?;
    let mut consumer = channel.consumer()?;
    settings.log("receiving");
    let mut output = io::stdout().lock();
    let mut received = 0;
    while args.count.is_none_or(|count| received < count) {
        let item = match args.timeout {
            None => consumer.receive(),
            Some(timeout) => consumer.receive_timeout(timeout),
        };
        let item = match item {
            Err(Error::Channel(ChannelFault::Closed)) if args.count.is_none() => break,
            item => item
                .map_err(Failure::from)
                .context(format_args!("receiving item {received}"))?,
        };
        let mut contents = item.to_vec()?;
        drop(item);
        if !args.raw {
            contents.push(b'\n');
        }
        output
            .write_all(&contents)
            .and_then(|()| output.flush())
            .map_err(|error| Failure::output(&error))?;
        received += 1;
    }
    if consumer.lost() > 0 {
        settings.log(format_args!("{} items were replaced", consumer.lost()));
    }
    Ok(())
}
