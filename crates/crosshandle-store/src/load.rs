//! Loading of models from files or from the program's memory, into new memory for a holder.

use crate::contents::hash::{self, PieceHash};
use crate::contents::{self, Work};
use crate::error::Result;
use crate::manifest::Manifest;
use crate::model::check_readable;
use crate::placement::choose_agreed;
use crate::source::{NamedRange, Source};
use crate::state::State;
use crate::store::{DATA, MANIFEST, STATE, Store};
use crate::{Error, Hash};
use crosshandle::holder::{HandedOver, HoldOptions};
use crosshandle::{AllocationOptions, Context, Memory};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of bytes that a thread reads at a time before it hashes them. The bytes are then still in
/// the second-level cache of the processor. With fewer, reading takes more calls. With more, the
/// bytes do not fit into caches of 1 MiB.
const PART_BYTES: usize = 512 << 10;

/// Default size in bytes of each of a thread's two staging buffers. With smaller buffers the start
/// of each copy costs time. With larger buffers, the driver takes longer to allocate them, one
/// after the other.
const STAGE_BYTES: usize = 4 << 20;

/// Minimum and maximum size in bytes of parts and staging buffers that a program can choose.
const MIN_STEP_BYTES: usize = 4 << 10;

const MAX_STEP_BYTES: usize = 1 << 30;

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Options for loading a model.
#[derive(Clone)]
pub struct LoadOptions {
    threads: usize,
    staging_bytes: usize,
    part_bytes: usize,
    pub(crate) expected: Option<Hash>,
    pub(crate) is_direct: bool,
    pub(crate) metadata: BTreeMap<String, String>,
    progress: Progress,
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("threads", &self.threads)
            .field("staging_bytes", &self.staging_bytes)
            .field("part_bytes", &self.part_bytes)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadOptions {
    /// Creates options with defaults: as many threads as the process may use, at most 16.
    pub fn new() -> Self {
        Self {
            threads: contents::usual_threads(),
            staging_bytes: STAGE_BYTES,
            part_bytes: PART_BYTES,
            expected: None,
            is_direct: false,
            metadata: BTreeMap::new(),
            progress: Arc::new(|_, _| {}),
        }
    }

    /// Sets the number of threads that read and hash. At least one is used.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the size in bytes of each thread's two staging buffers (default: 4 MiB, maximum: 8
    /// MiB). Memory that the host cannot access is written through them.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Sets the number of bytes that a thread reads at a time before it hashes them (default: 512
    /// KiB).
    pub fn part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = bytes;
        self
    }

    /// Sets the hash that the model must have.
    pub fn expecting(mut self, hash: Hash) -> Self {
        self.expected = Some(hash);
        self
    }

    /// Sets whether files are read without the page cache (default: `false`). This is faster if the
    /// storage is faster than the page cache. The file system must support it.
    pub fn direct(mut self, is_direct: bool) -> Self {
        self.is_direct = is_direct;
        self
    }

