//! Loading: from a source into new memory, which a holder may take over.

use crate::contents::{self, Work};
use crate::error::Result;
use crate::hash;
use crate::manifest::Manifest;
use crate::source::Source;
use crate::state::State;
use crate::store::{DATA, MANIFEST, STATE, Store};
use crate::{Error, Hash};
use crosshandle::holder::{HandedOver, HoldOptions};
use crosshandle::{AllocationOptions, Memory};
use std::sync::Arc;

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How a model is loaded.
#[derive(Clone)]
pub struct LoadOptions {
    threads: usize,
    expected: Option<Hash>,
    pub(crate) is_direct: bool,
    progress: Progress,
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("threads", &self.threads)
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
    /// Returns the usual options: as many threads as the process may use, at most 16.
    pub fn new() -> Self {
        Self {
            threads: contents::usual_threads(),
            expected: None,
            is_direct: false,
            progress: Arc::new(|_, _| {}),
        }
    }

    /// Sets the number of threads that read and take the hash; at least one does.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the hash that the model must have.
    pub fn expecting(mut self, hash: Hash) -> Self {
        self.expected = Some(hash);
        self
    }

    /// Sets whether files are read past the page cache (default: no), for storage that is faster than that. The
    /// file system must allow it.
    pub fn direct(mut self, is_direct: bool) -> Self {
        self.is_direct = is_direct;
        self
    }

    /// Sets what is called with the bytes of each piece that is loaded and with those of all, by several
    /// threads.
    pub fn progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Arc::new(progress);
        self
    }
}

impl LoadOptions {
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.max(1)
    }

    pub(crate) fn tell(&self, bytes: u64, all: u64) {
        (self.progress)(bytes, all);
    }
}

/// A model that this process has loaded. Dropped, it is freed, unless a holder has taken it over.
#[derive(Debug)]
pub struct Loaded {
    store: Store,
    manifest: Manifest,
    hash: Hash,
    data: Memory,
    listing: Memory,
    state: State,
}

impl Loaded {
    pub(crate) fn new(
        store: &Store,
        device: &str,
        source: &Source<'_>,
        options: &LoadOptions,
    ) -> Result<Self> {
        if source.bytes == 0 {
            let why = "there is no tensor with a byte to load";
            return Err(Error::Invalid(why.into()));
        }
        let context = store.context_on(device)?;
        let len = usize::try_from(source.bytes).map_err(|_| {
            Error::Invalid("the tensors have more bytes than can be addressed".into())
        })?;
        // Too large a model is better refused than the end of this process.
        let data = context.allocate_with(AllocationOptions::new(len).populate(true))?;
        let all = source.bytes;
        let work = Work {
            context: &context,
            memory: &data,
            threads: options.thread_count(),
            progress: &|bytes| options.tell(bytes, all),
        };
        let pieces = work.fill(source)?;
        let data_hash = hash::combine(&pieces, all);
        let (tensors, metadata) = (source.tensors.clone(), source.metadata.clone());
        let manifest = Manifest::new(all, data_hash, tensors, metadata);
        let text = manifest.to_bytes();
        let hash = blake3::hash(&text);
        if let Some(expected) = options.expected.filter(|expected| *expected != hash) {
            return Err(Error::OtherModel {
                name: "what was loaded".into(),
                expected,
                found: hash,
            });
        }
        let host = store.context_on("host")?;
        let listing = host.allocate(text.len())?;
        listing.write(0, &text)?;
        let state = State::create(&host, data.as_ptr().addr(), &pieces)?;
        Ok(Self {
            store: store.clone(),
            manifest,
            hash,
            data,
            listing,
            state,
        })
    }

    /// Returns what the memory contains.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the model's hash, which stands for all of it.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the memory with all tensors.
    pub fn memory(&self) -> &Memory {
        &self.data
    }

    /// Hands the model over to the holder, under a name. The options' label is the model's hash.
    ///
    /// # Errors
    /// As [`Holder::hand_over`](crosshandle::holder::Holder::hand_over).
    pub fn publish(&self, name: &str, options: HoldOptions) -> Result<HandedOver> {
        let options = options.label(self.hash.to_hex().as_str());
        let parts = [
            (DATA, &self.data),
            (MANIFEST, &self.listing),
            (STATE, self.state.memory()),
        ];
        Ok(self.store.holder().hand_over(name, &parts, options)?)
    }
}
