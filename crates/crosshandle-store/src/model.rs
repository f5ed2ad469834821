//! Models that this process has opened.

use crate::contents::{Work, hash};
use crate::error::{Error, Result};
use crate::manifest::{MAX_MANIFEST_BYTES, Manifest, TensorInfo};
use crate::placement::OpenOptions;
use crate::state::State;
use crate::store::{DATA, MANIFEST, STATE, Store};
use crate::tuning::UPDATE_PATIENCE;
use crate::{Hash, LoadOptions, moving};
use crosshandle::holder::{Backup, HeldName, Recovered};
use crosshandle::{
    Access, Context, Memory, MemoryHandle, MemoryRange, SharedBytes, adapter_support::Deadline,
    virtual_memory::VirtualRange,
};
use std::sync::Arc;
use std::time::Duration;

/// An opened model, with its manifest and one read-only mapping. The mapping stays until this
/// object is dropped or [sleeps](Self::sleep), even if the name is removed or the holder ends.
#[derive(Debug)]
pub struct Model {
    name: String,
    version: u64,
    hash: Hash,
    manifest: Manifest,
    /// The number of the state at which the manifest was read.
    seen: u64,
    state: State,
    listing: Memory,
    handle: MemoryHandle,
    /// The reserved addresses of a model that can sleep.
    range: Option<Arc<VirtualRange>>,
    /// The mapped memory. `None` while the model sleeps.
    memory: Option<Arc<Memory>>,
    /// The backup, if the options require that this process restores the model after the death of
    /// both holder processes.
    backup: Option<Backup>,
    context: ContextOf,
    store: Store,
}

/// The opened parts of a model. The data is not mapped yet.
pub(crate) struct Parts {
    held: HeldName,
    pub(crate) data: MemoryHandle,
    pub(crate) listing: Memory,
    pub(crate) state: State,
}

impl Parts {
    /// Opens the state and the manifest of a name, for reading or writing.
    pub(crate) fn open(
        store: &Store,
        name: &str,
        access: Access,
        deadline: Deadline,
    ) -> Result<Self> {
        let holder = store.holder_until(deadline);
        let held = match access {
            Access::ReadOnly => holder.open(name)?,
            Access::ReadWrite => holder.open_to_write(name)?,
        };
        Self::of(store, held, access, deadline)
    }

