//! Sources of tensors: one safetensors file, several files with an index, or the program's own
//! memory.

use crate::error::{Error, Result};
use crate::manifest::{ALIGNMENT, Manifest, TensorInfo};
use crate::{Hash, LoadOptions};
use crosshandle::handle::Bounded;
use crosshandle::{MemoryRange, SharedBytes};
use rustix::fs::OFlags;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileType, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a file's header, according to the safetensors format.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// A tensor in the program's own memory.
#[derive(Clone, Debug)]
pub struct NamedBytes<'a> {
    /// The name of the tensor.
    pub name: String,
    /// The element type, by its name in safetensors.
    pub dtype: String,
    /// The size of each dimension, in elements.
    pub shape: Vec<u64>,
    /// The elements, little-endian, in row-major order.
    pub bytes: &'a [u8],
}

/// A tensor in memory that a device can copy from.
#[derive(Clone, Debug)]
pub struct NamedRange {
    /// The name of the tensor.
    pub name: String,
    /// The element type, by its name in safetensors.
    pub dtype: String,
    /// The size of each dimension, in elements.
    pub shape: Vec<u64>,
    /// The elements, as in [`NamedBytes`]. `None` for a tensor without elements.
    pub range: Option<MemoryRange>,
}

enum Origin<'a> {
    File {
        path: PathBuf,
        file: File,
        /// The same file, opened without the page cache. `None` if the options do not require that.
        direct: Option<File>,
    },
    Bytes(&'a [u8]),
}

/// A run of bytes in an origin, and its destination in the model's memory.
struct Run {
    tensor: String,
    /// Offset of the first byte in the memory.
    to: u64,
    len: u64,
    origin: usize,
    /// Offset of the first byte in the origin.
    from: u64,
}

/// All tensors of a model, and their future places in its memory.
pub(crate) struct Source<'a> {
    origins: Vec<Origin<'a>>,
    /// The runs, in the order of their places in the memory.
    runs: Vec<Run>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) bytes: u64,
    is_direct: bool,
}

