//! The arguments of kernels.
//!
//! The local memory of a work-group is one block, whose size is part of the launch. An argument for
//! local memory is the offset of its part in this block.

use crate::abi::boundary::list;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Shared;
use crate::memory::object::MemoryObject;
use crate::queue::destination::Destination;
use crate::sampler::Sampler;
use crate::tuning::{LARGEST_VECTOR_BYTES, MAX_KERNEL_ARGUMENTS};
use crosshandle::{
    MemoryRange,
    kernel::{KernelArguments, KernelParameter},
};
use std::borrow::Cow;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_exp_kernel_arg_properties_t, ur_exp_kernel_arg_type_t as argument_type, ur_mem_handle_t,
    ur_result_t,
};

/// An argument of a kernel, as the caller passes it.
#[derive(Clone)]
pub(crate) enum Argument<'a> {
    /// The bytes of a value.
    Value(Cow<'a, [u8]>),
    /// An address outside the context's memory. The caller guarantees that the memory there is
    /// valid until the kernel is done.
    Address(usize),
    /// Memory, which is kept alive until the kernel is done.
    Memory(MemoryRange),
    /// An image, which is kept alive until the kernel is done.
    Image(crosshandle::image::Image),
    /// A sampler, which is kept alive until the kernel is done.
    Sampler(crosshandle::image::Sampler),
    /// A size in bytes of local memory of a work-group.
    Local(usize),
}

/// The size of a sampler argument in bytes, on devices where the sizes of kernel parameters are
/// known.
const SAMPLER_BYTES: usize = 4;

pub(crate) type Arguments<'a> = Vec<Option<Argument<'a>>>;

/// Arguments in the device's form.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) arguments: KernelArguments,
    /// Number of bytes of a work-group's local memory that the arguments use.
    pub(crate) local: usize,
}

/// Returns the arguments of a launch.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER`, `INVALID_KERNEL_ARGUMENT_INDEX`, `INVALID_ENUMERATION` for an
/// unknown type, and `INVALID_MEM_OBJECT` for a buffer that the device cannot access.
///
/// # Safety
/// The caller must ensure that the arguments match their types, and that values and buffers are
/// valid during `'a`.
pub(crate) unsafe fn read<'a>(
    destination: &dyn Destination,
    given: &'a [ur_exp_kernel_arg_properties_t],
) -> Result<Arguments<'a>> {
    let mut arguments: Arguments<'a> = Vec::with_capacity(given.len());
    for argument in given {
        let index = argument.index as usize;
        if index >= MAX_KERNEL_ARGUMENTS {
            return Err(wrong_index(index));
        }
        if index >= arguments.len() {
            arguments.resize_with(index + 1, || None);
        }
        // SAFETY: the caller upholds this function's contract.
        arguments[index] = Some(unsafe { read_one(destination, argument) }?);
    }
    Ok(arguments)
}

/// Returns one argument.
///
/// # Safety
/// The caller must uphold the contract of [`read`].
unsafe fn read_one<'a>(
    destination: &dyn Destination,
    argument: &'a ur_exp_kernel_arg_properties_t,
) -> Result<Argument<'a>> {
    // SAFETY: the caller ensures that the members of the union match its type.
    unsafe {
        Ok(match argument.type_ {
            argument_type::UR_EXP_KERNEL_ARG_TYPE_VALUE => {
                let value: *const c_void = argument.value.value;
                Argument::Value(list(value.cast(), argument.size)?.into())
            }
            argument_type::UR_EXP_KERNEL_ARG_TYPE_POINTER => {
                Argument::of_pointer(destination, argument.value.pointer)
            }
            argument_type::UR_EXP_KERNEL_ARG_TYPE_MEM_OBJ => {
                Argument::of_memory(destination, argument.value.memObjTuple.hMem)?
            }
            argument_type::UR_EXP_KERNEL_ARG_TYPE_LOCAL => Argument::Local(argument.size),
            argument_type::UR_EXP_KERNEL_ARG_TYPE_SAMPLER => {
                let sampler = Shared::<Sampler>::from_handle(argument.value.sampler)?;
                Argument::Sampler(sampler.for_kernel(destination)?)
            }
            _ => return Err(Failure::ENUMERATION),
        })
    }
}

