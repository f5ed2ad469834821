//! What a context has mapped of other processes' memory.

use super::core::ContextCore;
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{Fields, Secret};
use crate::ipc::{Attachment, Origin};
use crate::pool::DEDICATED;
use crate::types::Access;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// A segment of another process, mapped here.
pub(crate) struct Imported {
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) memory: Arc<dyn Segment>,
}

/// How long a mapping is kept.
enum Kept {
    /// As long as the context: many allocations share the segment.
    Long(Arc<Imported>),
    /// As long as something in it is open.
    WhileOpen(Weak<Imported>),
}

impl Kept {
    fn get(&self) -> Option<Arc<Imported>> {
        match self {
            Self::Long(imported) => Some(Arc::clone(imported)),
            Self::WhileOpen(imported) => imported.upgrade(),
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    secret: [u64; 2],
    segment: u32,
    access: Access,
}

/// Secrets are random, so folding them is hashing enough.
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

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type FoldMap<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

#[derive(Default)]
pub(super) struct Imports {
    attachments: RwLock<FoldMap<[u64; 2], Arc<Attachment>>>,
    segments: RwLock<FoldMap<Key, Kept>>,
}

fn words(secret: Secret) -> [u64; 2] {
    let number = u128::from_ne_bytes(*secret.as_bytes());
    [number as u64, (number >> 64) as u64]
}

impl Imports {
    #[inline]
    pub(super) fn attachment(&self, fields: &Fields, origin: &Origin) -> Result<Arc<Attachment>> {
        let key = words(fields.secret);
        let attachments = self
            .attachments
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(attachment) = attachments.get(&key) {
            if attachment.is_hung_up() {
                return Err(Error::ExporterGone { pid: fields.pid });
            }
            return Ok(Arc::clone(attachment));
        }
        drop(attachments);
        self.attach(key, fields, origin)
    }

    #[cold]
    fn attach(&self, key: [u64; 2], fields: &Fields, origin: &Origin) -> Result<Arc<Attachment>> {
        let attachment = Attachment::to(fields, origin)?;
        self.drop_hung_up();
        let mut attachments = self
            .attachments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(attachments.entry(key).or_insert(attachment)))
    }

    /// Lets go of exporters that are gone, and of their memory that nobody has open.
    pub(super) fn drop_hung_up(&self) {
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let unused: Vec<_> = segments
            .extract_if(|_, kept| match kept {
                Kept::Long(imported) => imported.attachment.is_hung_up(),
                Kept::WhileOpen(imported) => imported.strong_count() == 0,
            })
            .collect();
        drop(segments);
        let mut attachments = self
            .attachments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = attachments
            .extract_if(|_, attachment| attachment.is_hung_up())
            .collect();
        drop(attachments);
        // Unmapped and closed without a lock.
        drop((unused, gone));
    }
}

impl ContextCore {
    /// The segment that a handle's memory lies in, mapped now if it isn't yet.
    #[inline]
    pub(crate) fn imported(
        self: &Arc<Self>,
        fields: &Fields,
        access: Access,
    ) -> Result<Arc<Imported>> {
        let key = Key {
            secret: words(fields.secret),
            segment: fields.segment,
            access,
        };
        if let Some(imported) = self.imports.find(&key) {
            if imported.attachment.is_hung_up() {
                return Err(Error::ExporterGone { pid: fields.pid });
            }
            return Ok(imported);
        }
        self.import(key, fields)
    }

    #[cold]
    fn import(self: &Arc<Self>, key: Key, fields: &Fields) -> Result<Arc<Imported>> {
        let attachment = self.attachment(fields)?;
        let fetched = attachment.fetch(fields, key.access)?;
        // Before a driver hears of it.
        if fetched.len != fields.segment_length {
            return Err(Error::Extent {
                claimed: fields.segment_length,
                actual: fetched.len,
            });
        }
        let memory = self.backend().import_segment(fetched.into(), key.access)?;
        let imported = Arc::new(Imported { attachment, memory });
        let kept = if fields.segment & DEDICATED == 0 {
            Kept::Long(Arc::clone(&imported))
        } else {
            Kept::WhileOpen(Arc::downgrade(&imported))
        };
        let segments = &self.imports.segments;
        let mut segments = segments.write().unwrap_or_else(PoisonError::into_inner);
        // Rarely, so that the cost of looking spreads: forget what was closed.
        if segments.len() == segments.capacity() {
            segments.retain(
                |_, kept| !matches!(kept, Kept::WhileOpen(gone) if gone.strong_count() == 0),
            );
        }
        // Another thread may have been faster; then its mapping serves for both.
        if let Some(other) = segments.get(&key).and_then(Kept::get) {
            return Ok(other);
        }
        segments.insert(key, kept);
        Ok(imported)
    }
}

impl Imports {
    #[inline]
    fn find(&self, key: &Key) -> Option<Arc<Imported>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.get(key)?.get()
    }
}