    /// Opens the state and the manifest of a name that the holder has returned.
    pub(crate) fn of(
        store: &Store,
        held: HeldName,
        access: Access,
        deadline: Deadline,
    ) -> Result<Self> {
        let handle_of = |role: &str| {
            let handle = held.part(role).and_then(|part| match access {
                Access::ReadOnly => part.read_only,
                Access::ReadWrite => part.handle,
            });
            handle.ok_or_else(|| not_a_model(&held.name, format!("it has no part '{role}'")))
        };
        let (data, listing, state) = open_parts(store, &held.name, handle_of, access, deadline)?;
        Ok(Self {
            state,
            held,
            data,
            listing,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.held.name
    }

    pub(crate) fn version(&self) -> u64 {
        self.held.version
    }

    pub(crate) fn label(&self) -> &str {
        &self.held.label
    }

    /// Returns `true` if the memory was restored by a process that could have changed its bytes.
    fn is_unverified(&self) -> bool {
        self.held
            .recovered
            .is_some_and(|how| how != Recovered::SameFiles)
    }

    /// Makes this process restore the memory if both holder processes die.
    fn back_up(&self, store: &Store, deadline: Deadline) -> Result<Backup> {
        Ok(store.holder_until(deadline).back_up(&self.held)?)
    }

    /// Checks that readers can open the model. A loader calls this before the memory gets its final
    /// name.
    pub(crate) fn check_readable(&self, store: &Store, expected: Hash) -> Result<()> {
        let (name, data) = (self.name(), &self.data);
        check_opened(store, name, data, &self.listing, &self.state, expected)
    }
}

/// Opens the state and the manifest of a model. `handle_of` returns the handles of its parts.
fn open_parts(
    store: &Store,
    name: &str,
    handle_of: impl Fn(&str) -> Result<MemoryHandle>,
    access: Access,
    deadline: Deadline,
) -> Result<(MemoryHandle, Memory, State)> {
    let host = store.context_on("host")?;
    let on_host = |role: &str| {
        let handle = handle_of(role)?;
        if handle.backend() != host.device().info().backend || handle.len() > MAX_MANIFEST_BYTES {
            let why = format!("its part '{role}' is not host memory, or is too long");
            return Err(not_a_model(name, why));
        }
        Ok(handle)
    };
    let data = handle_of(DATA)?;
    let handles = [on_host(MANIFEST)?, on_host(STATE)?];
    let opened = host.open_memories_timeout(&handles, access, deadline.timeout())?;
    let [listing, words]: [Memory; 2] = (opened.try_into())
        .map_err(|_| not_a_model(name, "its parts were not opened together".to_owned()))?;
    let state = State::open(&host, words, hash::pieces(data.len()));
    let state = state.map_err(|error| not_a_model(name, error.to_string()))?;
    Ok((data, listing, state))
}

/// Opens a model that this process has loaded like a reader. A loader calls this before it
/// publishes the model, so that an unreadable model does not replace an earlier version.
///
/// # Errors
/// Returns the errors of [`Store::open`]. Returns [`Error::OtherModel`] if a reader would find
/// another hash.
pub(crate) fn check_readable(
    store: &Store,
    name: &str,
    parts: &[(&str, &Memory)],
    expected: Hash,
) -> Result<()> {
    let handle_of = |role: &str| {
        let part = parts.iter().find(|(own, _)| *own == role);
        let (_, memory) = part.ok_or_else(|| not_a_model(name, format!("no part '{role}'")))?;
        Ok(memory.handle_read_only()?)
    };
    let deadline = Deadline::after(UPDATE_PATIENCE);
    let (data, listing, state) = open_parts(store, name, handle_of, Access::ReadOnly, deadline)?;
    check_opened(store, name, &data, &listing, &state, expected)
}

/// Reads a model's manifest and maps its data like a reader.
fn check_opened(
    store: &Store,
    name: &str,
    data: &MemoryHandle,
    listing: &Memory,
    state: &State,
    expected: Hash,
) -> Result<()> {
    let deadline = Deadline::after(UPDATE_PATIENCE);
    let (_, found, _) = read_settled(state, listing, name, data.len(), deadline)?;
    if found != expected {
        let name = name.to_owned();
        return Err(Error::OtherModel {
            name,
            expected,
            found,
        });
    }
    map(&store.context_for(data)?, None, data, deadline).map(drop)
}

/// Reads a manifest. Also returns the model's hash.
pub(crate) fn read_listing(listing: &Memory, name: &str, bytes: u64) -> Result<(Manifest, Hash)> {
    let mut text = vec![0; listing.len()];
    listing.read(0, &mut text)?;
    let manifest = Manifest::read(&text, bytes).map_err(|why| not_a_model(name, why))?;
    Ok((manifest, blake3::hash(&text)))
}

/// Reads a manifest while no update is in progress. Also returns the number of the state.
fn read_settled(
    state: &State,
    listing: &Memory,
    name: &str,
    bytes: u64,
    deadline: Deadline,
) -> Result<(Manifest, Hash, u64)> {
    loop {
        let seen = state.settle(deadline)?;
        let read = read_listing(listing, name, bytes);
        if state.is_still(seen)? {
            return read.map(|(manifest, hash)| (manifest, hash, seen));
        }
    }
}

fn not_a_model(name: &str, why: String) -> Error {
    let name = name.to_owned();
    Error::NotAModel { name, why }
}

/// A context that `Debug` shows as its device.
struct ContextOf(Context);

impl std::fmt::Debug for ContextOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.device())
    }
}

/// A tensor of a model.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The tensor's type, shape and place.
    pub info: &'a TensorInfo,
    memory: &'a Memory,
}

impl Model {
    pub(crate) fn open(
        store: &Store,
        name: &str,
        options: &OpenOptions,
        deadline: Deadline,
    ) -> Result<Self> {
        let parts = Parts::open(store, name, Access::ReadOnly, deadline)?;
        let bytes = parts.data.len();
        let (manifest, hash, seen) =
            read_settled(&parts.state, &parts.listing, name, bytes, deadline)?;
        if let Some(expected) = options.expected.filter(|expected| *expected != hash) {
            return Err(Error::OtherModel {
                name: name.to_owned(),
                expected,
                found: hash,
            });
        }
        let context = store.context_for(&parts.data)?;
        let agreed = parts.state.agreed_address()?;
        let range = options.reserve(&context, bytes as usize, agreed)?;
        let memory = map(&context, range.as_ref(), &parts.data, deadline)?;
        let backup = (options.is_backed_up).then(|| parts.back_up(store, deadline));
        let is_unverified = parts.is_unverified();
        let model = Self {
            version: parts.version(),
            backup: backup.transpose()?,
            name: parts.held.name,
            hash,
            manifest,
            seen,
            state: parts.state,
            listing: parts.listing,
            handle: parts.data,
            range,
            memory: Some(Arc::new(memory)),
            context: ContextOf(context),
            store: store.clone(),
        };
        if is_unverified {
            model.verify(&LoadOptions::new())?;
        }
        Ok(model)
    }