    /// Adds entries to the metadata of the files. An entry replaces the files' entry with the same
    /// key. The metadata is part of the model's hash.
    pub fn metadata(
        mut self,
        texts: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Self {
        let texts = texts.into_iter();
        (self.metadata).extend(texts.map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Sets a callback for progress. Each loading thread calls it with the number of bytes that
    /// were just loaded, and the total number of bytes.
    pub fn progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Arc::new(progress);
        self
    }
}

impl LoadOptions {
    /// Returns an error if the loaded model does not have the expected hash.
    pub(crate) fn check(&self, found: Hash) -> Result<()> {
        match self.expected {
            Some(expected) if expected != found => Err(Error::OtherModel {
                name: "the loaded model".into(),
                expected,
                found,
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads.max(1)
    }

    /// Returns the size of a staging buffer. A piece uses both buffers of a thread.
    pub(crate) fn staging(&self) -> usize {
        let most = hash::PIECE_BYTES as usize / 2;
        self.staging_bytes.clamp(MIN_STEP_BYTES, most)
    }

    pub(crate) fn part(&self) -> usize {
        self.part_bytes.clamp(MIN_STEP_BYTES, MAX_STEP_BYTES)
    }

    pub(crate) fn tell(&self, bytes: u64, all: u64) {
        (self.progress)(bytes, all);
    }
}

/// Durations of the steps of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LoadTiming {
    /// Time to allocate the memory.
    pub allocation: Duration,
    /// Time of the slowest thread to allocate its staging buffers. This is a part of `filling`.
    pub staging: Duration,
    /// Time to read, to hash, and to copy to the device.
    pub filling: Duration,
}

/// A model that this process has loaded. Dropping this value frees the memory, unless a holder
/// keeps it.
#[derive(Debug)]
pub struct Loaded {
    store: Store,
    manifest: Manifest,
    hash: Hash,
    data: Memory,
    listing: Memory,
    state: State,
    timing: LoadTiming,
}

/// The result of a function that fills the memory: the hashes, and the time that staging buffers
/// took.
type Filled = (Vec<PieceHash>, Duration);

impl Loaded {
    /// Loads a model from files or from host memory.
    pub(crate) fn read(
        store: &Store,
        device: &str,
        source: &Source<'_>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Self::new(store, device, source, options, |work, every| {
            let pieces = work.fill(source, every, None)?;
            Ok((pieces, work.staging_time()))
        })
    }

    /// Loads a model from tensors that the device can access. The device copies them.
    pub(crate) fn copy(
        store: &Store,
        device: &str,
        tensors: impl IntoIterator<Item = NamedRange>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let (source, copies) = Source::of_ranges(tensors)?;
        let source = source.with(&options.metadata);
        Self::new(store, device, &source, options, |work, every| {
            work.copy(&copies, &source.gaps())?;
            let pieces = work.hash(every)?;
            Ok((pieces, work.staging_time()))
        })
    }

    fn new(
        store: &Store,
        device: &str,
        source: &Source<'_>,
        options: &LoadOptions,
        fill: impl FnOnce(&Work<'_>, &[u64]) -> Result<Filled>,
    ) -> Result<Self> {
        let context = store.context_on(device)?;
        let begin = Instant::now();
        let data = allocate(&context, source)?;
        let allocation = begin.elapsed();
        let all = source.bytes;
        let progress = |bytes| options.tell(bytes, all);
        let work = Work::new(&context, &data, options, &progress);
        let every: Vec<u64> = (0..hash::pieces(all)).collect();
        let (pieces, staging) = fill(&work, &every)?;
        let timing = LoadTiming {
            allocation,
            staging,
            filling: begin.elapsed() - allocation,
        };
        let manifest = source.manifest(Some(hash::combine(&pieces, all)));
        let text = manifest.to_bytes();
        let hash = blake3::hash(&text);
        options.check(hash)?;
        let host = store.context_on("host")?;
        let listing = host.allocate(text.len())?;
        listing.write(0, &text)?;
        let state = State::create(&host, choose_agreed(data.len()), &pieces)?;
        Ok(Self {
            store: store.clone(),
            manifest,
            hash,
            data,
            listing,
            state,
            timing,
        })
    }

    /// Returns the manifest, which describes the memory.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the model's hash, which covers names, types, shapes and contents.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the memory that contains all tensors.
    pub fn memory(&self) -> &Memory {
        &self.data
    }

    /// Returns the durations of the steps of the load.
    pub fn timing(&self) -> LoadTiming {
        self.timing
    }

    /// Hands the model over to the holder under a name. First opens the model like a reader, so
    /// that an unreadable model does not replace an earlier version. Replaces the label in
    /// `options` by the model's hash.
    ///
    /// # Errors
    /// Returns the errors of [`Holder::hand_over`](crosshandle::holder::Holder::hand_over) and
    /// [`Store::open`].
    pub fn publish(&self, name: &str, options: HoldOptions) -> Result<HandedOver> {
        let options = options.label(self.hash.to_hex().as_str());
        let parts = [
            (DATA, &self.data),
            (MANIFEST, &self.listing),
            (STATE, self.state.memory()),
        ];
        check_readable(&self.store, name, &parts, self.hash)?;
        Ok(self.store.holder().hand_over(name, &parts, options)?)
    }
}

pub(crate) fn allocate(context: &Context, source: &Source<'_>) -> Result<Memory> {
    if source.bytes == 0 {
        let why = "there are no bytes to load";
        return Err(Error::Invalid(why.into()));
    }
    let len = usize::try_from(source.bytes)
        .map_err(|_| Error::Invalid("the tensors have more bytes than can be addressed".into()))?;
    // Allocate all pages now. If the model is too large, this call fails, instead of a later write
    // killing this process.
    Ok(context.allocate_with(AllocationOptions::new(len).populate(true))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::NamedBytes;

    #[test]
    fn what_no_reader_could_open_is_not_handed_over() {
        let directory = std::env::temp_dir().join(format!("xh-unread-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        let store = Store::new().socket_dir(&directory);
        let tensor = |name: &str| NamedBytes {
            name: name.into(),
            dtype: "U8".into(),
            shape: vec![4],
            bytes: &[1, 2, 3, 4],
        };
        let publish = |harm: &dyn Fn(&Loaded)| {
            let loaded = store.load_tensors("host", [tensor("t")], &LoadOptions::new());
            let loaded = loaded.expect("loaded");
            harm(&loaded);
            let published = loaded.publish("model", HoldOptions::new().replaces(true));
            published.expect_err("there is no holder")
        };
        // An undamaged model fails only because there is no holder.
        assert!(publish(&|_| ()).is_gone());
        let no_model = publish(&|loaded| loaded.listing.write(0, b"[").expect("inside"));
        assert!(matches!(no_model, Error::NotAModel { .. }), "{no_model}");
        let other = publish(&|loaded| {
            let text = loaded.manifest.to_bytes();
            let at = text
                .iter()
                .position(|byte| *byte == b't')
                .expect("its name");
            loaded.listing.write(at, b"f").expect("inside");
        });
        assert!(!other.is_gone(), "{other}");
        let torn = publish(&|loaded| {
            let now = loaded.state.look().expect("words");
            let torn = now.next(crate::state::Phase::Torn);
            assert!(loaded.state.change(now, torn).expect("words"));
        });
        assert!(matches!(torn, Error::Torn), "{torn}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
