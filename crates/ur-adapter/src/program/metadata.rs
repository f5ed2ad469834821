//! Metadata from compilers about the kernels and variables in a program.
//!
//! The name of an entry consists of the name of the kernel or variable, `@` and a tag. A byte array
//! starts with a 64-bit number, which is the number of bits that follow.

use super::{build, ptx, spirv};
use crate::abi::boundary::{Argument, Call, list};
use crate::abi::failure::{Failure, Result};
use crosshandle::kernel::KernelProperties;
use std::collections::HashMap;
use std::ffi::CStr;
use unified_runtime_sys::{
    ur_program_metadata_t, ur_program_metadata_type_t as value_type, ur_program_properties_t,
    ur_result_t,
};

/// Size in bytes of the length field at the start of a byte array.
const LENGTH: usize = size_of::<u64>();

/// Properties of a program's kernels and variables that are known before the program is built.
#[derive(Default)]
pub(crate) struct Metadata {
    kernels: HashMap<String, KernelMetadata>,
    /// The names that variables have in the image, indexed by the names that callers use.
    variables: HashMap<String, String>,
}

/// Properties of a kernel from the compiler. Sizes are in work-items.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct KernelMetadata {
    /// The only work-group size with which the kernel can be launched.
    pub(crate) required_size: Option<[usize; 3]>,
    /// The maximum work-group size in each dimension.
    pub(crate) largest_size: Option<[usize; 3]>,
    pub(crate) most_items: Option<usize>,
    /// A work-group size whose product is the maximum number of work-items. Its dimensions are not
    /// limits of their own.
    pub(crate) extents: Option<[usize; 3]>,
    /// The sub-group size for which the kernel was compiled.
    pub(crate) sub_group: Option<u32>,
}