    /// Returns the name under which the model was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the model that was opened.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the model's hash, which covers its names, types, shapes and contents.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the manifest, which describes the memory.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the memory with all tensors.
    ///
    /// # Errors
    /// Returns [`Error::Asleep`] if the model sleeps.
    pub fn memory(&self) -> Result<&Arc<Memory>> {
        self.memory.as_ref().ok_or(Error::Asleep)
    }

    /// Returns the read-only handle to the memory. Other processes can open it too.
    pub fn handle(&self) -> &MemoryHandle {
        &self.handle
    }

    /// Returns the address of the memory, which stays the same while the model sleeps.
    pub fn address(&self) -> Option<usize> {
        let mapped = self.memory.as_ref().map(|memory| memory.as_ptr());
        let reserved = || self.range.as_ref().map(|range| range.as_ptr());
        mapped.or_else(reserved).map(|start| start.addr())
    }

    /// Returns `true` if the model is asleep.
    pub fn is_asleep(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns the context in which the model is open.
    pub fn context(&self) -> &Context {
        &self.context.0
    }

    /// Returns the tensor of this name.
    ///
    /// # Errors
    /// Returns [`Error::NoTensor`] or [`Error::Asleep`].
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let info = self.manifest.tensors.get(name);
        let info = info.ok_or_else(|| Error::NoTensor(name.to_owned()))?;
        let memory = self.memory()?;
        Ok(Tensor { info, memory })
    }

    /// Computes the hash of the memory's current bytes, and compares it with the hash in the
    /// current manifest. Of the options, only the threads and the progress callback are used.
    ///
    /// # Errors
    /// Returns [`Error::Changed`] if the hashes differ, and [`Error::NoHash`] if the manifest has
    /// no hash of the contents. Returns [`Error::Overwritten`] if the model was updated in the
    /// meantime. Returns the errors of [`stable`](Self::stable) with a timeout of 30 s. Returns
    /// errors of the device.
    pub fn verify(&self, options: &LoadOptions) -> Result<()> {
        let memory = self.memory()?;
        let bytes = memory.len() as u64;
        let deadline = Deadline::after(UPDATE_PATIENCE);
        let (manifest, _, seen) =
            read_settled(&self.state, &self.listing, &self.name, bytes, deadline)?;
        let verified = verify(&self.context.0, memory, &manifest, options);
        match verified {
            Ok(()) | Err(Error::Changed { .. }) if !self.is_still(seen)? => Err(Error::Overwritten),
            verified => verified,
        }
    }

    /// Waits until no update is in progress, at most for `timeout`. Returns a number that changes
    /// with every update, for [`is_still`](Self::is_still) and [`next_update`](Self::next_update).
    ///
    /// # Errors
    /// Returns [`Error::Torn`] if an update was started and will not be finished. Fails if the
    /// timeout expires.
    pub fn stable(&self, timeout: Duration) -> Result<u64> {
        self.state.settle(Deadline::after(timeout))
    }

    /// Returns `true` if no update has started since [`stable`](Self::stable) returned this number.
    /// If so, the data that the host has read since then is consistent. Commands of a device must
    /// have completed before this call.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if a writer has written invalid state.
    pub fn is_still(&self, number: u64) -> Result<bool> {
        self.state.is_still(number)
    }

    /// Waits until an update later than update `number` has finished, at most for `timeout`.
    /// Returns the later update's number.
    ///
    /// # Errors
    /// Returns the errors of [`stable`](Self::stable).
    pub fn next_update(&self, number: u64, timeout: Duration) -> Result<u64> {
        self.state.next_after(number, Deadline::after(timeout))
    }

