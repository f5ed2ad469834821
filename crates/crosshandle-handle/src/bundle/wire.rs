//! Encodes bundles, and decodes them with every check.

use super::{
    Bundle, BundleError, BundledArray, Dimension, ElementType, Layout, MAX_ARRAYS, MAX_DESCRIPTION,
    MAX_DIMENSIONS, MAX_SIGNALS, MAX_STRUCTURE, MAX_TABLE, ReadyEvent,
};
use crate::{EVENT_HANDLE_SIZE, EventHandle, MEMORY_HANDLE_SIZE, MemoryHandle};

/// First bytes of a bundle of any version.
const MAGIC: &[u8; 3] = b"xhb";
/// Version of the format that this crate writes and reads, the byte after [`MAGIC`].
const VERSION: u8 = b'4';
const FLAG_TABLE: u32 = 1;
/// Type code and bits of a described element type. No numbered type has 0 bits.
const DESCRIBED: [u8; 2] = [255, 0];
/// Bytes of the shortest array, which has no dimensions.
const MIN_ARRAY_BYTES: usize = MEMORY_HANDLE_SIZE + 4 + 8 + 4;
const SIGNAL_BYTES: usize = 8 + EVENT_HANDLE_SIZE + 1;

/// The result of decoding a bundle's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unpacked {
    /// The complete bundle.
    Whole(Bundle),
    /// The head of a bundle whose table is in shared memory.
    Head(TableHead),
}

/// Numbers of arrays and signals in a table, and the length of its structure in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    arrays: usize,
    signals: usize,
    structure: usize,
}

impl Counts {
    fn check(self) -> Result<Self, BundleError> {
        let limits = [
            ("arrays", self.arrays, MAX_ARRAYS),
            ("signals", self.signals, MAX_SIGNALS),
            ("bytes of structure", self.structure, MAX_STRUCTURE),
        ];
        match limits.iter().find(|(_, count, most)| count > most) {
            Some(&(what, _, most)) => Err(BundleError::TooLarge { what, most }),
            None => Ok(self),
        }
    }

    /// Returns the length in bytes of the shortest table with these numbers of parts.
    fn shortest_table(self) -> usize {
        self.structure + self.signals * SIGNAL_BYTES + self.arrays * MIN_ARRAY_BYTES
    }
}

/// The head of a bundle whose table is in shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableHead {
    counts: Counts,
    table: MemoryHandle,
    len: usize,
    sum: u32,
}

impl TableHead {
    /// Returns the handle of the memory that holds the table.
    pub fn table(&self) -> &MemoryHandle {
        &self.table
    }

    /// Returns the length of the table in bytes, which is at most [`MAX_TABLE`] and at most the
    /// length of the memory.
    #[allow(clippy::len_without_is_empty, reason = "no table is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Decodes the rest of the bundle from a copy of its table.
    ///
    /// # Errors
    /// Returns [`BundleError`] if `table` is not a valid table of this bundle.
    pub fn finish(self, table: &[u8]) -> Result<Bundle, BundleError> {
        if table.len() != self.len {
            return Err(BundleError::TooShort);
        }
        if crc32c::crc32c(table) != self.sum {
            return Err(BundleError::Damaged);
        }
        read_table(Reader(table), self.counts)
    }
}

impl Bundle {
    /// Encodes the complete bundle.
    ///
    /// # Errors
    /// Returns [`BundleError`] if the bundle exceeds a limit, or if an array is not entirely inside
    /// the memory of its handle.
    pub fn encode(&self) -> Result<Vec<u8>, BundleError> {
        let table = self.encode_table()?;
        let mut bytes = self.start(0);
        bytes.extend(table);
        Ok(finished(bytes))
    }

