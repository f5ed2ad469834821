//! The objects of a peer, by name.

use crate::channels::{PeerConsumer, PeerProducer};
use crate::graphs::PeerGraph;
use crate::request::{CommandError, Request};
use crosshandle::channel::Channel;
use crosshandle::{
    Context, ContextOptions, Device, Event, Memory, PeerPolicy, Queue,
    virtual_memory::{PhysicalMemory, VirtualRange, VirtualRangeExport},
};
use crosshandle_conformance::{DeviceCode, Kernels};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the context for requests without `context=`.
const DEFAULT: &str = "default";

#[derive(Clone)]
pub(crate) enum Object {
    Context(Context),
    Memory(Arc<Memory>),
    Event(Event),
    Queue(Arc<Queue>),
    Channel(Channel),
    Producer(Arc<Mutex<PeerProducer>>),
    Consumer(Arc<Mutex<PeerConsumer>>),
    Kernels(Arc<Kernels>),
    DeviceCode(Arc<DeviceCode>),
    Graph(Arc<PeerGraph>),
    Physical(PhysicalMemory),
    Range(Arc<VirtualRange>),
    Export(#[expect(dead_code, reason = "it is there to be closed")] Arc<VirtualRangeExport>),
    Memories(Arc<Vec<Memory>>),
    Events(Arc<Vec<Event>>),
    Files(#[expect(dead_code, reason = "it is there to be closed")] Arc<Vec<File>>),
}

/// The objects of this process, and the device and directory of its contexts.
pub(crate) struct PeerState {
    device: String,
    directory: Option<String>,
    objects: Mutex<HashMap<String, Object>>,
}

/// Defines functions that return an object of one kind by its name.
macro_rules! getters {
    ($($kind:ident: $Kind:ident($Type:ty);)*) => {$(
        pub(crate) fn $kind(&self, name: &str) -> Result<$Type, CommandError> {
            match self.get(name)? {
                Object::$Kind(object) => Ok(object),
                _ => Err(unknown(name)),
            }
        }
    )*};
}

impl PeerState {
    pub(crate) fn new(device: String, directory: Option<String>) -> Self {
        Self {
            device,
            directory,
            objects: Mutex::default(),
        }
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, name: &str, object: Object) {
        let old = self.objects().insert(name.to_owned(), object);
        drop(old);
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), CommandError> {
        let object = self.objects().remove(name);
        object.map(drop).ok_or_else(|| unknown(name))
    }

    /// Drops all objects, in the order of their names.
    pub(crate) fn clear(&self) {
        let objects = std::mem::take(&mut *self.objects());
        let mut objects: Vec<_> = objects.into_iter().collect();
        objects.sort_by(|(one, _), (two, _)| one.cmp(two));
        drop(objects);
    }

    pub(crate) fn get(&self, name: &str) -> Result<Object, CommandError> {
        self.objects()
            .get(name)
            .cloned()
            .ok_or_else(|| unknown(name))
    }

    getters! {
        memory: Memory(Arc<Memory>);
        event: Event(Event);
        queue: Queue(Arc<Queue>);
        channel: Channel(Channel);
        producer: Producer(Arc<Mutex<PeerProducer>>);
        consumer: Consumer(Arc<Mutex<PeerConsumer>>);
        kernels: Kernels(Arc<Kernels>);
        device_code: DeviceCode(Arc<DeviceCode>);
        graph: Graph(Arc<PeerGraph>);
        physical: Physical(PhysicalMemory);
        range: Range(Arc<VirtualRange>);
    }

    /// Returns the context that a request names with `context=`, or the default one.
    pub(crate) fn context(&self, request: &Request<'_>) -> Result<Context, CommandError> {
        let name = request.option("context").unwrap_or(DEFAULT);
        match self.get(name) {
            Ok(Object::Context(context)) => Ok(context),
            _ if name == DEFAULT => self.make_context(DEFAULT, self.options()),
            _ => Err(unknown(name)),
        }
    }

    /// `context NAME [directory=PATH] [timeout=MS] [peers=anyone] [pooling=no] [huge=no]`
    pub(crate) fn new_context(&self, request: &Request<'_>) -> Result<(), CommandError> {
        let mut options = self.options();
        if let Some(directory) = request.option("directory") {
            options = options.socket_dir(directory);
        }
        if let Some(timeout) = request.parsed_option("timeout")? {
            options = options.exchange_timeout(Duration::from_millis(timeout));
        }
        if request.option("peers") == Some("anyone") {
            options = options.peers(PeerPolicy::Anyone);
        }
        options = options
            .pooling(request.option("pooling") != Some("no"))
            .huge_pages(request.option("huge") != Some("no"));
        self.make_context(request.word(0)?, options).map(drop)
    }

    fn options(&self) -> ContextOptions {
        let options = ContextOptions::new();
        match &self.directory {
            Some(directory) => options.socket_dir(directory),
            None => options,
        }
    }

    fn make_context(&self, name: &str, options: ContextOptions) -> Result<Context, CommandError> {
        let device = Device::find(&self.device)?;
        let context = Context::with_options(&device, options)?;
        self.put(name, Object::Context(context.clone()));
        Ok(context)
    }
}

fn unknown(name: &str) -> CommandError {
    CommandError::usage(format!("no such object: {name}"))
}