impl KernelMetadata {
    /// Fills in the properties that the compiler's metadata does not specify with those from the
    /// driver.
    pub(crate) fn or_of(self, properties: &KernelProperties) -> Self {
        let required = properties.required_block;
        Self {
            required_size: self
                .required_size
                .or_else(|| required.map(|size| size.map(|size| size as usize))),
            sub_group: self.sub_group.or(properties.required_subgroup),
            ..self
        }
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Metadata {
    /// Adds an entry. Entries with unknown tags are ignored.
    fn add(&mut self, name: &str, tag: &str, value: &Value<'_>) -> Result<()> {
        let kernel = || self.kernels.get(name).copied().unwrap_or_default();
        let kernel = match (tag, value) {
            ("reqd_work_group_size", Value::Bytes(bytes)) => KernelMetadata {
                required_size: Some(size_of_group(bytes)?),
                ..kernel()
            },
            ("max_work_group_size", Value::Bytes(bytes)) => KernelMetadata {
                largest_size: Some(size_of_group(bytes)?),
                ..kernel()
            },
            ("max_linear_work_group_size", Value::Number(number)) => KernelMetadata {
                most_items: usize::try_from(*number).ok(),
                ..kernel()
            },
            ("reqd_sub_group_size", Value::Number(number)) => KernelMetadata {
                sub_group: u32::try_from(*number).ok(),
                ..kernel()
            },
            ("global_id_mapping", Value::Bytes(bytes)) => {
                let text = bytes.get(LENGTH..).unwrap_or_default();
                let text = String::from_utf8_lossy(text);
                let text = text.trim_end_matches('\0').to_owned();
                self.variables.insert(name.to_owned(), text);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.kernels.insert(name.to_owned(), kernel);
        Ok(())
    }

    /// Fills in the properties that the metadata does not specify with those from the image.
    pub(super) fn with_image(self, image: &[u8]) -> Self {
        if spirv::is_module(image) {
            return self.with_module(image);
        }
        match build::text_of(image) {
            Some(text) if ptx::is_assembly(text) => self.with_assembly(text),
            _ => self,
        }
    }

    fn with_module(mut self, module: &[u8]) -> Self {
        for (name, size) in spirv::largest_sizes(module) {
            let kernel = self.kernels.entry(name).or_default();
            kernel.largest_size.get_or_insert(size);
            // The device cannot launch a group with more work-items than this.
            kernel.most_items.get_or_insert(items_of(size));
        }
        self
    }

    fn with_assembly(mut self, text: &str) -> Self {
        for (name, blocks) in ptx::blocks(text) {
            let kernel = self.kernels.entry(name.to_owned()).or_default();
            kernel.required_size = kernel.required_size.or(blocks.required);
            if let Some(extents) = blocks.extents {
                kernel.extents.get_or_insert(extents);
                kernel.most_items.get_or_insert(items_of(extents));
            }
        }
        self
    }

    /// Merges the metadata of several programs that are linked into one.
    pub(super) fn merged<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut merged = Self::default();
        for one in all {
            let kernels = one
                .kernels
                .iter()
                .map(|(name, kernel)| (name.clone(), *kernel));
            merged.kernels.extend(kernels);
            merged.variables.extend(one.variables.clone());
        }
        merged
    }

    pub(crate) fn kernel(&self, name: &str) -> KernelMetadata {
        self.kernels.get(name).copied().unwrap_or_default()
    }

    /// Returns the name that a variable has in the image. If the metadata has no name for it, the
    /// caller's name is used.
    pub(super) fn variable<'a>(&'a self, name: &'a str) -> &'a str {
        self.variables.get(name).map_or(name, String::as_str)
    }
}

/// An argument of an entry point that contains a program's metadata.
///
/// The call fails with `INVALID_NULL_POINTER` if the count is positive but the entries are null. It
/// fails with `INVALID_SIZE` if the entries are not null but the count is 0. A size that does not
/// have 1, 2 or 3 dimensions gives `INVALID_WORK_GROUP_SIZE`.
pub(super) struct MetadataArgument;

impl Argument for MetadataArgument {
    type C = *const ur_program_properties_t;
    type Value<'a> = Metadata;

    unsafe fn read(properties: Self::C, _call: &Call) -> Result<Metadata> {
        // SAFETY: the caller ensures that the pointer is null or refers to valid properties.
        let Some(properties) = (unsafe { properties.as_ref() }) else {
            return Ok(Metadata::default());
        };
        if properties.count == 0 && !properties.pMetadatas.is_null() {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller ensures that a non-null `pMetadatas` points to `count` entries.
        let entries = unsafe { list(properties.pMetadatas, properties.count as usize) }?;
        let mut metadata = Metadata::default();
        for entry in entries {
            if entry.pName.is_null() {
                return Err(Failure::NULL_POINTER);
            }
            // SAFETY: the caller ensures that the name is null-terminated, and that the value
            // matches its type.
            let (name, value) = unsafe { (CStr::from_ptr(entry.pName), value_of(entry)?) };
            if let (Some((name, tag)), Some(value)) = (split(&name.to_string_lossy()), value) {
                metadata.add(name, tag, &value)?;
            }
        }
        Ok(metadata)
    }
}

/// Returns the value of a metadata entry. Returns `None` if the type of the value is not supported.
///
/// # Safety
/// The caller must ensure that the value matches its type. A byte array must have `size` bytes.
unsafe fn value_of(entry: &ur_program_metadata_t) -> Result<Option<Value<'_>>> {
    // SAFETY: the caller ensures that the union member that is read here matches the type, and that
    // a byte array has `size` bytes.
    unsafe {
        Ok(match entry.type_ {
            value_type::UR_PROGRAM_METADATA_TYPE_UINT32 => {
                Some(Value::Number(entry.value.data32.into()))
            }
            value_type::UR_PROGRAM_METADATA_TYPE_UINT64 => Some(Value::Number(entry.value.data64)),
            value_type::UR_PROGRAM_METADATA_TYPE_BYTE_ARRAY => {
                Some(Value::Bytes(list(entry.value.pData.cast(), entry.size)?))
            }
            // No supported tag has a text value.
            _ => None,
        })
    }
}

/// Returns the number of work-items in a group of this size.
fn items_of(size: [usize; 3]) -> usize {
    size.into_iter().fold(1, usize::saturating_mul)
}

/// Splits the name of an entry into the name of a kernel or variable, and the tag.
fn split(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('@')
}

/// Converts a byte array with one to three 32-bit numbers to a work-group size. The missing
/// dimensions become 1.
fn size_of_group(bytes: &[u8]) -> Result<[usize; 3]> {
    let numbers = bytes.get(LENGTH..).unwrap_or_default();
    if numbers.is_empty() || !numbers.len().is_multiple_of(4) || numbers.len() > 12 {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE,
            "the size of a work-group in a program's metadata has one to three dimensions",
        ));
    }
    let mut size = [1; 3];
    for (place, number) in size.iter_mut().zip(numbers.chunks_exact(4)) {
        *place = u32::from_le_bytes([number[0], number[1], number[2], number[3]]) as usize;
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(numbers: &[u32]) -> Vec<u8> {
        let mut bytes = (32 * numbers.len() as u64).to_le_bytes().to_vec();
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    #[test]
    fn assembly_says_what_the_metadata_leaves_out() {
        let text = b".version 8.0 .entry a() .reqntid 4, 2 {} .entry b() .maxntid 8, 8 {}\0";
        let mut metadata = Metadata::default();
        let known = Value::Bytes(&array(&[3]));
        metadata.add("a", "reqd_work_group_size", &known).unwrap();
        let known = metadata.with_image(text);
        assert_eq!(known.kernel("a").required_size, Some([3, 1, 1]));
        let b = KernelMetadata {
            extents: Some([8, 8, 1]),
            most_items: Some(64),
            ..KernelMetadata::default()
        };
        assert_eq!(known.kernel("b"), b);
        let alone = Metadata::default().with_image(text);
        assert_eq!(alone.kernel("a").required_size, Some([4, 2, 1]));
        let other = Metadata::default().with_image(b"void a() { .entry a .reqntid 1 }");
        assert_eq!(other.kernel("a"), KernelMetadata::default());
    }

    #[test]
    fn entries_are_about_kernels_and_variables() {
        let mut metadata = Metadata::default();
        let mut add = |name, value: Value<'_>| {
            let (name, tag) = split(name).unwrap();
            metadata.add(name, tag, &value)
        };
        add("k@1@reqd_work_group_size", Value::Bytes(&array(&[8, 4]))).unwrap();
        add("k@1@max_work_group_size", Value::Bytes(&array(&[1, 2, 3]))).unwrap();
        add("k@1@max_linear_work_group_size", Value::Number(99)).unwrap();
        add("k@1@reqd_sub_group_size", Value::Number(32)).unwrap();
        add("k@1@something_new", Value::Number(1)).unwrap();
        let mut name = vec![0; LENGTH];
        name.extend(b"_Zname\0");
        add("variable@global_id_mapping", Value::Bytes(&name)).unwrap();
        for wrong in [
            &array(&[])[..],
            &array(&[1, 2, 3, 4]),
            &array(&[1])[..11],
            &[],
        ] {
            let failure = add("k@reqd_work_group_size", Value::Bytes(wrong)).unwrap_err();
            assert!(format!("{failure:?}").contains("one to three"));
        }
        assert_eq!(
            metadata.kernel("k@1"),
            KernelMetadata {
                required_size: Some([8, 4, 1]),
                largest_size: Some([1, 2, 3]),
                most_items: Some(99),
                extents: None,
                sub_group: Some(32),
            }
        );
        assert_eq!(metadata.kernel("k"), KernelMetadata::default());
        assert_eq!(metadata.variable("variable"), "_Zname");
        assert_eq!(metadata.variable("other"), "other");
    }
}