/// The index of a checkpoint with several files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl<'a> Source<'a> {
    fn empty() -> Self {
        Self {
            origins: Vec::new(),
            runs: Vec::new(),
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
            bytes: 0,
            is_direct: false,
        }
    }

    /// Reads the headers of safetensors files. A file that ends in `.json` is an index of other
    /// files in its directory, and a directory represents the checkpoint in it ([`files_of`]). The
    /// options select whether tensors are read without the page cache, and add metadata.
    pub(crate) fn of_files(paths: &[PathBuf], options: &LoadOptions) -> Result<Self> {
        let mut source = Self {
            is_direct: options.is_direct,
            ..Self::empty()
        };
        for path in paths {
            match path.is_dir() {
                true => files_of(path)?
                    .iter()
                    .try_for_each(|file| source.add_path(file))?,
                false => source.add_path(path)?,
            }
        }
        Ok(source.with(&options.metadata))
    }

    /// Adds metadata. An entry replaces an earlier entry with the same key.
    pub(crate) fn with(mut self, metadata: &BTreeMap<String, String>) -> Self {
        self.metadata.extend(metadata.clone());
        self
    }

    /// Creates a source from tensors in the program's own memory.
    pub(crate) fn of_bytes(tensors: impl IntoIterator<Item = NamedBytes<'a>>) -> Result<Self> {
        let mut source = Self::empty();
        for NamedBytes {
            name,
            dtype,
            shape,
            bytes,
        } in tensors
        {
            let origin = source.origins.len();
            source.origins.push(Origin::Bytes(bytes));
            let info = described(&name, dtype, shape, bytes.len())?;
            source.add(name, info, origin, 0).map_err(Error::Invalid)?;
        }
        Ok(source)
    }

    /// Assigns places to tensors that a device will copy. Also returns the place of each tensor.
    /// This source cannot be [read](Self::read).
    pub(crate) fn of_ranges(
        tensors: impl IntoIterator<Item = NamedRange>,
    ) -> Result<(Self, Vec<(u64, MemoryRange)>)> {
        let mut source = Self::empty();
        let mut copies = Vec::new();
        for NamedRange {
            name,
            dtype,
            shape,
            range,
        } in tensors
        {
            let info = described(
                &name,
                dtype,
                shape,
                range.as_ref().map_or(0, MemoryRange::len),
            )?;
            source
                .add(name.clone(), info, 0, 0)
                .map_err(Error::Invalid)?;
            copies.extend(range.map(|range| (source.tensors[&name].offset, range)));
        }
        Ok((source, copies))
    }

    /// Returns the offsets and lengths of the gaps between tensors.
    pub(crate) fn gaps(&self) -> Vec<(u64, u64)> {
        let ends = std::iter::once(0).chain(self.runs.iter().map(|run| run.to + run.len));
        let starts = self.runs.iter().map(|run| run.to);
        let gaps = ends.zip(starts).map(|(end, start)| (end, start - end));
        gaps.filter(|(_, len)| *len > 0).collect()
    }

    /// Creates a source from bytes for one place in a model's memory.
    pub(crate) fn of_run(tensor: &str, to: u64, bytes: &'a [u8], all: u64) -> Self {
        Self {
            origins: vec![Origin::Bytes(bytes)],
            runs: vec![Run {
                tensor: tensor.to_owned(),
                to,
                len: bytes.len() as u64,
                origin: 0,
                from: 0,
            }],
            bytes: all,
            ..Self::empty()
        }
    }

    /// Assigns a place to a tensor.
    fn add(
        &mut self,
        name: String,
        info: TensorInfo,
        origin: usize,
        from: u64,
    ) -> Result<(), String> {
        let len = info.bytes;
        // A tensor without elements gets offset 0, because the next aligned offset could be beyond
        // the end of the memory.
        let to = match len {
            0 => 0,
            _ => self.bytes.next_multiple_of(ALIGNMENT),
        };
        let end = to.checked_add(len).filter(|end| *end <= isize::MAX as u64);
        let end = end.ok_or("the tensors have more bytes than can be addressed")?;
        let info = TensorInfo { offset: to, ..info };
        if self.tensors.contains_key(&name) {
            return Err(format!("there are two tensors named {name}"));
        }
        self.tensors.insert(name.clone(), info);
        if len > 0 {
            self.runs.push(Run {
                tensor: name,
                to,
                len,
                origin,
                from,
            });
            self.bytes = end;
        }
        Ok(())
    }

    fn add_path(&mut self, path: &Path) -> Result<()> {
        match has_extension(path, "json") {
            true => self.add_index(path),
            false => self.add_file(path).map(drop),
        }
    }

    fn add_index(&mut self, path: &Path) -> Result<()> {
        let format = |why: String| Error::Format {
            path: path.to_owned(),
            why,
        };
        let file = open(path)?;
        let mut text = Vec::new();
        let read = file
            .take(MAX_HEADER_BYTES as u64 + 1)
            .read_to_end(&mut text);
        read.map_err(|source| io(path, source))?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| format(format!("it is not an index of a checkpoint: {error}")))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        let mut found = BTreeMap::new();
        for name in files {
            // The index may name only files in its own directory.
            if Path::new(name)
                .file_name()
                .is_none_or(|file| file != name.as_str())
            {
                return Err(format(format!(
                    "it names {name:?}, which is not a file in its directory"
                )));
            }
            for tensor in self.add_file(&directory.join(name))? {
                found.insert(tensor, name.clone());
            }
        }
        let missing = index
            .weight_map
            .iter()
            .find(|(tensor, file)| found.get(*tensor) != Some(*file));
        match missing {
            Some((tensor, file)) => Err(format(format!(
                "{file} does not contain its tensor {tensor}"
            ))),
            None => Ok(()),
        }
    }

    /// Adds the tensors of a file, and returns their names.
    fn add_file(&mut self, path: &Path) -> Result<Vec<String>> {
        let format = |why: String| Error::Format {
            path: path.to_owned(),
            why,
        };
        let file = open(path)?;
        let len = file.metadata().map_err(|source| io(path, source))?.len();
        let mut size = [0; 8];
        if len < 8 {
            return Err(format("it is too short for a safetensors file".into()));
        }
        file.read_exact_at(&mut size, 0)
            .map_err(|source| io(path, source))?;
        let size = u64::from_le_bytes(size);
        let header = Bounded::<MAX_HEADER_BYTES>::new(size).filter(|_| size <= len - 8);
        let Some(mut header) = header.and_then(Bounded::zeros) else {
            return Err(format(
                "it is not a safetensors file: its header would be longer than the file or the format's \
                 limit"
                    .into(),
            ));
        };
        file.read_exact_at(&mut header, 8)
            .map_err(|source| io(path, source))?;
        let metadata: safetensors::tensor::Metadata = serde_json::from_slice(&header)
            .map_err(|error| format(format!("its header is not a safetensors header: {error}")))?;
        let start = 8 + size;
        if start + metadata.data_len() as u64 != len {
            return Err(format(format!(
                "it has {len} bytes, but its header describes {}: was it copied completely?",
                start + metadata.data_len() as u64
            )));
        }
        let origin = self.origins.len();
        let direct = match self.is_direct {
            true => Some(open_direct(path)?),
            false => None,
        };
        self.origins.push(Origin::File {
            path: path.to_owned(),
            file,
            direct,
        });
        let names = metadata.offset_keys();
        for name in &names {
            let info = metadata.info(name).expect("one of its names");
            let (begin, end) = info.data_offsets;
            let dtype = serde_json::to_value(info.dtype).ok();
            let tensor = TensorInfo {
                dtype: dtype
                    .and_then(|name| name.as_str().map(str::to_owned))
                    .unwrap_or_default(),
                shape: info.shape.iter().map(|size| *size as u64).collect(),
                offset: 0,
                bytes: (end - begin) as u64,
            };
            self.add(name.clone(), tensor, origin, start + begin as u64)
                .map_err(&format)?;
        }
        for (key, value) in metadata.metadata().iter().flatten() {
            self.metadata
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
        Ok(names)
    }

    /// Returns the manifest of a model with these tensors.
    pub(crate) fn manifest(&self, data_hash: Option<Hash>) -> Manifest {
        let (tensors, metadata) = (self.tensors.clone(), self.metadata.clone());
        Manifest::new(self.bytes, data_hash, tensors, metadata)
    }

    /// Assigns to each tensor its place in an existing model.
    pub(crate) fn place_in(&mut self, manifest: &Manifest) -> Result<()> {
        for (name, own) in &mut self.tensors {
            let there = manifest.tensors.get(name);
            let there = there.ok_or_else(|| Error::NoTensor(name.clone()))?;
            if (&there.dtype, &there.shape) != (&own.dtype, &own.shape) {
                return Err(there.refuse(name, &own.dtype, &own.shape));
            }
            own.offset = there.offset;
        }
        for run in &mut self.runs {
            run.to = self.tensors[&run.tensor].offset;
        }
        self.runs.sort_unstable_by_key(|run| run.to);
        self.bytes = manifest.bytes;
        Ok(())
    }

    /// Returns the places of all runs, in parts that do not cross a multiple of `step` bytes.
    pub(crate) fn parts(&self, step: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        for run in &self.runs {
            let (mut at, end) = (run.to, run.to + run.len);
            while at < end {
                let next = (at / step + 1).saturating_mul(step).min(end);
                parts.push((at, next - at));
                at = next;
            }
        }
        parts
    }

    /// Fills `into` with the bytes at `offset` of the memory, with zeros between tensors. If a file
    /// is read through the page cache, the system call copies its bytes directly into `into`.
    pub(crate) fn read(&self, offset: u64, into: SharedBytes<'_>) -> Result<()> {
        let end = offset + into.len() as u64;
        let first = self.runs.partition_point(|run| run.to + run.len <= offset);
        let mut at = offset;
        let place =
            |from: u64, to: u64| into.slice((from - offset) as usize..(to - offset) as usize);
        for run in self.runs[first..].iter().take_while(|run| run.to < end) {
            let begin = run.to.max(offset);
            let stop = (run.to + run.len).min(end);
            clear(place(at, begin)?)?;
            let part = place(begin, stop)?;
            let from = run.from + (begin - run.to);
            match &self.origins[run.origin] {
                Origin::File { path, file, direct } => match direct {
                    Some(direct) => read_direct(direct, part, from, path)?,
                    None => part
                        .read_file(file, from)
                        .map_err(|error| of_file(path, error))?,
                },
                Origin::Bytes(bytes) => {
                    part.write(0, &bytes[from as usize..from as usize + part.len()])?;
                }
            }
            at = stop;
        }
        clear(place(at, end)?)
    }

    /// Returns a hash that identifies the source by its files. It is useless if the files are
    /// written between two calls.
    pub(crate) fn identity(&self) -> Result<Hash> {
        let mut hasher = blake3::Hasher::new();
        for origin in &self.origins {
            let Origin::File { path, file, .. } = origin else {
                return Err(Error::Invalid(
                    "only a load of files can be resumed: the program's own memory is lost when it ends"
                        .into(),
                ));
            };
            let status = file.metadata().map_err(|source| io(path, source))?;
            for number in [
                status.dev(),
                status.ino(),
                status.len(),
                status.mtime() as u64,
                status.mtime_nsec() as u64,
            ] {
                hasher.update(&number.to_le_bytes());
            }
        }
        Ok(hasher.finalize())
    }
}

