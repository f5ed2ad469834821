//! The store: where models are loaded to and opened from.

use crate::Hash;
use crate::error::{Error, Result};
use crate::load::{LoadOptions, Loaded};
use crate::model::Model;
use crate::placement::OpenOptions;
use crate::resume::{self, Publication};
use crate::source::{NamedBytes, NamedRange, Source};
use crate::tuning::{MAX_LOOKS, UPDATE_PATIENCE};
use crate::update::Updater;
use crosshandle::Deadline;
use crosshandle::handle::{BackendKind, DeviceUuid};
use crosshandle::holder::{ClaimOptions, HoldOptions, Holder};
use crosshandle::{Context, ContextOptions, Device, MemoryHandle, PeerPolicy};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The roles of a model's pieces of memory.
pub(crate) const DATA: &str = "data";
pub(crate) const MANIFEST: &str = "manifest";
pub(crate) const STATE: &str = "state";

/// Models under names that a holder keeps. Cheap to clone; clones share contexts.
#[derive(Clone, Debug, Default)]
pub struct Store {
    socket_dir: Option<PathBuf>,
    peers: PeerPolicy,
    holder: Holder,
    contexts: Arc<Mutex<HashMap<(BackendKind, DeviceUuid), Context>>>,
}

impl Store {
    /// Returns the store of the usual socket directories. Nothing is asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the directory in which to look for the holder.
    pub fn socket_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.socket_dir = Some(directory.as_ref().to_owned());
        self.holder = self.holder.socket_dir(directory.as_ref());
        self.contexts = Arc::default();
        self
    }

    /// Sets the users as whom the holder and others that share may run (default: the same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.holder = self.holder.peers(peers.clone());
        self.peers = peers;
        self.contexts = Arc::default();
        self
    }

    /// Sets the token to show the holder.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.holder = self.holder.token(token);
        self
    }

    /// Returns the holder, whose answers are waited for until a moment.
    pub(crate) fn holder_until(&self, deadline: Deadline) -> Holder {
        self.holder.clone().timeout(deadline.timeout())
    }

    /// Returns the holder, to list, remove and pin names.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Loads files of safetensors into memory of a device. A file that ends in `.json` is an index of others next to
    /// it. A directory stands for the checkpoint in it: its index, or all of its files of safetensors. The device's memory is there as soon as this returns; [`Loaded::publish`] hands it over.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Format`] for files that cannot be read, [`Error::OtherModel`] if the hash
    /// is not the expected one; limits of the system.
    pub fn load(&self, device: &str, paths: &[PathBuf], options: &LoadOptions) -> Result<Loaded> {
        Loaded::read(self, device, &Source::of_files(paths, options)?, options)
    }

    /// Loads files as [`load`](Self::load) does, and publishes them under a name. If this process ends before that, the
    /// next load of the same files under the same name goes on where it was: what is in its place is kept by the
    /// holder, under the name and `+loading`, which [`Holder::remove`] gives up.
    ///
    /// Where the name has tokens, this store must show the one that may do all.
    ///
    /// # Errors
    /// As [`load`](Self::load) and [`Loaded::publish`]; [`Error::Invalid`] while another process loads under the
    /// name.
    pub fn load_resumably(
        &self,
        device: &str,
        paths: &[PathBuf],
        name: &str,
        options: &LoadOptions,
        hold: HoldOptions,
    ) -> Result<Publication> {
        resume::load(self, device, paths, name, options, hold)
    }

    /// Loads tensors of the program's own into memory of a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for tensors that are not what they say; limits of the system.
    pub fn load_tensors<'a>(
        &self,
        device: &str,
        tensors: impl IntoIterator<Item = NamedBytes<'a>>,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let source = Source::of_bytes(tensors)?.with(&options.metadata);
        Loaded::read(self, device, &source, options)
    }

    /// Has a device copy tensors that it can reach into new memory of its own, for instance weights that an engine has
    /// repacked. Takes the hash of what is there then.
    ///
    /// # Errors
    /// As [`load_tensors`](Self::load_tensors); [`crosshandle::Error::InvalidArgument`] for memory that the device does
    /// not reach.
    pub fn copy_tensors(
        &self,
        device: &str,
        tensors: impl IntoIterator<Item = NamedRange>,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        Loaded::copy(self, device, tensors, options)
    }

    /// Lets go of the contexts that this store and its clones keep for later calls, for instance before a process
    /// ends. What is open keeps its own.
    pub fn forget_contexts(&self) {
        let contexts =
            std::mem::take(&mut *self.contexts.lock().unwrap_or_else(PoisonError::into_inner));
        // Without the lock: the last one waits for threads that close something.
        drop(contexts);
    }

    /// Opens a model: one mapping, in which all its tensors are. Waits for the end of an update that is under way.
    ///
    /// # Errors
    /// [`Error::Crosshandle`] if nothing is held under the name or it cannot be mapped here;
    /// [`Error::NotAModel`]; [`Error::Torn`]; a timeout.
    pub fn open(&self, name: &str) -> Result<Model> {
        self.open_with(name, &OpenOptions::new())
    }

    /// Opens a model if it is the one with this hash.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::OtherModel`].
    pub fn open_expecting(&self, name: &str, hash: Hash) -> Result<Model> {
        self.open_with(name, &OpenOptions::new().expecting(hash))
    }

    /// Opens a model, for instance at an address.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::OtherModel`], [`Error::AddressTaken`].
    pub fn open_with(&self, name: &str, options: &OpenOptions) -> Result<Model> {
        let deadline = Deadline::after(options.patience);
        self.look_again(|| Model::open(self, name, options, deadline))
    }

    /// Opens a model to write new contents into its tensors, in place.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Crosshandle`] if the name's writing token was not shown.
    pub fn updater(&self, name: &str) -> Result<Updater> {
        self.updater_timeout(name, UPDATE_PATIENCE)
    }

    /// Opens a model as [`updater`](Self::updater) does, which waits for 30 s, and waits for other processes for at
    /// most `timeout`.
    ///
    /// # Errors
    /// As [`updater`](Self::updater); a timeout.
    pub fn updater_timeout(&self, name: &str, timeout: Duration) -> Result<Updater> {
        let deadline = Deadline::after(timeout);
        self.look_again(|| Updater::open(self, name, deadline))
    }

    /// Claims a name as its one writer, in a new epoch, and opens the model to write new contents into its tensors: see
    /// [`Holder::claim`].
    ///
    /// # Errors
    /// As [`updater`](Self::updater); [`crosshandle::Error::Holder`] with [`crosshandle::HolderFault::Fenced`] while
    /// somebody else may write it.
    pub fn claim(&self, name: &str, options: &ClaimOptions) -> Result<Updater> {
        self.look_again(|| Updater::claim(self, name, options))
    }

    /// Waits until a name has a later version than a model that was opened, for at most `timeout`, and opens
    /// that. The model before stays as it is until it is dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open), also if the name is removed; a timeout.
    pub fn await_next(&self, before: &Model, timeout: Duration) -> Result<Model> {
        let (name, deadline) = (before.name(), Deadline::after(timeout));
        self.holder.await_version(name, before.version(), timeout)?;
        self.open_with(name, &OpenOptions::new().patience(deadline.timeout()))
    }

    /// Opens something again if the name's next version came between two steps.
    pub(crate) fn look_again<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        let mut looks = 1;
        loop {
            match open() {
                Err(Error::Crosshandle(error))
                    if looks < MAX_LOOKS
                        && (error.is_peer_dead() || error.is_stale())
                        && !matches!(error, crosshandle::Error::Holder { .. }) =>
                {
                    looks += 1;
                }
                result => return result,
            }
        }
    }

    /// Returns the context on the device that a handle is for.
    pub(crate) fn context_for(&self, handle: &MemoryHandle) -> Result<Context> {
        let (backend, uuid) = (handle.backend(), handle.device());
        let devices = Device::all();
        let is_it =
            |device: &&Device| device.info().backend == backend && device.info().uuid == uuid;
        let found = devices.iter().find(is_it);
        // If this machine lacks the device, opening the handle fails with the best explanation.
        let device = found
            .or(devices.first())
            .ok_or(crosshandle::Error::NoDevice {
                name: backend.to_string(),
                reason: "there is no device at all".into(),
            })?;
        self.context(device)
    }

    pub(crate) fn context_on(&self, device: &str) -> Result<Context> {
        self.context(&Device::find(device)?)
    }

    fn context(&self, device: &Device) -> Result<Context> {
        let key = (device.info().backend, device.info().uuid);
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&key) {
            return Ok(context.clone());
        }
        // What is handed over must have its segment alone.
        let mut options = ContextOptions::new()
            .pooling(false)
            .peers(self.peers.clone());
        if let Some(directory) = &self.socket_dir {
            options = options.socket_dir(directory);
        }
        let context = Context::with_options(device, options)?;
        contexts.insert(key, context.clone());
        Ok(context)
    }
}
