//! iceoryx2's publish-subscribe services. Receivers that sleep use an event service in addition.

use anyhow::{Context as _, Result, anyhow};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::{Messages, Receiver, Sender};

type Node = iceoryx2::node::Node<ipc::Service>;
type Events = iceoryx2::service::port_factory::event::PortFactory<ipc::Service>;

fn node() -> Result<Node> {
    set_log_level(LogLevel::Fatal);
    let node = NodeBuilder::new().create::<ipc::Service>();
    node.map_err(|error| anyhow!("a node: {error:?}"))
}

fn events(node: &Node, name: &str) -> Result<Events> {
    node.service_builder(&name.try_into().context("a name")?)
        .event()
        .open_or_create()
        .map_err(|error| anyhow!("an event: {error:?}"))
}

/// One side of an event service, which either signals or waits.
pub(crate) struct IceoryxEvent {
    // A port keeps its service alive.
    ports: (
        Option<Notifier<ipc::Service>>,
        Option<Listener<ipc::Service>>,
    ),
}

impl IceoryxEvent {
    pub(crate) fn open(name: &str, signals: bool) -> Result<Self> {
        let service = events(&node()?, name)?;
        let ports = match signals {
            true => (Some(service.notifier_builder().create()), None),
            false => (None, Some(service.listener_builder().create())),
        };
        let notifier = ports.0.transpose();
        let listener = ports.1.transpose();
        Ok(Self {
            ports: (
                notifier.map_err(|error| anyhow!("a notifier: {error:?}"))?,
                listener.map_err(|error| anyhow!("a listener: {error:?}"))?,
            ),
        })
    }

    #[inline]
    pub(crate) fn signal(&self) -> Result<()> {
        let notifier = self.ports.0.as_ref().context("this side waits")?;
        let notified = notifier.notify();
        notified
            .map(drop)
            .map_err(|error| anyhow!("notifying: {error:?}"))
    }

    /// Waits for one signal.
    #[inline]
    pub(crate) fn wait_for_signal(&self) -> Result<()> {
        let listener = self.ports.1.as_ref().context("this side signals")?;
        let mut is_signalled = false;
        while !is_signalled {
            let waited = listener.blocking_wait(|_| is_signalled = true);
            waited
                .map(drop)
                .map_err(|error| anyhow!("waiting: {error:?}"))?;
        }
        Ok(())
    }
}

/// One service, as each of its processes opens it.
pub(super) struct IceoryxService {
    node: Node,
    name: String,
    messages: Messages,
}

impl IceoryxService {
    pub(super) fn open(name: &str, messages: Messages) -> Result<Self> {
        Ok(Self {
            node: node()?,
            name: name.to_owned(),
            messages,
        })
    }

    fn service(
        &self,
    ) -> Result<
        iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, [u8], ()>,
    > {
        let name = self.name.as_str().try_into().context("a name")?;
        self.node
            .service_builder(&name)
            .publish_subscribe::<[u8]>()
            .payload_alignment(Alignment::new(64).context("an alignment")?)
            .enable_safe_overflow(false)
            .history_size(0)
            .subscriber_max_buffer_size(self.messages.depth as usize)
            .max_publishers(1)
            .max_subscribers(self.messages.receivers)
            .open_or_create()
            .map_err(|error| anyhow!("a service: {error:?}"))
    }

    fn event(&self) -> Result<Events> {
        events(&self.node, &format!("{}/wake", self.name))
    }

    pub(super) fn sender(&self) -> Result<IceoryxSender> {
        let publisher = self
            .service()?
            .publisher_builder()
            .initial_max_slice_len(self.messages.bytes)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(|error| anyhow!("a publisher: {error:?}"))?;
        let notifier = match self.messages.sleeps {
            false => None,
            true => Some(
                (self.event()?.notifier_builder().create())
                    .map_err(|error| anyhow!("a notifier: {error:?}"))?,
            ),
        };
        Ok(IceoryxSender {
            publisher,
            notifier,
            messages: self.messages,
            buffer: vec![0; self.messages.bytes],
        })
    }

    pub(super) fn receiver(&self) -> Result<IceoryxReceiver> {
        let subscriber = self
            .service()?
            .subscriber_builder()
            .create()
            .map_err(|error| anyhow!("a subscriber: {error:?}"))?;
        let listener = match self.messages.sleeps {
            false => None,
            true => Some(
                (self.event()?.listener_builder().create())
                    .map_err(|error| anyhow!("a listener: {error:?}"))?,
            ),
        };
        Ok(IceoryxReceiver {
            subscriber,
            listener,
            messages: self.messages,
            buffer: vec![0; self.messages.bytes],
        })
    }
}

pub(super) struct IceoryxSender {
    publisher: Publisher<ipc::Service, [u8], ()>,
    notifier: Option<Notifier<ipc::Service>>,
    messages: Messages,
    buffer: Vec<u8>,
}

impl Sender for IceoryxSender {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let sample = self
            .publisher
            .loan_slice_uninit(self.messages.bytes)
            .map_err(|error| anyhow!("a loan: {error:?}"))?;
        let sample = if self.messages.is_copied {
            self.buffer[..8].copy_from_slice(&number.to_le_bytes());
            sample.write_from_slice(&self.buffer)
        } else {
            let mut sample = sample;
            for (place, byte) in sample.payload_mut().iter_mut().zip(number.to_le_bytes()) {
                place.write(byte);
            }
            // SAFETY: the receiver reads only the 8 bytes that were written. The memory came from
            // the kernel, so the others are initialised too.
            unsafe { sample.assume_init() }
        };
        sample
            .send()
            .map_err(|error| anyhow!("sending: {error:?}"))?;
        if let Some(notifier) = &self.notifier {
            notifier
                .notify()
                .map_err(|error| anyhow!("notifying: {error:?}"))?;
        }
        Ok(())
    }
}

pub(super) struct IceoryxReceiver {
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    listener: Option<Listener<ipc::Service>>,
    messages: Messages,
    buffer: Vec<u8>,
}

impl Receiver for IceoryxReceiver {
    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let sample = loop {
            let sample = self.subscriber.receive();
            if let Some(sample) = sample.map_err(|error| anyhow!("receiving: {error:?}"))? {
                break sample;
            }
            match &self.listener {
                None => std::hint::spin_loop(),
                Some(listener) => listener
                    .blocking_wait(|_| {})
                    .map(drop)
                    .map_err(|error| anyhow!("waiting: {error:?}"))?,
            }
        };
        let len = if self.messages.is_copied {
            sample.payload().len()
        } else {
            8
        };
        self.buffer[..len].copy_from_slice(&sample.payload()[..len]);
        let (number, _) = self.buffer.split_first_chunk().expect("8 bytes");
        Ok(u64::from_le_bytes(*number))
    }
}
