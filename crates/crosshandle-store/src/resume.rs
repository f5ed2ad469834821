//! Loads that continue after their loader was killed.
//!
//! The loader first hands the empty memory over to the holder. The memory has a temporary name and
//! an unfinished update, so readers reject it. Whenever a piece is complete, the loader records the
//! hash of the piece in the model's `state`.
//!
//! A process that loads the same files under the same name finds this memory. It hashes the
//! recorded pieces again, and reads only the pieces that are missing or damaged. At the end, the
//! memory gets its final name, and the temporary name is removed.

use crate::contents::Work;
use crate::contents::hash::{self, PieceHash};
use crate::error::{Error, Result};
use crate::load::{LoadTiming, allocate};
use crate::manifest::Manifest;
use crate::model::Parts;
use crate::placement::choose_agreed;
use crate::source::Source;
use crate::state::{Moment, Phase, State};
use crate::store::{DATA, MANIFEST, STATE, Store};
use crate::tuning::UPDATE_PATIENCE;
use crate::{Hash, LoadOptions};
use crosshandle::holder::{HandedOver, HoldOptions};
use crosshandle::{
    Access, Context, Event, EventOptions, Memory, adapter_support::Deadline, holder::HolderFault,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum time that a loader waits for another loader that uses the same name. It is longer than
/// [`CLAIM_PATIENCE`], so that the loader detects a process that died during its claim.
const LOADER_PATIENCE: Duration = Duration::from_millis(600);

/// Suffix of a model's name while it is being loaded.
const SUFFIX: &str = "+loading";

/// A model that was loaded and published.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Publication {
    /// The holder's reply to the hand-over.
    pub handed_over: HandedOver,
    /// The hash of the model.
    pub hash: Hash,
    /// The manifest, which describes the model's memory.
    pub manifest: Manifest,
    /// Number of bytes that this load did not have to read, because an earlier loader had loaded
    /// them.
    pub resumed_bytes: u64,
    /// Durations of the steps of the load.
    pub timing: LoadTiming,
}

/// A load in progress. If it is dropped, the load can be resumed.
struct Loading {
    state: State,
    listing: Memory,
    data: Memory,
    event: Event,
    moment: Option<Moment>,
}

impl Drop for Loading {
    fn drop(&mut self) {
        // If this fails, the next loader can continue after this process has ended.
        let _ = self.leave(Phase::Torn);
    }
}

impl Loading {
    /// Writes the phase to the model's state, so that the next process can load.
    fn leave(&mut self, phase: Phase) -> Result<()> {
        let Some(moment) = self.moment.take() else {
            return Ok(());
        };
        let is_ours = self.state.change(moment, moment.next(phase))?;
        self.event.signal()?;
        match is_ours {
            true => Ok(()),
            false => Err(Error::Superseded),
        }
    }

    /// Allocates memory for a model and hands it over while it is still empty.
    fn begin(
        store: &Store,
        context: &Context,
        source: &Source<'_>,
        partial: &str,
        hold: HoldOptions,
    ) -> Result<Self> {
        let data = allocate(context, source)?;
        let host = store.context_on("host")?;
        let text = source.manifest(None).to_bytes();
        let listing = host.allocate(text.len())?;
        listing.write(0, &text)?;
        let pieces = hash::pieces(source.bytes);
        let state = State::create_empty(&host, choose_agreed(data.len()), pieces)?;
        let event = event(&host)?;
        let moment = state.claim(&event, Deadline::after(LOADER_PATIENCE))?;
        let loading = Self {
            state,
            listing,
            data,
            event,
            moment: Some(moment),
        };
        let parts = [
            (DATA, &loading.data),
            (MANIFEST, &loading.listing),
            (STATE, loading.state.memory()),
        ];
        store.holder().hand_over(partial, &parts, hold)?;
        Ok(loading)
    }

    /// Claims an unfinished load. If it was for other files, removes it and returns `None`.
    fn resume(store: &Store, context: &Context, parts: Parts, label: &str) -> Result<Option<Self>> {
        let event = event(parts.state.host())?;
        let claimed = parts.state.claim(&event, Deadline::after(LOADER_PATIENCE));
        let moment = claimed.map_err(|error| match error.is_timeout() {
            true => Error::Invalid(format!(
                "another process is loading {}: wait for it, or end it",
                parts.name()
            )),
            false => error,
        })?;
        let is_other = parts.label() != label;
        let data = match is_other {
            true => None,
            false => Some(context.open_memory(&parts.data)?),
        };
        let name = parts.name().to_owned();
        let Some(data) = data else {
            drop(parts);
            store.holder().remove(&name)?;
            return Ok(None);
        };
        Ok(Some(Self {
            state: parts.state,
            listing: parts.listing,
            data,
            event,
            moment: Some(moment),
        }))
    }