    /// Reads the manifest again, so that [`hash`](Self::hash) is the hash of the contents after all
    /// finished updates. Returns the number of the last update.
    ///
    /// # Errors
    /// Returns the errors of [`stable`](Self::stable).
    pub fn refresh(&mut self, timeout: Duration) -> Result<u64> {
        let deadline = Deadline::after(timeout);
        let bytes = self.manifest.bytes;
        let (manifest, hash, seen) =
            read_settled(&self.state, &self.listing, &self.name, bytes, deadline)?;
        if !manifest.has_layout_of(&self.manifest) {
            return Err(Error::OtherLayout(self.name.clone()));
        }
        (self.manifest, self.hash, self.seen) = (manifest, hash, seen);
        Ok(seen)
    }

    /// Returns the number of the last update that the [manifest](Self::manifest) includes, as
    /// [`stable`](Self::stable) returns it.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Unmaps the model's memory and keeps its addresses reserved. Until [`wake`](Self::wake), an
    /// access to these addresses faults. The holder keeps the model. If the holder drops the model,
    /// its memory is freed as soon as no other process has it open.
    ///
    /// # Errors
    /// Returns [`Error::InUse`] while a clone of [`memory`](Self::memory) exists or commands use
    /// the memory. Returns [`Error::Invalid`] for a model that was not opened with reserved
    /// addresses ([`OpenOptions::sleepable`]).
    pub fn sleep(&mut self) -> Result<()> {
        if self.range.is_none() {
            return Err(Error::Invalid(
                "this model has no reserved addresses: open it with `sleepable`, `agreed_address` or `at`"
                    .into(),
            ));
        }
        let Some(memory) = self.memory.take() else {
            return Ok(());
        };
        match Arc::try_unwrap(memory) {
            Ok(memory) if !memory.is_in_use() => {
                drop(memory);
                Ok(())
            }
            Ok(memory) => {
                self.memory = Some(Arc::new(memory));
                Err(Error::InUse)
            }
            Err(memory) => {
                self.memory = Some(memory);
                Err(Error::InUse)
            }
        }
    }

    /// Copies the model to memory on another device, usually the host, and publishes the copy as
    /// the next version of its name. The model then [sleeps](Self::sleep). Its previous memory is
    /// freed when no other process has it open. [`wake`](Self::wake) copies the model back. Of the
    /// options, only the threads and the progress callback are used.
    ///
    /// # Errors
    /// Returns the errors of [`sleep`](Self::sleep), [`Store::open`] and
    /// [`Loaded::publish`](crate::Loaded::publish). Returns [`Error::Overwritten`] if the model was
    /// updated in the meantime. After an error the model stays awake.
    pub fn sleep_to(&mut self, device: &str, options: &LoadOptions) -> Result<()> {
        if self.is_asleep() {
            return Ok(());
        }
        let memory = self.memory()?;
        if Arc::strong_count(memory) > 1 || memory.is_in_use() {
            return Err(Error::InUse);
        }
        if self.range.is_none() {
            return self.sleep();
        }
        self.refresh(UPDATE_PATIENCE)?;
        let moved = moving::move_to(&self.store, self, device, options)?;
        self.sleep()?;
        self.version = moved.version;
        // The backup refers to the old memory, so replace it by a backup for the new memory.
        if self.backup.take().is_some() {
            let held = self.store.holder().open(&self.name)?;
            self.backup = Some(self.store.holder().back_up(&held)?);
        }
        Ok(())
    }

