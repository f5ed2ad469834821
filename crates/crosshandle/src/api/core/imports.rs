//! Memory of other processes that a context has mapped.

#[cfg(test)]
mod tests;

use super::{ContextCore, read, write};
use crate::pool::DEDICATED;
use crosshandle_hal::common::pieced_segment::PiecedSegment;
use crosshandle_hal::{BackendContext, BackendDriverHandles, BackendSegment};
use crosshandle_handle::Fields;
use crosshandle_ipc::broker::Route;
use crosshandle_ipc::{
    Attachment, ContextId, Delivery, FetchedHandle, FetchedPieces, First, HandleAhead,
    OpenDeadline, Origin,
};
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::ImportedBytes;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, RwLock, Weak};

/// A segment of another process that is mapped in this process.
pub(crate) struct Imported {
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) memory: Arc<dyn BackendSegment>,
    /// `None` for memory that is counted elsewhere.
    _counted: Option<ImportedBytes>,
}

impl Imported {
    /// Wraps a segment whose bytes are already counted by the code that mapped it.
    pub(crate) fn new(attachment: Arc<Attachment>, memory: Arc<dyn BackendSegment>) -> Self {
        Self {
            attachment,
            memory,
            _counted: None,
        }
    }
}

/// A cached mapping, kept for a time that depends on its kind.
enum CachedImport {
    /// Kept while no memory in it is open, because many allocations share the segment. The number
    /// of such segments has a limit, [`MAX_UNUSED`].
    Shared(Arc<Imported>),
    /// Kept as long as memory in it is open.
    WhileOpen(Weak<Imported>),
}

impl CachedImport {
    fn get(&self) -> Option<Arc<Imported>> {
        match self {
            Self::Shared(imported) => Some(Arc::clone(imported)),
            Self::WhileOpen(imported) => imported.upgrade(),
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self, Self::WhileOpen(imported) if imported.strong_count() == 0)
    }

    fn is_unused(&self) -> bool {
        matches!(self, Self::Shared(imported) if Arc::strong_count(imported) == 1)
    }

    fn has_hung_up(&self) -> bool {
        matches!(self, Self::Shared(imported) if imported.attachment.is_hung_up())
    }
}

/// Mappings and attachments that are no longer needed. Dropping them may call a driver.
type Unused = (
    Vec<(SegmentKey, CachedImport)>,
    Vec<(ContextId, Arc<Attachment>)>,
);

/// The key of an exporter's segment that is mapped for one kind of access.
#[derive(PartialEq, Eq)]
struct SegmentKey {
    context: ContextId,
    segment: u32,
    access: Access,
}

impl SegmentKey {
    #[inline]
    fn of(fields: &Fields, access: Access) -> Self {
        Self {
            context: ContextId::of(fields),
            segment: fields.segment,
            access,
        }
    }
}

/// Memory that is mapped by its driver handle while the exporter is still checking the request.
struct MappedAhead<'a> {
    backend: &'a dyn BackendContext,
    /// The memory is the first element, so that it is unmapped while its open is still counted.
    mapped: Cell<Option<(Arc<dyn BackendSegment>, HandleAhead)>>,
}

impl<'a> MappedAhead<'a> {
    fn new(backend: &'a dyn BackendContext) -> Self {
        Self {
            backend,
            mapped: Cell::default(),
        }
    }

    /// Maps the memory if the handle is known. On failure, `finish` tries again and reports the
    /// reason.
    fn map(&self, fields: &Fields, attachment: &Arc<Attachment>) {
        // This is checked first, because most backends import no driver handles.
        if let Some(handles) = self.backend.driver_handles()
            && let Some(ahead) = attachment.driver_handle(fields)
            && let Ok(memory) = map_by(handles, fields, &ahead.found)
        {
            self.mapped.set(Some((memory, ahead)));
        }
    }