impl<'a> Argument<'a> {
    /// Converts an address to a kernel argument.
    pub(crate) fn of_pointer(destination: &dyn Destination, pointer: *const c_void) -> Self {
        let usm = &destination.context().state().usm;
        match usm.rest(pointer, destination.is_recording()) {
            Some(memory) => Self::Memory(memory),
            None => Self::Address(pointer.expose_provenance()),
        }
    }

    /// Converts a buffer, an image or null to a kernel argument.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` for an object that the device cannot access.
    ///
    /// # Safety
    /// The caller must ensure that the handle is null, or belongs to a living memory object.
    pub(crate) unsafe fn of_memory(
        destination: &dyn Destination,
        handle: ur_mem_handle_t,
    ) -> Result<Self> {
        if handle.is_null() {
            return Ok(Self::Address(0));
        }
        // SAFETY: the caller upholds this function's contract.
        Ok(
            match &**unsafe { Shared::<MemoryObject>::from_handle(handle) }? {
                MemoryObject::Buffer(buffer) => Self::Memory(buffer.for_kernel(destination)?),
                MemoryObject::Image(image) => Self::Image(image.for_command(destination)?.clone()),
            },
        )
    }

    /// Copies the caller's bytes, so that the argument no longer borrows them.
    pub(crate) fn into_owned(self) -> Argument<'static> {
        match self {
            Self::Value(value) => Argument::Value(Cow::Owned(value.into_owned())),
            Self::Address(address) => Argument::Address(address),
            Self::Memory(range) => Argument::Memory(range),
            Self::Image(image) => Argument::Image(image),
            Self::Sampler(sampler) => Argument::Sampler(sampler),
            Self::Local(len) => Argument::Local(len),
        }
    }
}

fn wrong_index(index: usize) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX,
        format!("the kernel has no argument {index}"),
    )
}

/// Packs arguments for a kernel.
///
/// `parameters` are the kernel's parameters, if they are known. `local` is the number of bytes of
/// local memory that are already in use. If there is an `offset`, it is the kernel's last
/// parameter.
///
/// # Errors
/// Returns `INVALID_KERNEL_ARGUMENT_INDEX` for too many arguments, and `INVALID_KERNEL_ARGS` for
/// missing ones. Returns `INVALID_KERNEL_ARGUMENT_SIZE` for an argument that is shorter than its
/// parameter, and for an unexpected address. Returns `OUT_OF_RESOURCES` if the size of local memory
/// overflows.
pub(crate) fn pack(
    arguments: &Arguments<'_>,
    parameters: Option<&[KernelParameter]>,
    offset: Option<[u32; 3]>,
    local: usize,
) -> Result<Packed> {
    let sizes: Option<Vec<usize>> =
        parameters.map(|all| all.iter().map(|parameter| parameter.size).collect());
    pack_sizes(arguments, sizes.as_deref(), offset, local)
}

/// Packs arguments for a device whose kernels take local memory as arguments, and whose driver
/// checks the sizes of arguments. `count` is the number of the kernel's parameters, if it is known.
///
/// # Errors
/// Returns `INVALID_KERNEL_ARGUMENT_INDEX` for too many arguments, `INVALID_KERNEL_ARGS` for
/// missing ones, and `OUT_OF_RESOURCES` if the size of local memory overflows.
pub(crate) fn pack_whole(arguments: &Arguments<'_>, count: Option<usize>) -> Result<Packed> {
    let count = count.unwrap_or(arguments.len());
    if arguments.len() > count {
        return Err(wrong_index(arguments.len() - 1));
    }
    let (mut packed, mut local) = (KernelArguments::new(), 0_usize);
    for index in 0..count {
        let argument = arguments.get(index).and_then(Option::as_ref);
        packed = match argument.ok_or_else(|| missing(index, count))? {
            Argument::Value(value) => packed.bytes(value),
            Argument::Address(address) => packed.address(*address),
            Argument::Memory(range) => packed.with(range),
            Argument::Image(image) => packed.with(image),
            Argument::Sampler(sampler) => packed.with(sampler),
            Argument::Local(len) => {
                local = local
                    .checked_add(*len)
                    .ok_or_else(|| too_much(*len, local))?;
                packed.local(*len)
            }
        };
    }
    Ok(Packed {
        arguments: packed,
        local,
    })
}

