//! `crosshandle channel new`.

use crate::commands::share::hold;
use crate::failure::{Failure, Result};
use crate::output;
use crate::settings::Settings;
use crate::units::parse_bytes;
use crosshandle::channel::{Channel, ChannelOptions, Delivery, WhenFull};
use crosshandle::holder::HoldOptions;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Size of a slot, which is the maximum size of an item, as in 4096 or 6M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    slot: u64,
    /// Number of items that can wait to be received; a power of two
    #[arg(long, default_value_t = 8, value_name = "N")]
    depth: u32,
    /// Maximum number of producers
    #[arg(long, default_value_t = 1, value_name = "N")]
    producers: u8,
    /// Maximum number of consumers
    #[arg(long, default_value_t = 1, value_name = "N")]
    consumers: u8,
    /// Deliver each item to every consumer, instead of to one
    #[arg(long)]
    broadcast: bool,
    /// Replace the oldest item if the channel is full, instead of waiting
    #[arg(long)]
    drop_oldest: bool,
    /// Let consumers wait for the next producer when all producers have ended
    #[arg(long)]
    await_producers: bool,
    /// The device of the slots: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Allow openers only to receive
    #[arg(long, conflicts_with = "name")]
    consumer_handle: bool,
    /// Hand the channel over to a holder under this name, print its handle, and exit
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let context = settings.context_on(&args.device, None)?;
    let slot = usize::try_from(args.slot)
        .map_err(|_| Failure::error("a slot is larger than what a process can address"))?;
    let mut options = ChannelOptions::new(slot)
        .depth(args.depth)
        .producers(args.producers)
        .consumers(args.consumers)
        .awaits_producers(args.await_producers);
    if args.broadcast {
        options = options.delivery(Delivery::Broadcast);
    }
    if args.drop_oldest {
        options = options.when_full(WhenFull::DropOldest);
    }
    if let Some(name) = &args.name {
        options = options.name(name);
    }
    let channel = Channel::create(&context, options)?;
    if let Some(name) = &args.name {
        channel.hand_over(&settings.holder(None), name, HoldOptions::new())?;
        return output::line(channel.handle()?);
    }
    let handle = match args.consumer_handle {
        true => channel.consumer_handle()?,
        false => channel.handle()?,
    };
    hold(settings, &handle, "a channel")
}