    /// Maps the memory that the exporter has delivered, or returns the early mapping if it matches.
    fn finish(
        &self,
        fields: &Fields,
        delivery: Delivery,
        access: Access,
    ) -> Result<Arc<dyn BackendSegment>> {
        match (delivery, self.mapped.take()) {
            (Delivery::DriverHandle(found), Some((memory, ahead))) if found == ahead.found => {
                Ok(memory)
            }
            (Delivery::DriverHandle(found), other) => {
                drop(other);
                let handles = self.backend.driver_handles();
                let handles = handles.ok_or(Error::Protocol("its memory has no descriptor"))?;
                map_by(handles, fields, &found)
            }
            (Delivery::Descriptor(fetched), _) => {
                check_extent(fields, fetched.len)?;
                self.backend.import_segment(fetched.into(), access)
            }
        }
    }
}

/// Maps memory by its driver handle.
fn map_by(
    handles: &dyn BackendDriverHandles,
    fields: &Fields,
    found: &FetchedHandle,
) -> Result<Arc<dyn BackendSegment>> {
    check_extent(fields, found.len)?;
    let len = usize::try_from(found.len).unwrap_or(usize::MAX);
    handles.import_handle(&found.handle, len)
}

/// Checks that the handle's range fits into its segment, before a driver is called.
fn check_extent(fields: &Fields, actual: u64) -> Result<()> {
    match fields.offset + fields.length {
        end if end > actual => Err(Error::Extent { end, actual }),
        _ => Ok(()),
    }
}

impl Hash for SegmentKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Only one word is hashed, because each further word would slow down the table. The word
        // does not depend on the access, because few segments are mapped for both kinds of access.
        state.write_u64(self.context.to_word() ^ u64::from(self.segment));
    }
}

/// A hasher that only mixes words. Mixing suffices, because the numbers of exporters are random.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Maximum number of shared segments without open memory that a context keeps when it maps another
/// one. An exporter replaces its segments in the course of time, so their number has no other
/// limit. A segment has at most 64 MiB. Mapping one again takes a request to the exporter.
const MAX_UNUSED: usize = 16;

/// Maximum number of successive holders of a record that may die during one request before the
/// record is treated as gone.
const MAX_TAKEOVERS: u32 = 8;

type FoldMap<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// The exporters that a context is attached to, and their mapped segments.
pub(super) struct Imports {
    /// Where and how exporters are looked for.
    pub(super) origin: Origin,
    attachments: RwLock<FoldMap<ContextId, Arc<Attachment>>>,
    segments: RwLock<FoldMap<SegmentKey, CachedImport>>,
}