    /// Returns the pieces whose recorded hashes still match the memory, and their hashes.
    fn verified(&self, work: &Work<'_>, bytes: u64) -> Result<Vec<(u64, PieceHash)>> {
        let mut noted = Vec::new();
        for piece in 0..hash::pieces(bytes) {
            if let Some(hash) = self.state.hash_of(piece, bytes)? {
                noted.push((piece, hash));
            }
        }
        let pieces: Vec<u64> = noted.iter().map(|(piece, _)| *piece).collect();
        let found = work.hash(&pieces)?;
        noted.retain({
            let mut found = found.iter();
            move |(_, hash)| {
                found
                    .next()
                    .is_some_and(|it| it.to_bytes() == hash.to_bytes())
            }
        });
        Ok(noted)
    }
}

fn event(host: &Context) -> Result<Event> {
    let event = host.create_event_with(EventOptions::new().isolated(true))?;
    event.set_name("load");
    Ok(event)
}

/// Loads files under a name, or continues an unfinished load of the same files.
pub(crate) fn load(
    store: &Store,
    device: &str,
    paths: &[PathBuf],
    name: &str,
    options: &LoadOptions,
    hold: HoldOptions,
) -> Result<Publication> {
    let source = Source::of_files(paths, options)?;
    let bytes = source.bytes;
    let context = store.context_on(device)?;
    let partial = format!("{name}{SUFFIX}");
    let label = label(&source, &context)?;
    let begin = Instant::now();
    let mut resumed = None;
    if let Some(parts) = left_behind(store, &partial)? {
        if is_named(store, name, &parts) {
            // The earlier loader died after it had given the memory its final name. The model may
            // already be in use.
            store.holder().remove(&partial)?;
        } else {
            resumed = Loading::resume(store, &context, parts, &label)?;
        }
    }
    let is_resumed = resumed.is_some();
    let mut loading = match resumed {
        Some(loading) => loading,
        None => {
            let hold = hold.clone().label(&label).replaces(false);
            Loading::begin(store, &context, &source, &partial, hold)?
        }
    };
    let allocation = begin.elapsed();
    let progress = |done| options.tell(done, bytes);
    let work = Work::new(&context, &loading.data, options, &progress);
    let mut there = match is_resumed {
        true => loading.verified(&work, bytes)?,
        false => Vec::new(),
    };
    let mut missing: Vec<u64> = (0..hash::pieces(bytes)).collect();
    missing.retain(|piece| {
        there
            .binary_search_by_key(piece, |(piece, _)| *piece)
            .is_err()
    });
    let resumed_bytes = there.len() as u64 * hash::PIECE_BYTES;
    for piece in &missing {
        // Clear a recorded hash that is wrong.
        loading.state.put_hash(*piece, None)?;
    }
    let note = |piece: u64, hash: &PieceHash| loading.state.put_hash(piece, Some(hash));
    let filled = work.fill(&source, &missing, Some(&note))?;
    let staging = work.staging_time();
    there.extend(missing.into_iter().zip(filled));
    there.sort_unstable_by_key(|(piece, _)| *piece);
    let pieces: Vec<PieceHash> = there.into_iter().map(|(_, hash)| hash).collect();
    let manifest = source.manifest(Some(hash::combine(&pieces, bytes)));
    let text = manifest.to_bytes();
    let hash = blake3::hash(&text);
    if let Err(error) = options.check(hash) {
        // The files do not have the expected contents, so the partial load is useless.
        store.holder().remove(&partial)?;
        return Err(error);
    }
    if text.len() != loading.listing.len() {
        return Err(Error::OtherLayout(partial));
    }
    loading.listing.write(0, &text)?;
    loading.leave(Phase::Stable)?;
    let timing = LoadTiming {
        allocation,
        staging,
        filling: begin.elapsed() - allocation,
    };
    let held = store.holder().open_to_write(&partial)?;
    let access = Access::ReadOnly;
    let deadline = Deadline::after(UPDATE_PATIENCE);
    Parts::of(store, held.clone(), access, deadline)?.check_readable(store, hash)?;
    let hold = hold.label(hash.to_hex().as_str());
    let handed_over = store.holder().hold_as(&held, name, hold)?;
    store.holder().remove(&partial)?;
    Ok(Publication {
        handed_over,
        hash,
        manifest,
        resumed_bytes: resumed_bytes.min(bytes),
        timing,
    })
}

/// Returns a label that identifies the files and the device.
fn label(source: &Source<'_>, context: &Context) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(source.identity()?.as_bytes());
    hasher.update(&source.manifest(None).to_bytes());
    hasher.update(format!("{:?}", context.device().info().uuid).as_bytes());
    Ok(format!("loading {}", hasher.finalize().to_hex()))
}

/// Returns the unfinished load under a name.
fn left_behind(store: &Store, partial: &str) -> Result<Option<Parts>> {
    let deadline = Deadline::after(UPDATE_PATIENCE);
    match Parts::open(store, partial, Access::ReadWrite, deadline) {
        Ok(parts) => Ok(Some(parts)),
        Err(Error::Crosshandle(crosshandle::Error::Holder {
            fault: HolderFault::NoSuchName,
            ..
        })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns `true` if a name already refers to this memory.
fn is_named(store: &Store, name: &str, parts: &Parts) -> bool {
    let held = store.holder().open_to_write(name).ok();
    let data = held.as_ref().and_then(|held| held.part(DATA)?.handle);
    data == Some(parts.data)
}
