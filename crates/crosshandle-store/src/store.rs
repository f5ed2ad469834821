//! The store, which loads and opens models.

use crate::Hash;
use crate::error::{Error, Result};
use crate::load::{LoadOptions, Loaded};
use crate::model::Model;
use crate::placement::OpenOptions;
use crate::resume::{self, Publication};
use crate::source::{NamedBytes, NamedRange, Source};
use crate::tuning::UPDATE_PATIENCE;
use crate::update::Updater;
use crosshandle::handle::{BackendKind, DeviceUuid};
use crosshandle::holder::{ClaimOptions, HoldOptions, Holder};
use crosshandle::{
    Context, ContextOptions, Device, MemoryHandle, PeerPolicy, adapter_support::Deadline,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of times that a name is looked up again because its version ended between the
/// lookup and the open. With fewer, a name that is replaced all the time may not be opened.
const MAX_LOOKS: u32 = 8;

/// Roles of the parts of a model.
pub(crate) const DATA: &str = "data";
pub(crate) const MANIFEST: &str = "manifest";
pub(crate) const STATE: &str = "state";

/// A client for a holder that keeps models under names. A store is cheap to clone, and clones share
/// contexts.
#[derive(Clone, Debug, Default)]
pub struct Store {
    socket_dir: Option<PathBuf>,
    peers: PeerPolicy,
    holder: Holder,
    contexts: Arc<Mutex<HashMap<(BackendKind, DeviceUuid), Context>>>,
}

impl Store {
    /// Creates a store that uses the default socket directories. Does not contact the holder yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the socket directory of the holder.
    pub fn socket_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.socket_dir = Some(directory.as_ref().to_owned());
        self.holder = self.holder.socket_dir(directory.as_ref());
        self.contexts = Arc::default();
        self
    }

    /// Sets the users that are admitted: the holder and other exporters may run as these users
    /// (default: only the user of this process).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.holder = self.holder.peers(peers.clone());
        self.peers = peers;
        self.contexts = Arc::default();
        self
    }

    /// Sets the token that the store presents to the holder.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.holder = self.holder.token(token);
        self
    }

    /// Returns a client for the holder whose requests time out at the deadline.
    pub(crate) fn holder_until(&self, deadline: Deadline) -> Holder {
        self.holder.clone().timeout(deadline.timeout())
    }

    /// Returns the client for the holder, for example to list, remove or pin names.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Loads safetensors files into memory of a device. A file that ends in `.json` is an index of
    /// other files in its directory. A directory represents the checkpoint in it: its index, or all
    /// of its safetensors files. The memory belongs to this process until [`Loaded::publish`] hands
    /// it over.
    ///
    /// # Errors
    /// Returns [`Error::Io`] and [`Error::Format`] for files that cannot be read,
    /// [`Error::OtherModel`] if the hash is not the expected one. Fails if a limit of the system is
    /// reached.
    pub fn load(&self, device: &str, paths: &[PathBuf], options: &LoadOptions) -> Result<Loaded> {
        Loaded::read(self, device, &Source::of_files(paths, options)?, options)
    }

    /// Loads files like [`load`](Self::load), and publishes the model under a name. If this process
    /// ends before that, the holder keeps the loaded pieces under the name followed by `+loading`,
    /// and the next call with the same files and the same name continues the load.
    /// [`Holder::remove`] removes an unfinished load.
    ///
    /// If the name has tokens, this store must have the token that allows everything.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load) and [`Loaded::publish`]. Returns
    /// [`Error::Invalid`] while another process loads under the same name.
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

    /// Loads tensors from the program's own memory into memory of a device.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the length of a tensor does not match its type and shape.
    /// Fails if a limit of the system is reached.
    pub fn load_tensors<'a>(
        &self,
        device: &str,
        tensors: impl IntoIterator<Item = NamedBytes<'a>>,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let source = Source::of_bytes(tensors)?.with(&options.metadata);
        Loaded::read(self, device, &source, options)
    }

    /// Copies tensors that a device can access into new memory of the device, for instance weights
    /// that an engine has repacked. Then computes the hash of the copies.
    ///
    /// # Errors
    /// Returns the errors of [`load_tensors`](Self::load_tensors). Returns
    /// [`crosshandle::Error::InvalidArgument`] for memory that the device cannot access.
    pub fn copy_tensors(
        &self,
        device: &str,
        tensors: impl IntoIterator<Item = NamedRange>,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        Loaded::copy(self, device, tensors, options)
    }

    /// Drops the contexts that this store and its clones keep for later calls. A process can call
    /// this before it ends. Open models keep their own contexts.
    pub fn forget_contexts(&self) {
        let contexts = std::mem::take(&mut *self.contexts());
        // The contexts are dropped after the lock is released, because dropping a last context
        // waits for threads that close objects.
        drop(contexts);
    }

    /// Opens a model with one mapping that contains all tensors. Waits for the end of an update in
    /// progress.
    ///
    /// # Errors
    /// Returns [`Error::Crosshandle`] if the name does not exist or the memory cannot be mapped
    /// here. Returns [`Error::NotAModel`] if the name refers to other memory, and [`Error::Torn`]
    /// after an unfinished update. Fails if the timeout expires.
    pub fn open(&self, name: &str) -> Result<Model> {
        self.open_with(name, &OpenOptions::new())
    }

    /// Opens a model that must have this hash.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), and [`Error::OtherModel`].
    pub fn open_expecting(&self, name: &str, hash: Hash) -> Result<Model> {
        self.open_with(name, &OpenOptions::new().expecting(hash))
    }

    /// Opens a model with options, for instance at an address.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), and [`Error::OtherModel`],
    /// [`Error::AddressTaken`].
    pub fn open_with(&self, name: &str, options: &OpenOptions) -> Result<Model> {
        let deadline = Deadline::after(options.patience);
        self.look_again(|| Model::open(self, name, options, deadline))
    }

    /// Opens a model for updates of its tensors in place.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open). Returns [`Error::Crosshandle`] if this store
    /// lacks the name's token for writing.
    pub fn updater(&self, name: &str) -> Result<Updater> {
        self.updater_timeout(name, UPDATE_PATIENCE)
    }

    /// Opens a model like [`updater`](Self::updater), but waits for other processes at most for
    /// `timeout` instead of 30 s.
    ///
    /// # Errors
    /// Returns the errors of [`updater`](Self::updater). Fails if the timeout expires.
    pub fn updater_timeout(&self, name: &str, timeout: Duration) -> Result<Updater> {
        let deadline = Deadline::after(timeout);
        self.look_again(|| Updater::open(self, name, deadline))
    }

    /// Claims a name as its only writer, in a new epoch, and opens the model for updates in place.
    /// See [`Holder::claim`].
    ///
    /// # Errors
    /// Returns the errors of [`updater`](Self::updater). Returns [`crosshandle::Error::Holder`]
    /// with [`HasWriter`](crosshandle::holder::HolderFault::HasWriter) while another process may
    /// still write the model.
    pub fn claim(&self, name: &str, options: &ClaimOptions) -> Result<Updater> {
        self.look_again(|| Updater::claim(self, name, options))
    }

    /// Waits until the name of an open model has a later version, at most for `timeout`, and opens
    /// the later version. The earlier model stays usable until it is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), also if the name is removed. Fails if the
    /// timeout expires.
    pub fn await_next(&self, before: &Model, timeout: Duration) -> Result<Model> {
        let (name, deadline) = (before.name(), Deadline::after(timeout));
        self.holder.await_version(name, before.version(), timeout)?;
        self.open_with(name, &OpenOptions::new().patience(deadline.timeout()))
    }

    /// Repeats `open` if a new version replaced the name between two of its steps.
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

    pub(crate) fn context_for(&self, handle: &MemoryHandle) -> Result<Context> {
        let (backend, uuid) = (handle.backend(), handle.device());
        if let Some(context) = self.contexts().get(&(backend, uuid)) {
            return Ok(context.clone());
        }
        let mut devices = Device::of(backend).into_iter();
        let found = devices.find(|device| device.info().uuid == uuid);
        // If this machine lacks the device, use any device: opening the handle then fails with the
        // best explanation.
        let device = found.or_else(|| Device::all().into_iter().next()).ok_or(
            crosshandle::Error::NoDevice {
                name: backend.to_string(),
                reason: "there is no device at all".into(),
            },
        )?;
        self.context(&device)
    }

    fn contexts(&self) -> MutexGuard<'_, HashMap<(BackendKind, DeviceUuid), Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context_on(&self, device: &str) -> Result<Context> {
        self.context(&Device::find(device)?)
    }

    fn context(&self, device: &Device) -> Result<Context> {
        let key = (device.info().backend, device.info().uuid);
        let mut contexts = self.contexts();
        if let Some(context) = contexts.get(&key) {
            return Ok(context.clone());
        }
        // Without pooling, memory that is handed over does not share its segment with other memory.
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
