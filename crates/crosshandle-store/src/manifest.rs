//! The manifest, which describes the contents of a model's memory.

use crate::{Error, Hash};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const FORMAT: u32 = 1;
/// Alignment of tensors in the memory, in bytes. It is sufficient for all load and store
/// instructions of GPUs.
pub(crate) const ALIGNMENT: u64 = 256;
/// Maximum size in bytes of a manifest that is read.
pub(crate) const MAX_MANIFEST_BYTES: u64 = Manifest::MAX_BYTES as u64;

/// A description of the contents of a model's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    format: u32,
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of all bytes of the memory, including the zeros between tensors. `None`
    /// after an update that did not compute the hash.
    #[serde(with = "hash_text")]
    pub data_hash: Option<Hash>,
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// The unchanged metadata from the files, for instance about quantization.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor in a model's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The element type, by its name in safetensors, such as `BF16`, `F8_E4M3` or `I64`.
    pub dtype: String,
    /// The size of each dimension, in elements.
    pub shape: Vec<u64>,
    /// Offset of the first byte in the memory, a multiple of 256.
    pub offset: u64,
    /// The size of the tensor in bytes.
    pub bytes: u64,
}

mod hash_text {
    use crate::Hash;
    use serde::{Deserialize, Deserializer, Serializer};

    /// An unknown hash. It has the length of a hash, so that an update never changes the length of
    /// a manifest.
    const UNKNOWN: &str = "----------------------------------------------------------------";

    pub(super) fn serialize<S: Serializer>(
        hash: &Option<Hash>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match hash {
            Some(hash) => serializer.serialize_str(hash.to_hex().as_str()),
            None => serializer.serialize_str(UNKNOWN),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Hash>, D::Error> {
        // A writer that died while it wrote the hash leaves a mixture of two hashes. That is not an
        // error, because the next writer must be able to read the rest of the manifest.
        Ok(Hash::from_hex(String::deserialize(deserializer)?).ok())
    }
}

impl Manifest {
    /// Maximum size in bytes of a manifest that is read.
    pub const MAX_BYTES: usize = 256 << 20;

    pub(crate) fn new(
        bytes: u64,
        data_hash: Option<Hash>,
        tensors: BTreeMap<String, TensorInfo>,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        Self {
            format: FORMAT,
            bytes,
            data_hash,
            tensors,
            metadata,
        }
    }

    /// Encodes the manifest. The model's hash is the hash of these bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Maps are sorted by key, so equal manifests have equal texts.
        serde_json::to_vec(self).expect("plain data")
    }

    /// Returns `true` if both manifests have the same tensors in the same places.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.tensors == other.tensors
    }

    /// Decodes a manifest for memory of `bytes` bytes. The process that wrote the manifest is not
    /// trusted, so everything is checked.
    ///
    /// # Errors
    /// Returns the reason why the manifest is invalid.
    pub fn read(text: &[u8], bytes: u64) -> Result<Self, String> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| format!("its manifest: {error}"))?;
        if manifest.format != FORMAT {
            return Err(format!(
                "its manifest has the format {}, and this version reads {FORMAT}",
                manifest.format
            ));
        }
        if manifest.bytes != bytes {
            return Err("its manifest is for memory of another length".into());
        }
        for (name, tensor) in &manifest.tensors {
            let end = tensor.offset.checked_add(tensor.bytes);
            if end.is_none_or(|end| end > bytes) || !tensor.offset.is_multiple_of(ALIGNMENT) {
                return Err(format!("its tensor {name} is not inside the memory"));
            }
            if tensor
                .expected_bits()
                .is_some_and(|bits| bits.div_ceil(8) != tensor.bytes)
            {
                return Err(format!(
                    "the length of its tensor {name} does not match its shape"
                ));
            }
        }
        Ok(manifest)
    }
}

impl TensorInfo {
    /// Returns the error for a tensor of this name with another type or shape.
    pub(crate) fn refuse(&self, name: &str, dtype: &str, shape: &[u64]) -> Error {
        Error::Invalid(format!(
            "the tensor {name} is {} {:?} in the model, not {dtype} {shape:?}: publish the next version instead",
            self.dtype, self.shape
        ))
    }

    /// Returns the number of bits that the shape requires, or `None` for element types that this
    /// version does not know.
    pub(crate) fn expected_bits(&self) -> Option<u64> {
        let dtype: safetensors::Dtype =
            serde_json::from_value(serde_json::Value::from(self.dtype.as_str())).ok()?;
        let elements = self
            .shape
            .iter()
            .try_fold(1_u64, |all, size| all.checked_mul(*size));
        // On overflow, the result is the largest number, which no tensor has as its length.
        Some(
            elements
                .and_then(|count| count.checked_mul(dtype.bitsize() as u64))
                .unwrap_or(u64::MAX),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_hash_is_none() {
        let manifest = Manifest::new(0, Some(blake3::hash(b"")), BTreeMap::new(), BTreeMap::new());
        let text = String::from_utf8(manifest.to_bytes()).expect("JSON");
        let hash = blake3::hash(b"").to_string();
        let half = text.replace(&hash[32..], &"-".repeat(32));
        assert_ne!(half, text);
        let found = Manifest::read(half.as_bytes(), 0).expect("the rest is whole");
        assert_eq!(found.data_hash, None);
        assert_eq!(found.to_bytes().len(), text.len(), "its place is as long");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let tensor = |offset, bytes, shape: &[u64]| TensorInfo {
            dtype: "BF16".into(),
            shape: shape.to_vec(),
            offset,
            bytes,
        };
        let read = |tensor: TensorInfo, bytes| {
            let tensors = BTreeMap::from([("t".to_owned(), tensor)]);
            let manifest = Manifest::new(1024, Some(blake3::hash(b"")), tensors, BTreeMap::new());
            Manifest::read(&manifest.to_bytes(), bytes)
        };
        read(tensor(256, 12, &[2, 3]), 1024).expect("it fits");
        read(tensor(0, 2, &[]), 1024).expect("a scalar");
        for (bad, bytes) in [
            (tensor(256, 12, &[2, 3]), 1025),
            (tensor(1024, 12, &[2, 3]), 1024),
            (tensor(u64::MAX - 255, 512, &[256]), 1024),
            (tensor(8, 12, &[2, 3]), 1024),
            (tensor(0, 10, &[2, 3]), 1024),
            (tensor(0, 0, &[u64::MAX, 2]), 1024),
        ] {
            assert!(read(bad.clone(), bytes).is_err(), "{bad:?}");
        }
        assert!(Manifest::read(b"{}", 0).is_err());
        assert!(Manifest::read(b"\xff", 0).is_err());
    }
}