fn missing(index: usize, count: usize) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGS,
        format!("argument {index} of {count} is missing"),
    )
}

fn too_much(len: usize, taken: usize) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
        format!("no group has {len} more bytes of local memory after {taken}"),
    )
}

fn pack_sizes(
    arguments: &Arguments<'_>,
    sizes: Option<&[usize]>,
    offset: Option<[u32; 3]>,
    local: usize,
) -> Result<Packed> {
    let own = sizes.map_or(arguments.len(), |sizes| {
        sizes.len() - usize::from(offset.is_some()).min(sizes.len())
    });
    if arguments.len() > own {
        return Err(wrong_index(arguments.len() - 1));
    }
    let mut packed = Packed {
        arguments: KernelArguments::new(),
        local,
    };
    for index in 0..own {
        let Some(Some(argument)) = arguments.get(index) else {
            return Err(missing(index, own));
        };
        let size = sizes.map(|sizes| sizes[index]);
        packed = packed.add(index, argument, size)?;
    }
    if let Some(offset) = offset {
        packed.arguments = packed.arguments.value(offset);
    }
    Ok(packed)
}

impl Packed {
    fn add(self, index: usize, argument: &Argument<'_>, size: Option<usize>) -> Result<Self> {
        let Self { arguments, local } = self;
        let with = |arguments| Self { arguments, local };
        Ok(match argument {
            Argument::Value(value) => with(arguments.bytes(fitted(index, value, size)?)),
            Argument::Address(address) => {
                check_pointer(index, size)?;
                with(arguments.value(*address))
            }
            Argument::Memory(range) => {
                check_pointer(index, size)?;
                with(arguments.with(range))
            }
            // A kernel takes an image as the number of its surface, which is as long as an address.
            Argument::Image(image) => {
                check_pointer(index, size)?;
                with(arguments.with(image))
            }
            // A kernel takes a sampler as a word that describes the sampler.
            Argument::Sampler(sampler) => match size {
                None | Some(SAMPLER_BYTES) => with(arguments.with(sampler)),
                size => return Err(wrong_size(index, SAMPLER_BYTES, size)),
            },
            Argument::Local(len) => {
                let (start, end) = place(local, *len).ok_or_else(|| too_much(*len, local))?;
                // Addresses of local memory may be shorter than other addresses.
                Self {
                    arguments: arguments.bytes(fitted(index, &start.to_ne_bytes(), size)?),
                    local: end,
                }
            }
        })
    }
}

/// Returns as many bytes of a value as its parameter has, if the parameter's size is known. The
/// kernel would not read the remaining bytes of a longer value.
fn fitted(index: usize, value: &[u8], size: Option<usize>) -> Result<&[u8]> {
    value
        .get(..size.unwrap_or(value.len()))
        .ok_or_else(|| wrong_size(index, value.len(), size))
}

/// Fails if a parameter does not have the size of an address.
fn check_pointer(index: usize, size: Option<usize>) -> Result<()> {
    match size {
        Some(size) if size != size_of::<usize>() => {
            Err(wrong_size(index, size_of::<usize>(), Some(size)))
        }
        _ => Ok(()),
    }
}

fn wrong_size(index: usize, len: usize, size: Option<usize>) -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE,
        format!(
            "argument {index} has {len} bytes, but its parameter {}",
            size.unwrap_or_default()
        ),
    )
}