/// Describes a tensor without a place. Its type and shape must match the number of bytes.
fn described(name: &str, dtype: String, shape: Vec<u64>, bytes: usize) -> Result<TensorInfo> {
    let info = TensorInfo {
        dtype,
        shape,
        offset: 0,
        bytes: bytes as u64,
    };
    match info.expected_bits() == Some(8 * info.bytes) {
        true => Ok(info),
        false => Err(Error::Invalid(format!(
            "the tensor {name} has {} bytes, which do not match its type {} and its shape {:?}",
            info.bytes, info.dtype, info.shape
        ))),
    }
}

/// Writes zeros to a gap between tensors.
fn clear(part: SharedBytes<'_>) -> Result<()> {
    const ZEROS: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];
    for at in (0..part.len()).step_by(ZEROS.len()) {
        let len = (part.len() - at).min(ZEROS.len());
        part.write(at, &ZEROS[..len])?;
    }
    Ok(())
}

/// Converts an error from reading a file, and adds the file's path.
fn of_file(path: &Path, error: crosshandle::Error) -> Error {
    match error {
        crosshandle::Error::Os { code, .. } => io(path, std::io::Error::from_raw_os_error(code)),
        error => Error::Format {
            path: path.to_owned(),
            why: error.to_string(),
        },
    }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension()
        .is_some_and(|extension| extension == wanted)
}