impl Imports {
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            attachments: RwLock::default(),
            segments: RwLock::default(),
        }
    }

    /// Returns the attachment to a handle's exporter, and connects first if there is none yet.
    #[inline]
    pub(super) fn attachment(
        &self,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Attachment>> {
        self.attachment_by(Route::Exporter, fields, next, deadline)
    }

    #[inline]
    fn attachment_by(
        &self,
        route: Route,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Attachment>> {
        let key = ContextId::by(fields, route);
        let attachments = read(&self.attachments);
        if let Some(attachment) = attachments.get(&key) {
            if !attachment.is_hung_up() {
                return Ok(Arc::clone(attachment));
            }
            // A hung-up holder is replaced by its successor, so the request is sent again.
            if route == Route::Exporter {
                return Err(Error::ExporterGone { pid: fields.pid });
            }
        }
        drop(attachments);
        self.attach(key, route, fields, next, deadline)
    }

    /// Calls `fetch` with the attachment to the handle's exporter. If the exporter is gone or has
    /// handed the memory over, calls it with the attachment to the holder. Also returns the
    /// attachment that succeeded.
    pub(super) fn ask_either<R>(
        &self,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
        mut fetch: impl FnMut(&Arc<Attachment>) -> Result<R>,
    ) -> Result<(Arc<Attachment>, R)> {
        let attachment = self.attachment_by(Route::Exporter, fields, next, deadline);
        let asked = attachment.and_then(|attachment| {
            let fetched = fetch(&attachment)?;
            Ok((attachment, fetched))
        });
        let error = match asked {
            Err(error @ (Error::ExporterGone { .. } | Error::HolderGone)) => error,
            result => return result,
        };
        let mut takeovers = 0;
        loop {
            let holder = match self.attachment_by(Route::Holder, fields, next, deadline) {
                // No holder has the memory, or its holder no longer has it.
                Err(Error::ExporterGone { .. } | Error::Stale) => return Err(error),
                holder => holder?,
            };
            match fetch(&holder) {
                // This holder has died, and its successor takes over.
                Err(Error::ExporterGone { .. })
                    if holder.has_lost_exporter() && takeovers < MAX_TAKEOVERS =>
                {
                    takeovers += 1;
                }
                Err(Error::ExporterGone { .. } | Error::Stale) => return Err(error),
                fetched => return Ok((holder, fetched?)),
            }
        }
    }

    #[cold]
    fn attach(
        &self,
        key: ContextId,
        route: Route,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Attachment>> {
        let attachment = Attachment::to(fields, route, &self.origin, next, deadline)?;
        drop(self.take_unused(MAX_UNUSED));
        let mut attachments = write(&self.attachments);
        Ok(Arc::clone(attachments.entry(key).or_insert(attachment)))
    }

    /// Unmaps all segments in which no memory is open, and drops the attachments to exporters that
    /// are gone.
    pub(super) fn drop_unused(&self) {
        drop(self.take_unused(0));
    }

    /// Removes the attachments to exporters that are gone, and the segments in which no memory is
    /// open. Keeps the `kept` newest of the shared ones whose exporters still exist.
    fn take_unused(&self, kept: usize) -> Unused {
        let mut segments = write(&self.segments);
        let mut unused: Vec<u32> = segments
            .iter()
            .filter(|(_, cached)| cached.is_unused())
            .map(|(key, _)| key.segment)
            .collect();
        // An exporter numbers its segments in ascending order.
        unused.sort_unstable_by(|one, other| other.cmp(one));
        let last = unused.get(kept).copied();
        let unused: Vec<_> = segments
            .extract_if(|key, cached| {
                let is_old = cached.is_unused() && last.is_some_and(|last| key.segment <= last);
                is_old || cached.is_closed() || cached.has_hung_up()
            })
            .collect();
        drop(segments);
        let mut attachments = write(&self.attachments);
        let gone: Vec<_> = attachments
            .extract_if(|_, attachment| attachment.is_hung_up())
            .collect();
        drop(attachments);
        // The caller unmaps the segments, and closes the attachments, without holding a lock.
        (unused, gone)
    }

    /// Returns the segment of a handle's memory, mapped for `access`.
    #[inline]
    pub(super) fn segment(
        &self,
        core: &ContextCore,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Imported>> {
        let key = SegmentKey::of(fields, access);
        if let Some(imported) = self.find(&key)
            && !imported.attachment.is_hung_up()
        {
            return Ok(imported);
        }
        self.import(core, key, fields, deadline)
    }

    #[cold]
    fn import(
        &self,
        core: &ContextCore,
        key: SegmentKey,
        fields: &Fields,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Imported>> {
        let backend: &dyn BackendContext = &**core.backend();
        let mut pieced: Option<PiecedSegment> = None;
        let mut take = |pieces: FetchedPieces| {
            check_extent(fields, pieces.len)?;
            // A shared segment would keep its mappings as long as the context, and a process has a
            // limited number of them.
            if fields.segment & DEDICATED == 0 {
                return Err(Error::Protocol(
                    "memory of pieces has no allocation of its own",
                ));
            }
            let segment = match &mut pieced {
                Some(segment) => segment,
                None => pieced.insert(PiecedSegment::reserve(backend, pieces.len, key.access)?),
            };
            let mut pieces = pieces.batch.imports();
            pieces.try_for_each(|(import, part)| segment.add(backend, import, part))
        };
        let ahead = MappedAhead::new(backend);
        let fetched = self.ask_either(fields, First::Memory(key.access), deadline, |attachment| {
            let meanwhile = || ahead.map(fields, attachment);
            attachment.fetch_segment(fields, key.access, deadline, meanwhile, &mut take)
        });
        let (attachment, fetched) = match fetched {
            Ok(fetched) => fetched,
            Err(error) => {
                // The pieces are unmapped on another thread, because there may be thousands of them
                // and the deadline may have passed.
                if let Some(partial) = pieced {
                    driver_jobs::drop_later(partial);
                }
                return Err(error);
            }
        };
        let memory = match (fetched, pieced) {
            (Some(delivery), _) => ahead.finish(fields, delivery, key.access)?,
            (None, Some(pieced)) => pieced.finish()?,
            (None, None) => return Err(Error::Protocol("it sent no piece of its memory")),
        };
        Ok(self.add(key, attachment, memory))
    }

    /// Maps the segments of several handles together where that is faster than one by one. Returns
    /// references that keep them mapped. Segments that fail here are mapped, or their error is
    /// reported, when their handle is opened.
    pub(super) fn map_ahead(
        &self,
        core: &ContextCore,
        handles: &[Fields],
        access: Access,
        deadline: &OpenDeadline,
    ) -> Vec<Arc<Imported>> {
        let mut missing: Vec<(ContextId, Vec<Fields>)> = Vec::new();
        let mut known = HashSet::new();
        for fields in handles {
            let key = SegmentKey::of(fields, access);
            if core.check_memory(fields, access).is_err()
                || self.find(&key).is_some()
                || !known.insert((key.context, key.segment))
            {
                continue;
            }
            match missing
                .iter_mut()
                .find(|(context, _)| *context == key.context)
            {
                Some((_, of_context)) => of_context.push(*fields),
                None => missing.push((key.context, vec![*fields])),
            }
        }
        let mut mapped = Vec::new();
        for (_, fields) in missing.iter().filter(|(_, fields)| fields.len() > 1) {
            // Handles that fail here are opened one by one later.
            let _ = self.map_each(core, fields, access, deadline, &mut mapped);
        }
        mapped
    }

    /// Maps the segments of several handles of one exporting context.
    fn map_each(
        &self,
        core: &ContextCore,
        handles: &[Fields],
        access: Access,
        deadline: &OpenDeadline,
        mapped: &mut Vec<Arc<Imported>>,
    ) -> Result<()> {
        let backend: &dyn BackendContext = &**core.backend();
        let attachment = self.attachment(&handles[0], First::Memory(access), deadline)?;
        let ahead = MappedAhead::new(backend);
        let meanwhile = |fields: &Fields| ahead.map(fields, &attachment);
        attachment.fetch_each(handles, access, deadline, meanwhile, |fields, delivery| {
            // If other segments consist of pieces too, most of what the exporter sends would be
            // dropped.
            let delivery = delivery.ok_or(Error::Protocol("it consists of pieces"))?;
            let memory = ahead.finish(fields, delivery, access)?;
            let key = SegmentKey::of(fields, access);
            mapped.push(self.add(key, Arc::clone(&attachment), memory));
            Ok(())
        })
    }

    /// Caches a segment that was just mapped. Returns it, or the mapping of a thread that was
    /// faster.
    fn add(
        &self,
        key: SegmentKey,
        attachment: Arc<Attachment>,
        memory: Arc<dyn BackendSegment>,
    ) -> Arc<Imported> {
        let _counted = Some(ImportedBytes::new(memory.len()));
        let imported = Arc::new(Imported {
            attachment,
            memory,
            _counted,
        });
        let is_shared = key.segment & DEDICATED == 0;
        let cached = if is_shared {
            CachedImport::Shared(Arc::clone(&imported))
        } else {
            CachedImport::WhileOpen(Arc::downgrade(&imported))
        };
        let mut segments = write(&self.segments);
        // The table is scanned only when it would grow, so that the cost of the scan is spread over
        // many calls.
        if segments.len() == segments.capacity() {
            segments.retain(|_, cached| !cached.is_closed());
        }
        // If another thread was faster, both use its mapping.
        if let Some(other) = segments.get(&key).and_then(CachedImport::get)
            && !other.attachment.is_hung_up()
        {
            return other;
        }
        segments.insert(key, cached);
        drop(segments);
        if is_shared {
            let (unused, gone) = self.take_unused(MAX_UNUSED);
            if !unused.is_empty() || !gone.is_empty() {
                driver_jobs::drop_later((unused, gone));
            }
        }
        imported
    }

    #[inline]
    fn find(&self, key: &SegmentKey) -> Option<Arc<Imported>> {
        read(&self.segments).get(key)?.get()
    }
}
