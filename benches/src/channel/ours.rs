//! The library's channels.

use anyhow::Result;
use crosshandle::Context;
use crosshandle::channel::{Channel, ChannelOptions, Consumer, Delivery, Producer};

use super::{Messages, Receiver, Sender};

pub(super) fn create(context: &Context, messages: Messages) -> Result<Channel> {
    let delivery = match messages.receivers {
        1 => Delivery::Queue,
        _ => Delivery::Broadcast,
    };
    let options = ChannelOptions::new(messages.bytes)
        .depth(messages.depth)
        .delivery(delivery)
        .consumers(messages.receivers as u8)
        // As many as iceoryx2 lends by default.
        .reserved(2)
        .held(2);
    Ok(Channel::create(context, options)?)
}

pub(super) struct OurSender {
    pub(super) producer: Producer,
    pub(super) messages: Messages,
    pub(super) buffer: Vec<u8>,
}

impl Sender for OurSender {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        if self.messages.is_copied {
            self.buffer[..8].copy_from_slice(&number.to_le_bytes());
            self.producer.send(&self.buffer)?;
            return Ok(());
        }
        let mut slot = self.producer.reserve()?;
        slot.write(0, &number.to_le_bytes())?;
        self.producer.publish(slot)?;
        Ok(())
    }
}

pub(super) struct OurReceiver {
    pub(super) consumer: Consumer,
    pub(super) messages: Messages,
    pub(super) buffer: Vec<u8>,
}

impl Receiver for OurReceiver {
    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let item = match self.messages.sleeps {
            true => self.consumer.receive()?,
            false => loop {
                if let Some(item) = self.consumer.try_receive()? {
                    break item;
                }
                std::hint::spin_loop();
            },
        };
        let len = if self.messages.is_copied {
            item.len()
        } else {
            8
        };
        item.read(0, &mut self.buffer[..len])?;
        let (number, _) = self.buffer.split_first_chunk().expect("8 bytes");
        Ok(u64::from_le_bytes(*number))
    }
}