    /// Encodes the table alone, which the caller puts into shared memory.
    ///
    /// # Errors
    /// Returns the errors of [`encode`](Self::encode).
    pub fn encode_table(&self) -> Result<Vec<u8>, BundleError> {
        let counts = self.counts().check()?;
        let mut bytes = Vec::new();
        bytes.extend(self.structure.as_bytes());
        for signal in &self.signals {
            bytes.extend(signal.value.to_le_bytes());
            bytes.extend(signal.handle.as_bytes());
            bytes.push(u8::from(signal.is_complete));
        }
        for array in &self.arrays {
            let layout = &array.layout;
            layout.check(array.handle.len())?;
            check_ready(&array.ready, counts.signals)?;
            bytes.extend(array.handle.as_bytes());
            bytes.extend(match layout.element {
                ElementType::Numbered { code, bits } => [code, bits],
                ElementType::Described { .. } => DESCRIBED,
            });
            bytes.extend([u8::from(array.read_only), layout.dimensions.len() as u8]);
            bytes.extend(layout.offset.to_le_bytes());
            bytes.extend((array.ready.len() as u32).to_le_bytes());
            for Dimension { size, stride } in &layout.dimensions {
                bytes.extend(size.to_le_bytes());
                bytes.extend(stride.to_le_bytes());
            }
            if let ElementType::Described { bytes: size, text } = &layout.element {
                bytes.extend(size.to_le_bytes());
                bytes.extend((text.len() as u32).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
            bytes.extend(array.ready.iter().flat_map(|index| index.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// Encodes the head of a bundle whose table is in shared memory.
    /// [`encode_table`](Self::encode_table) made `table`, and the caller puts it at the start of
    /// the memory of `handle`.
    ///
    /// # Errors
    /// Returns [`BundleError::TooLarge`] if the table is longer than [`MAX_TABLE`], and
    /// [`BundleError::Malformed`] if the memory has no room for the table.
    pub fn encode_head(&self, handle: &MemoryHandle, table: &[u8]) -> Result<Vec<u8>, BundleError> {
        check_table(handle, table.len())?;
        let mut bytes = self.start(FLAG_TABLE);
        bytes.extend(handle.as_bytes());
        bytes.extend((table.len() as u64).to_le_bytes());
        bytes.extend(crc32c::crc32c(table).to_le_bytes());
        Ok(finished(bytes))
    }

    /// Returns the bytes with which every bundle begins.
    fn start(&self, flags: u32) -> Vec<u8> {
        let counts = self.counts();
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        for number in [
            flags,
            counts.arrays as u32,
            counts.signals as u32,
            counts.structure as u32,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    fn counts(&self) -> Counts {
        Counts {
            arrays: self.arrays.len(),
            signals: self.signals.len(),
            structure: self.structure.len(),
        }
    }

    /// Decodes a bundle, and allocates no more memory than the length of `bytes` justifies.
    ///
    /// # Errors
    /// Returns [`BundleError`] if `bytes` are not a valid bundle.
    pub fn decode(bytes: &[u8]) -> Result<Unpacked, BundleError> {
        if !bytes.starts_with(MAGIC) {
            return Err(BundleError::NotABundle);
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(BundleError::TooShort)?;
        let mut reader = Reader(body);
        let [.., version] = reader.array::<4>()?;
        if version != VERSION {
            return Err(BundleError::UnsupportedVersion {
                found: version.into(),
                supported: VERSION.into(),
            });
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(BundleError::Damaged);
        }
        let flags = reader.u32()?;
        if flags & !FLAG_TABLE != 0 {
            return Err(malformed("flags", "an unknown one is set"));
        }
        let counts = Counts {
            arrays: reader.u32()? as usize,
            signals: reader.u32()? as usize,
            structure: reader.u32()? as usize,
        };
        let counts = counts.check()?;
        if flags & FLAG_TABLE == 0 {
            return read_table(reader, counts).map(Unpacked::Whole);
        }
        let table = MemoryHandle::from_bytes(reader.take(MEMORY_HANDLE_SIZE)?)?;
        let len = reader.u64()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let sum = reader.u32()?;
        reader.end()?;
        check_table(&table, len)?;
        if len < counts.shortest_table() {
            return Err(malformed("table", "it is too short for its arrays"));
        }
        Ok(Unpacked::Head(TableHead {
            counts,
            table,
            len,
            sum,
        }))
    }
}

fn finished(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Checks that an array's signals belong to the bundle, and that none occurs twice.
fn check_ready(ready: &[u32], signals: usize) -> Result<(), BundleError> {
    let is_known = ready.last().is_none_or(|last| (*last as usize) < signals);
    match is_known && ready.is_sorted_by(|before, after| before < after) {
        true => Ok(()),
        false => Err(malformed("array", "its signals are none of the bundle's")),
    }
}

fn check_table(handle: &MemoryHandle, len: usize) -> Result<(), BundleError> {
    if len > MAX_TABLE {
        return Err(BundleError::TooLarge {
            what: "bytes of table",
            most: MAX_TABLE,
        });
    }
    match len as u64 > handle.len() {
        true => Err(malformed("table", "it is longer than its memory")),
        false => Ok(()),
    }
}

const fn malformed(part: &'static str, why: &'static str) -> BundleError {
    BundleError::Malformed { part, why }
}

/// Decodes a table, which is the whole rest of the reader's bytes.
fn read_table(mut reader: Reader<'_>, counts: Counts) -> Result<Bundle, BundleError> {
    // This check comes before any allocation, so that counts reserve no more room than the bytes
    // can fill.
    if counts.shortest_table() > reader.0.len() {
        return Err(BundleError::TooShort);
    }
    let structure = str::from_utf8(reader.take(counts.structure)?)
        .map_err(|_| malformed("structure", "it is no text"))?;
    let mut signals = Vec::new();
    for _ in 0..counts.signals {
        let value = reader.u64()?;
        let handle = EventHandle::from_bytes(reader.take(EVENT_HANDLE_SIZE)?)?;
        let is_complete = match reader.array()? {
            [0] => false,
            [1] => true,
            _ => return Err(malformed("signal", "its state has no such number")),
        };
        signals.push(ReadyEvent {
            handle,
            value,
            is_complete,
        });
    }
    let mut arrays = Vec::new();
    for _ in 0..counts.arrays {
        arrays.push(reader.bundled_array(counts.signals)?);
    }
    reader.end()?;
    Ok(Bundle {
        structure: structure.to_owned(),
        arrays,
        signals,
    })
}

/// The bytes that are not yet decoded.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BundleError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BundleError::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BundleError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BundleError::TooShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, BundleError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BundleError> {
        self.array().map(u64::from_le_bytes)
    }

    fn end(&self) -> Result<(), BundleError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(malformed("end", "there are bytes after it")),
        }
    }

    fn bundled_array(&mut self, signals: usize) -> Result<BundledArray, BundleError> {
        let handle = MemoryHandle::from_bytes(self.take(MEMORY_HANDLE_SIZE)?)?;
        let [code, bits, read_only, count] = self.array()?;
        if read_only > 1 {
            return Err(malformed("array", "its access has no such number"));
        }
        if usize::from(count) > MAX_DIMENSIONS {
            return Err(BundleError::TooLarge {
                what: "dimensions of an array",
                most: MAX_DIMENSIONS,
            });
        }
        let offset = self.u64()?;
        let waits = self.u32()? as usize;
        let mut dimensions = Vec::new();
        for _ in 0..count {
            dimensions.push(Dimension {
                size: self.u64()?,
                stride: self.array().map(i64::from_le_bytes)?,
            });
        }
        let element = match [code, bits] {
            DESCRIBED => self.description()?,
            _ => ElementType::Numbered { code, bits },
        };
        let layout = Layout {
            element,
            offset,
            dimensions,
        };
        layout.check(handle.len())?;
        // The bytes are taken before room is allocated for the signals, because a peer chose their
        // number.
        let ready = self.take(waits.saturating_mul(4))?.chunks_exact(4);
        let ready = ready.map(|index| u32::from_le_bytes([index[0], index[1], index[2], index[3]]));
        let ready = Vec::from_iter(ready);
        check_ready(&ready, signals)?;
        Ok(BundledArray {
            handle,
            read_only: read_only == 1,
            layout,
            ready,
        })
    }

    fn description(&mut self) -> Result<ElementType, BundleError> {
        let (bytes, len) = (self.u32()?, self.u32()? as usize);
        if len > MAX_DESCRIPTION {
            return Err(BundleError::TooLarge {
                what: "bytes of description of an array's elements",
                most: MAX_DESCRIPTION,
            });
        }
        let text = str::from_utf8(self.take(len)?)
            .map_err(|_| malformed("description of elements", "it is no text"))?;
        Ok(ElementType::Described {
            bytes,
            text: text.to_owned(),
        })
    }
}
