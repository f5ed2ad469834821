//! Updates of a model in place.

use crate::contents::Work;
use crate::contents::hash::{self, PIECE_BYTES};
use crate::error::{Error, Result};
use crate::manifest::{Manifest, TensorInfo};
use crate::model::{Parts, read_listing};
use crate::source::{NamedBytes, Source};
use crate::state::{Moment, Phase, State};
use crate::store::Store;
use crate::tuning::UPDATE_PATIENCE;
use crate::{Hash, LoadOptions};
use crosshandle::holder::{ClaimOptions, Lease};
use crosshandle::{
    Access, Command, Context, Event, EventOptions, Memory, MemoryRange, Queue,
    adapter_support::Deadline,
};
use std::collections::BTreeSet;
use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::time::Duration;

/// A model that this process can write. Any number of updates can be started with
/// [`begin`](Self::begin). Several processes may have an updater for one model, but only one writes
/// at a time.
pub struct Updater {
    name: String,
    version: u64,
    manifest: Manifest,
    data: Memory,
    listing: Memory,
    state: State,
    /// The event that is signalled when an update starts and ends. If this process dies, readers
    /// learn from the event that the update will not end.
    event: Event,
    context: Context,
    /// The queue for copies on the device, which is created on first use.
    queue: Option<Queue>,
    /// The exclusive right to write, if the name was claimed.
    lease: Option<Lease>,
}

impl fmt::Debug for Updater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updater")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Updater {
    pub(crate) fn open(store: &Store, name: &str, deadline: Deadline) -> Result<Self> {
        let parts = Parts::open(store, name, Access::ReadWrite, deadline)?;
        Self::of(store, parts, deadline)
    }

    /// Claims a name, and opens it for writing.
    pub(crate) fn claim(store: &Store, name: &str, options: &ClaimOptions) -> Result<Self> {
        let lease = store.holder().claim(name, options)?;
        // Opening the memory has its own timeout, because the claim may have used up its timeout.
        let deadline = Deadline::after(UPDATE_PATIENCE);
        let parts = Parts::of(store, lease.held().clone(), Access::ReadWrite, deadline);
        match parts.and_then(|parts| Self::of(store, parts, deadline)) {
            Ok(updater) => Ok(Self {
                lease: Some(lease),
                ..updater
            }),
            Err(error) => {
                // End the claim, because it would lock other writers out for as long as this
                // process runs.
                let _ = lease.end();
                Err(error)
            }
        }
    }

    fn of(store: &Store, parts: Parts, deadline: Deadline) -> Result<Self> {
        let name = parts.name();
        let context = store.context_for(&parts.data)?;
        let data =
            context.open_memory_timeout(&parts.data, Access::ReadWrite, deadline.timeout())?;
        // An update changes only the hash in the manifest, so the manifest may be read during an
        // update.
        let (manifest, _) = read_listing(&parts.listing, name, data.len() as u64)?;
        // The event is isolated, so that readers that have it open cannot access other events.
        let options = EventOptions::new().isolated(true);
        let event = parts.state.host().create_event_with(options)?;
        event.set_name("update");
        Ok(Self {
            name: parts.name().to_owned(),
            version: parts.version(),
            manifest,
            data,
            listing: parts.listing,
            state: parts.state,
            event,
            context,
            queue: None,
            lease: None,
        })
    }

    /// Returns the epoch of this process as the name's only writer, or `None` if the name was not
    /// claimed.
    pub fn epoch(&self) -> Option<u64> {
        self.lease.as_ref().map(Lease::epoch)
    }

    /// Ends writing, and releases a claim of the name, so that another process may claim it. If the
    /// updater is dropped instead, the claim lasts until this process ends.
    ///
    /// # Errors
    /// Returns [`crosshandle::Error::Holder`] if there is no holder, or if another process has
    /// become the writer of the name.
    pub fn end(self) -> Result<()> {
        let Self {
            lease,
            data,
            listing,
            state,
            ..
        } = self;
        // The memory is closed first, because the holder grants the next claim only when no process
        // has the memory open for writing.
        drop((data, listing, state));
        match lease {
            Some(lease) => Ok(lease.end()?),
            None => Ok(()),
        }
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version that this updater writes. It stays the same if the name gets a later
    /// version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the manifest, which describes the memory.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the event that is signalled at the start and at the end of each update.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Starts an update. First waits for the end of another process's update, at most for
    /// `timeout`. Readers then wait until [`Update::finish`] ends the update. If the update is
    /// dropped after it has written something, or if this process dies, the model is torn.
    ///
    /// # Errors
    /// Fails if the timeout expires. Fails if a limit of the system is reached.
    pub fn begin(&mut self, timeout: Duration) -> Result<Update<'_>> {
        let moment = self.state.claim(&self.event, Deadline::after(timeout))?;
        let update = Update {
            moment: Some(moment),
            options: LoadOptions::new(),
            written: Vec::new(),
            has_failed: false,
            updater: self,
        };
        // Read the manifest again, because another writer may have changed its hash.
        let bytes = update.updater.manifest.bytes;
        let (manifest, _) = read_listing(&update.updater.listing, &update.updater.name, bytes)?;
        if !manifest.has_layout_of(&update.updater.manifest) {
            return Err(Error::OtherLayout(update.updater.name.clone()));
        }
        Ok(update)
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        let tensor = self.manifest.tensors.get(name);
        tensor.ok_or_else(|| Error::NoTensor(name.to_owned()))
    }

    /// Returns the offset in the memory of a part of a tensor.
    fn place(&self, tensor: &str, offset: u64, len: u64) -> Result<u64> {
        let info = self.tensor(tensor)?;
        match offset.checked_add(len) {
            Some(end) if end <= info.bytes => Ok(info.offset + offset),
            _ => Err(Error::Invalid(format!(
                "{len} bytes at {offset} are not all inside of the tensor {tensor}, which has {}",
                info.bytes
            ))),
        }
    }
}