/// Name of the index that is used if a directory has several.
const USUAL_INDEX: &str = "model.safetensors.index.json";

/// Returns the files of the checkpoint in a directory: its index, or all safetensors files in order
/// of their names if there is no index. If there are several indexes, one of them must be
/// [`USUAL_INDEX`].
fn files_of(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|source| io(directory, source))?;
    let (mut indices, mut files) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(|source| io(directory, source))?.path();
        if path.to_string_lossy().ends_with(".safetensors.index.json") {
            indices.push(path);
        } else if has_extension(&path, "safetensors") {
            files.push(path);
        }
    }
    let usual = directory.join(USUAL_INDEX);
    if indices.contains(&usual) {
        return Ok(vec![usual]);
    }
    match indices.len() {
        0 if files.is_empty() => Err(Error::Format {
            path: directory.to_owned(),
            why: "the directory has neither an index nor a safetensors file".into(),
        }),
        0 => {
            files.sort();
            Ok(files)
        }
        1 => Ok(indices),
        _ => Err(Error::Format {
            path: directory.to_owned(),
            why: format!("it has several indices, none of which is {USUAL_INDEX}: name one"),
        }),
    }
}

fn open(path: &Path) -> Result<File> {
    open_with(path, OFlags::empty())
}

/// Opens a file without blocking. Opening a FIFO would otherwise wait for a writer.
fn open_with(path: &Path, flags: OFlags) -> Result<File> {
    let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path);
    let file = opened.map_err(|source| io(path, source))?;
    let kind = file
        .metadata()
        .map_err(|source| io(path, source))?
        .file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(Error::Format {
            path: path.to_owned(),
            why: format!(
                "a model consists of regular files, and this is {}",
                kind_of(kind)
            ),
        }),
    }
}

fn kind_of(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// Alignment of offsets and addresses of reads without the page cache, in bytes. A page suffices
/// for all devices whose blocks are not longer.
const DIRECT_ALIGNMENT: usize = 4096;

fn open_direct(path: &Path) -> Result<File> {
    open_with(path, OFlags::DIRECT)
}

/// Reads from a file that allows only aligned reads.
fn read_direct(file: &File, into: SharedBytes<'_>, from: u64, path: &Path) -> Result<()> {
    let skipped = from as usize % DIRECT_ALIGNMENT;
    let wanted = skipped + into.len();
    let whole = wanted.next_multiple_of(DIRECT_ALIGNMENT);
    // This process has chosen the size of parts, so the buffer needs no limit.
    let buffer = Bounded::<{ usize::MAX }>::new(whole + DIRECT_ALIGNMENT).and_then(Bounded::zeros);
    let mut buffer = buffer.ok_or_else(|| io(path, std::io::ErrorKind::OutOfMemory.into()))?;
    let start = buffer.as_ptr().align_offset(DIRECT_ALIGNMENT);
    let aligned = &mut buffer[start..start + whole];
    let mut done = 0;
    while done < wanted {
        // A read ends early only at the end of the file, or at the end of a block.
        let at = done / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
        match file.read_at(&mut aligned[at..], from - skipped as u64 + at as u64) {
            Ok(count) if at + count > done => done = at + count,
            Ok(_) => return Err(io(path, std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io(path, error)),
        }
    }
    Ok(into.write(0, &aligned[skipped..wanted])?)
}