    /// Copies the model from the host back to its device, as the next version of the name.
    fn bring_back(&mut self, deadline: Deadline) -> Result<()> {
        let own = self.context.0.device();
        let held = self.store.holder_until(deadline).open(&self.name)?;
        let data = held.part(DATA).and_then(|part| part.read_only);
        // Do not copy memory on another GPU, because this device may be able to map it.
        let host = self.store.context_on("host")?.device().info().backend;
        let is_here = own.info().backend == host || data.is_none_or(|data| data.backend() != host);
        if is_here {
            return Ok(());
        }
        let device = own.to_string();
        let options = OpenOptions::new().patience(deadline.timeout());
        let there = self.store.open_with(&self.name, &options)?;
        if there.manifest.has_layout_of(&self.manifest) {
            let moved = moving::move_to(&self.store, &there, &device, &LoadOptions::new())?;
            // The copy has the same contents, so `wake` must not report a new version.
            if there.version == self.version {
                self.version = moved.version;
            }
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Maps the current version of the name at the addresses that the model had. Returns `true` if
    /// the [hash](Self::hash) or the [version](Self::version) has changed.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`]. Returns [`Error::OtherLayout`] if the tensors differ
    /// or have other places. After an error the model stays asleep.
    pub fn wake(&mut self) -> Result<bool> {
        self.wake_within(UPDATE_PATIENCE)
    }

    /// Wakes the model like [`wake`](Self::wake), but waits for other processes at most for
    /// `timeout` instead of 30 s. The time to copy the model back to its device and to verify it is
    /// not limited.
    ///
    /// # Errors
    /// Returns the errors of [`wake`](Self::wake).
    pub fn wake_within(&mut self, timeout: Duration) -> Result<bool> {
        let deadline = Deadline::after(timeout);
        if self.is_asleep() {
            self.bring_back(deadline)?;
        }
        let Some(range) = self.range.as_ref().filter(|_| self.memory.is_none()) else {
            return Ok(false);
        };
        let woken = self.store.look_again(|| {
            let parts = Parts::open(&self.store, &self.name, Access::ReadOnly, deadline)?;
            let bytes = parts.data.len();
            let listing = &parts.listing;
            let (manifest, hash, seen) =
                read_settled(&parts.state, listing, &self.name, bytes, deadline)?;
            if !manifest.has_layout_of(&self.manifest) {
                return Err(Error::OtherLayout(self.name.clone()));
            }
            let memory = Arc::new(map(&self.context.0, Some(range), &parts.data, deadline)?);
            if parts.is_unverified() {
                verify(&self.context.0, &memory, &manifest, &LoadOptions::new())?;
            }
            Ok((parts, manifest, hash, seen, memory))
        });
        let (parts, manifest, hash, seen, memory) = woken?;
        let is_another = (parts.version(), hash) != (self.version, self.hash);
        if self.backup.is_some() {
            self.backup = Some(parts.back_up(&self.store, deadline)?);
        }
        (self.version, self.hash, self.seen) = (parts.version(), hash, seen);
        (self.state, self.listing, self.handle) = (parts.state, parts.listing, parts.data);
        (self.manifest, self.memory) = (manifest, Some(memory));
        Ok(is_another)
    }
}

/// Compares the hash of all bytes with the hash in the manifest.
fn verify(
    context: &Context,
    memory: &Memory,
    manifest: &Manifest,
    options: &LoadOptions,
) -> Result<()> {
    let bytes = memory.len() as u64;
    let expected = manifest.data_hash.ok_or(Error::NoHash)?;
    let progress = |done| options.tell(done, bytes);
    let work = Work::new(context, memory, options, &progress);
    let pieces: Vec<u64> = (0..hash::pieces(bytes)).collect();
    let found = hash::combine(&work.hash(&pieces)?, bytes);
    match found == expected {
        true => Ok(()),
        false => Err(Error::Changed { expected, found }),
    }
}

/// Maps a model's data for reading.
fn map(
    context: &Context,
    range: Option<&Arc<VirtualRange>>,
    data: &MemoryHandle,
    deadline: Deadline,
) -> Result<Memory> {
    let (access, timeout) = (Access::ReadOnly, deadline.timeout());
    Ok(match range {
        Some(range) => range.open_memory_timeout(data, access, timeout)?,
        None => context.open_memory_timeout(data, access, timeout)?,
    })
}

impl<'a> Tensor<'a> {
    /// Returns the address of the first element. The address is valid on the device, and also on
    /// the host if the host can access the memory. For a tensor without elements, it may be
    /// dangling.
    pub fn as_ptr(&self) -> *const u8 {
        // The pointer may be a device address, so only its number is changed.
        self.memory.as_ptr().wrapping_add(self.info.offset as usize)
    }

    /// Returns the tensor's bytes, which the host can read.
    ///
    /// # Errors
    /// Returns [`crosshandle::Error::Unsupported`] for memory that the host cannot access.
    pub fn bytes(&self) -> Result<SharedBytes<'a>> {
        let start = self.info.offset as usize;
        Ok(self
            .memory
            .bytes()?
            .slice(start..start + self.info.bytes as usize)?)
    }

    /// Returns the tensor's bytes as a range of memory, which commands can use.
    ///
    /// # Errors
    /// Returns [`crosshandle::Error::InvalidArgument`] for a tensor without elements.
    pub fn range(&self) -> Result<MemoryRange> {
        let start = self.info.offset as usize;
        Ok(self.memory.range(start..start + self.info.bytes as usize)?)
    }
}
