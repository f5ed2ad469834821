//! Models that were opened.

use crate::contents;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, TensorInfo};
use crate::{Hash, LoadOptions};
use crosshandle::{Context, Memory, MemoryRange, SharedBytes};

/// A model that was opened: its manifest, and one mapping for reading. The mapping stays until this is
/// dropped, whatever becomes of the name and of the holder.
#[derive(Debug)]
pub struct Model {
    name: String,
    version: u64,
    hash: Hash,
    manifest: Manifest,
    memory: Memory,
    context: ContextOf,
}

/// A context, which has nothing to show.
struct ContextOf(Context);

impl std::fmt::Debug for ContextOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.device())
    }
}

/// A tensor of a model.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its type, shape and place.
    pub info: &'a TensorInfo,
    memory: &'a Memory,
}

impl Model {
    pub(crate) fn new(
        name: String,
        version: u64,
        hash: Hash,
        manifest: Manifest,
        context: Context,
        memory: Memory,
    ) -> Self {
        Self {
            name,
            version,
            hash,
            manifest,
            memory,
            context: ContextOf(context),
        }
    }

    /// Returns the name under which the model was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the name that this is.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the model's hash, which stands for its names, types, shapes and contents.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns what the memory contains.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the memory with all tensors.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the context in which the model is open.
    pub fn context(&self) -> &Context {
        &self.context.0
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let info = self.manifest.tensors.get(name);
        let info = info.ok_or_else(|| Error::NoTensor(name.to_owned()))?;
        Ok(Tensor {
            info,
            memory: &self.memory,
        })
    }

    /// Takes the hash of the memory's bytes, as they are now, and compares it with the manifest's. The
    /// options' threads and progress count.
    ///
    /// # Errors
    /// [`Error::Changed`]; the device's failures.
    pub fn verify(&self, options: &LoadOptions) -> Result<()> {
        let found = options.hash(&self.context.0, &self.memory)?;
        let expected = self.manifest.data_hash;
        match found == expected {
            true => Ok(()),
            false => Err(Error::Changed { expected, found }),
        }
    }
}

impl LoadOptions {
    fn hash(&self, context: &Context, memory: &Memory) -> Result<Hash> {
        let all = memory.len() as u64;
        contents::hash(context, memory, self.thread_count(), &|bytes| {
            self.tell(bytes, all)
        })
    }
}

impl<'a> Tensor<'a> {
    /// Returns the address of the first element: of the device, and of the host where that can access the
    /// memory. It may be dangling for a tensor without elements.
    pub fn as_ptr(&self) -> *const u8 {
        // Without arithmetic on what may be a device's pointer.
        self.memory.as_ptr().wrapping_add(self.info.offset as usize)
    }

    /// Returns the bytes, for the host to read.
    ///
    /// # Errors
    /// [`crosshandle::Error::Unsupported`] for memory that the host cannot access.
    pub fn bytes(&self) -> Result<SharedBytes<'a>> {
        let start = self.info.offset as usize;
        Ok(self
            .memory
            .bytes()?
            .slice(start..start + self.info.bytes as usize)?)
    }

    /// Returns the bytes as a range of memory, for commands.
    ///
    /// # Errors
    /// [`crosshandle::Error::InvalidArgument`] for a tensor without elements.
    pub fn range(&self) -> Result<MemoryRange> {
        let start = self.info.offset as usize;
        Ok(self.memory.range(start..start + self.info.bytes as usize)?)
    }
}