/// An update in progress. If it is dropped without [`finish`](Self::finish), it leaves the model
/// torn, unless it has written nothing.
#[derive(Debug)]
pub struct Update<'a> {
    updater: &'a mut Updater,
    /// The state while this process writes. `None` when the update has ended.
    moment: Option<Moment>,
    options: LoadOptions,
    /// The written ranges, as offsets and lengths.
    written: Vec<(u64, u64)>,
    /// Whether some of these ranges may have been written only in part.
    has_failed: bool,
}

impl Update<'_> {
    /// Sets the number of threads and the progress callback of the following calls. Other options
    /// are ignored.
    pub fn options(mut self, options: LoadOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns `true` if the model is torn, so that this update must write all of its tensors.
    pub fn must_be_full(&self) -> bool {
        matches!(
            self.moment,
            Some(Moment {
                phase: Phase::Writing { was_torn: true },
                ..
            })
        )
    }

    /// Writes whole tensors from the program's own memory. Their types and shapes must match the
    /// model.
    ///
    /// # Errors
    /// Returns [`Error::NoTensor`] or [`Error::Invalid`]. Returns errors of the device.
    pub fn write<'b>(&mut self, tensors: impl IntoIterator<Item = NamedBytes<'b>>) -> Result<()> {
        self.write_source(Source::of_bytes(tensors)?)
    }

    /// Writes the tensors in safetensors files. The paths have the same meaning as for
    /// [`Store::load`]. The files may contain all or some of the model's tensors.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write), and [`Error::Io`], [`Error::Format`].
    pub fn load(&mut self, paths: &[PathBuf]) -> Result<()> {
        self.write_source(Source::of_files(paths, &self.options)?)
    }

    /// Writes a part of a tensor, starting at byte `offset` of the tensor.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
    pub fn write_part(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let place = self.updater.place(tensor, offset, bytes.len() as u64)?;
        let source = Source::of_run(tensor, place, bytes, self.updater.manifest.bytes);
        self.write_placed(&source)
    }

    /// Copies a whole tensor on the device, and waits for the copy. Its type and shape must match
    /// the model.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write). Returns
    /// [`crosshandle::Error::InvalidArgument`] for memory that the device cannot access.
    pub fn copy_tensor(
        &mut self,
        tensor: &str,
        dtype: &str,
        shape: &[u64],
        source: MemoryRange,
    ) -> Result<()> {
        let there = self.updater.tensor(tensor)?;
        let fits = (there.dtype.as_str(), there.shape.as_slice()) == (dtype, shape)
            && there.bytes == source.len() as u64;
        match fits {
            true => self.copy(tensor, 0, source),
            false => Err(there.refuse(tensor, dtype, shape)),
        }
    }

    /// Copies a part of a tensor on the device, starting at byte `offset` of the tensor, and waits
    /// for the copy.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write). Returns
    /// [`crosshandle::Error::InvalidArgument`] for memory that the device cannot access.
    pub fn copy(&mut self, tensor: &str, offset: u64, source: MemoryRange) -> Result<()> {
        let len = source.len() as u64;
        let place = self.updater.place(tensor, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let updater = &mut *self.updater;
        let queue = match &updater.queue {
            Some(queue) => queue,
            None => updater.queue.insert(updater.context.create_queue()?),
        };
        let to = updater.data.range(place as usize..(place + len) as usize)?;
        let copy = Command::copy(source, to)?;
        self.written.push((place, len));
        // The flag is set until the copy has succeeded, so that an early return leaves it set.
        let had_failed = mem::replace(&mut self.has_failed, true);
        queue.submit(copy)?;
        queue.finish()?;
        self.has_failed = had_failed;
        Ok(())
    }

    /// Ends the update, and hashes the pieces that it has written. Returns the model's new hash.
    ///
    /// # Errors
    /// Returns [`Error::Incomplete`] if the model was torn and the update has not written all of
    /// it. Returns [`Error::Torn`] if a write of this update failed half-way. Returns
    /// [`Error::Superseded`] if another process has started to update the model. Returns errors of
    /// the device. After an error the model is torn.
    pub fn finish(self) -> Result<Hash> {
        self.end(true)
    }

    /// Ends the update like [`finish`](Self::finish), but does not hash the written pieces, which
    /// is faster. The contents cannot be verified until a later update has computed the hash.
    ///
    /// # Errors
    /// Returns the errors of [`finish`](Self::finish).
    pub fn finish_unhashed(self) -> Result<Hash> {
        self.end(false)
    }

    fn end(mut self, hashes: bool) -> Result<Hash> {
        if self.has_failed {
            return Err(Error::Torn);
        }
        let written = merged(&mut self.written);
        if self.must_be_full() {
            let is_missing = |tensor: &&TensorInfo| {
                let end = tensor.offset + tensor.bytes;
                let around =
                    |(start, len): &(u64, u64)| *start <= tensor.offset && end <= start + len;
                tensor.bytes > 0 && !written.iter().any(around)
            };
            let tensors = &self.updater.manifest.tensors;
            if let Some((name, _)) = tensors.iter().find(|(_, tensor)| is_missing(tensor)) {
                return Err(Error::Incomplete(name.clone()));
            }
        }
        let data_hash = self.note_hashes(&written, hashes)?;
        let updater = &mut *self.updater;
        updater.manifest.data_hash = data_hash;
        let text = updater.manifest.to_bytes();
        if text.len() != updater.listing.len() {
            return Err(Error::OtherLayout(updater.name.clone()));
        }
        updater.listing.write(0, &text)?;
        self.leave(Phase::Stable)?;
        Ok(blake3::hash(&text))
    }

    /// Records the hashes of the written pieces, or records that they are unknown. Returns the hash
    /// of all bytes if the hashes of all pieces are known.
    fn note_hashes(&self, written: &[(u64, u64)], hashes: bool) -> Result<Option<Hash>> {
        let Updater {
            state,
            data,
            context,
            ..
        } = &*self.updater;
        let bytes = data.len() as u64;
        let all = 0..hash::pieces(bytes);
        let touched =
            |(start, len): &(u64, u64)| start / PIECE_BYTES..=(start + len - 1) / PIECE_BYTES;
        let mut changed: BTreeSet<u64> = written.iter().flat_map(touched).collect();
        if self.must_be_full() {
            // Hash the pieces between tensors too: the torn update may have overwritten the zeros
            // there.
            changed.extend(all.clone());
        }
        // Clear the hashes of changed pieces first, so that a process that dies before the end
        // leaves no wrong hash.
        for piece in &changed {
            state.put_hash(*piece, None)?;
        }
        if !hashes {
            return Ok(None);
        }
        let mut unknown = Vec::new();
        for piece in all.clone() {
            if state.hash_of(piece, bytes)?.is_none() {
                unknown.push(piece);
            }
        }
        let total: u64 = unknown.len() as u64 * PIECE_BYTES;
        let progress = |done| self.options.tell(done, total);
        let work = Work::new(context, data, &self.options, &progress);
        for (piece, hash) in unknown.iter().zip(work.hash(&unknown)?) {
            state.put_hash(*piece, Some(&hash))?;
        }
        let known: Result<Option<Vec<_>>> = all.map(|piece| state.hash_of(piece, bytes)).collect();
        Ok(known?.map(|pieces| hash::combine(&pieces, bytes)))
    }

    fn write_source(&mut self, mut source: Source<'_>) -> Result<()> {
        source.place_in(&self.updater.manifest)?;
        self.write_placed(&source)
    }

    fn write_placed(&mut self, source: &Source<'_>) -> Result<()> {
        self.written.extend(source.parts(u64::MAX));
        // The flag is set until the write has succeeded, so that an early return leaves it set.
        let had_failed = mem::replace(&mut self.has_failed, true);
        let total = source.parts(u64::MAX).iter().map(|(_, len)| len).sum();
        let progress = |done| self.options.tell(done, total);
        let Updater { context, data, .. } = &*self.updater;
        let work = Work::new(context, data, &self.options, &progress);
        work.write(source)?;
        self.has_failed = had_failed;
        Ok(())
    }

    /// Ends the update, and notifies all waiting processes.
    fn leave(&mut self, phase: Phase) -> Result<()> {
        let Some(moment) = self.moment.take() else {
            return Ok(());
        };
        let state = &self.updater.state;
        let is_ours = state.change(moment, moment.next(phase))?;
        self.updater.event.signal()?;
        match is_ours {
            true => Ok(()),
            false => Err(Error::Superseded),
        }
    }
}

impl Drop for Update<'_> {
    fn drop(&mut self) {
        let phase = match self.written.is_empty() && !self.must_be_full() {
            // An update that was refused may have written nothing.
            true => Phase::Stable,
            false => Phase::Torn,
        };
        // If this fails, other processes detect the end of the update when this process ends.
        let _ = self.leave(phase);
    }
}

/// Merges ranges into as few as possible, in order.
fn merged(ranges: &mut [(u64, u64)]) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, len) in ranges.iter().copied().filter(|(_, len)| *len > 0) {
        match merged.last_mut() {
            Some((first, known)) if start <= *first + *known => {
                *known = (*known).max(start + len - *first);
            }
            _ => merged.push((start, len)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn ranges_are_merged() {
        let mut ranges = [(10, 5), (0, 4), (4, 2), (12, 1), (15, 1), (20, 0), (30, 1)];
        assert_eq!(merged(&mut ranges), [(0, 6), (10, 6), (30, 1)]);
    }
}