/// Reserves `len` more bytes of a work-group's local memory. Returns the start and the end of the
/// reserved bytes, or `None` on overflow.
fn place(taken: usize, len: usize) -> Option<(usize, usize)> {
    let align = len.min(LARGEST_VECTOR_BYTES).next_power_of_two();
    let start = taken.checked_next_multiple_of(align)?;
    Some((start, start.checked_add(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(packed: Result<Packed>) -> String {
        format!("{:?}", packed.unwrap_err())
    }

    #[test]
    fn parts_of_local_memory_come_one_after_the_other() {
        let arguments = vec![
            Some(Argument::Local(100)),
            Some(Argument::Value((&[1, 2, 3, 4]).into())),
            Some(Argument::Local(12)),
            Some(Argument::Local(1)),
            Some(Argument::Address(0x1234)),
        ];
        let packed = pack_sizes(&arguments, Some(&[4, 4, 4, 8, 8]), None, 10).unwrap();
        // The first part starts at offset 128, the second at a multiple of 16, and the third at any
        // offset.
        let text = format!("{:?}", packed.arguments);
        let wanted = KernelArguments::new()
            .value(128_u32)
            .bytes(&[1, 2, 3, 4])
            .value(240_u32)
            .value(252_u64)
            .value(0x1234_u64);
        assert_eq!(text, format!("{wanted:?}"));
        assert_eq!(packed.local, 253);
    }

    #[test]
    fn absurd_parts_of_local_memory_are_refused() {
        for (lengths, taken) in [
            (&[usize::MAX][..], 1),
            (&[1 << 63, 1 << 63], 0),
            (&[(1 << 63) + 1], 1 << 63),
            // An overflow must be an error, because a wrapped sum would look as if no memory were
            // in use.
            (&[usize::MAX, 4], 0),
            (&[4], usize::MAX),
        ] {
            let arguments: Arguments<'_> = lengths
                .iter()
                .map(|len| Some(Argument::Local(*len)))
                .collect();
            let text = result_of(pack_sizes(&arguments, None, None, taken));
            assert!(text.contains("no group has"), "{text}");
        }
        let nothing = vec![Some(Argument::Local(0))];
        assert_eq!(pack_sizes(&nothing, None, None, 3).unwrap().local, 3);
    }

    #[test]
    fn addresses_are_not_cut_off() {
        let mut words = [0_u32; 4];
        let start = std::ptr::NonNull::from(&mut words).cast();
        // SAFETY: no command uses the memory.
        let range =
            unsafe { MemoryRange::from_raw_parts(start, 16, crosshandle::Access::ReadWrite) };
        for argument in [Argument::Address(0x1234), Argument::Memory(range)] {
            let arguments = vec![Some(argument)];
            assert!(pack_sizes(&arguments, None, None, 0).is_ok());
            assert!(pack_sizes(&arguments, Some(&[8]), None, 0).is_ok());
            for size in [4, 16] {
                let text = result_of(pack_sizes(&arguments, Some(&[size]), None, 0));
                assert!(text.contains("8 bytes, but its parameter"), "{text}");
            }
        }
    }

    #[test]
    fn an_offset_is_the_last_parameter() {
        let arguments = vec![Some(Argument::Value((&[9; 8]).into()))];
        let packed = pack_sizes(&arguments, Some(&[8, 12]), Some([1, 2, 3]), 0).unwrap();
        let wanted = KernelArguments::new().bytes(&[9; 8]).value([1_u32, 2, 3]);
        assert_eq!(format!("{:?}", packed.arguments), format!("{wanted:?}"));
    }

    #[test]
    fn arguments_match_parameters() {
        let one = || vec![Some(Argument::Value((&[7; 4]).into()))];
        let pack = |arguments: Arguments<'_>, sizes| pack_sizes(&arguments, sizes, None, 0);
        assert!(pack(one(), None).is_ok() && pack(one(), Some(&[4])).is_ok());
        let shorter = pack(one(), Some(&[2])).unwrap();
        assert_eq!(format!("{:?}", shorter.arguments), "[[7, 7]]");
        assert!(result_of(pack(one(), Some(&[8]))).contains("bytes"));
        assert!(result_of(pack(one(), Some(&[4, 4]))).contains("argument 1 of 2 is missing"));
        assert!(result_of(pack(one(), Some(&[]))).contains("no argument 0"));
        let gap = vec![None, Some(Argument::Address(0))];
        assert!(result_of(pack(gap, None)).contains("argument 0 of 2 is missing"));
    }
}
