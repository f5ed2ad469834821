//! Kernel arguments.
//!
//! A work-group has one block of local memory, whose size is part of the launch. On devices whose
//! kernels do not take local memory as an argument, a local argument is an offset into this block.

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
    ur_exp_kernel_arg_properties_t, ur_exp_kernel_arg_type_t as argument_type, ur_mem_flags_t,
    ur_mem_handle_t, ur_result_t,
};

/// A kernel argument from the caller.
#[derive(Clone)]
pub(crate) enum Argument<'a> {
    /// The bytes of a value.
    Value(Cow<'a, [u8]>),
    /// An address outside the context's memory. The caller guarantees that memory at this address
    /// is valid until the kernel is complete.
    Address(usize),
    /// Memory, which is kept alive until the kernel is complete.
    Memory(MemoryRange),
    /// An image, which is kept alive until the kernel is complete.
    Image(crosshandle::image::Image),
    /// A sampler, which is kept alive until the kernel is complete.
    Sampler(crosshandle::image::Sampler),
    /// The size in bytes of local memory that each work-group receives.
    Local(usize),
}

/// Size of a sampler argument in bytes. It is checked on devices that report the sizes of kernel
/// parameters.
const SAMPLER_BYTES: usize = 4;

/// The arguments of a kernel, indexed by parameter. `None` is an argument that was not set.
pub(crate) type Arguments<'a> = Vec<Option<Argument<'a>>>;

/// Kernel arguments in the form that the device requires.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) arguments: KernelArguments,
    /// The size in bytes of the local memory that the arguments use in each work-group.
    pub(crate) local: usize,
}

/// Reads the arguments of a launch.
///
/// # Errors
/// - `INVALID_NULL_POINTER` if the address of a value is null.
/// - `INVALID_KERNEL_ARGUMENT_INDEX` if an index exceeds the limit.
/// - `INVALID_ENUMERATION` if the type of an argument is unknown.
/// - `INVALID_MEM_OBJECT` if the device cannot access a buffer or an image.
///
/// # Safety
/// The caller must ensure that each argument matches its type. Values must be readable, and handles
/// alive, during `'a`.
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

/// Reads one argument of a launch.
///
/// # Safety
/// The caller must uphold the contract of [`read`].
unsafe fn read_one<'a>(
    destination: &dyn Destination,
    argument: &'a ur_exp_kernel_arg_properties_t,
) -> Result<Argument<'a>> {
    // SAFETY: the caller ensures that the member of the union that is read here matches the type.
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
                let memory = argument.value.memObjTuple;
                Argument::of_memory(destination, memory.hMem, memory.flags)?
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

    /// Converts the handle of a buffer or an image to a kernel argument. `flags` say how the kernel
    /// accesses the memory object. Null becomes the address 0.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if the device cannot access the memory object.
    ///
    /// # Safety
    /// The handle must be null or refer to a living memory object.
    pub(crate) unsafe fn of_memory(
        destination: &dyn Destination,
        handle: ur_mem_handle_t,
        flags: ur_mem_flags_t,
    ) -> Result<Self> {
        if handle.is_null() {
            return Ok(Self::Address(0));
        }
        // SAFETY: the caller upholds this function's contract.
        Ok(
            match &**unsafe { Shared::<MemoryObject>::from_handle(handle) }? {
                MemoryObject::Buffer(buffer) => {
                    Self::Memory(buffer.for_kernel(destination, flags)?)
                }
                MemoryObject::Image(image) => Self::Image(image.for_kernel(destination, flags)?),
            },
        )
    }

    /// Copies the caller's bytes, so that the argument does not borrow them any more.
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
/// `parameters` are the kernel's parameters, if the driver reports them. `local` is the size in
/// bytes of the local memory that is already in use. If `offset` is given, it becomes the kernel's
/// last argument.
///
/// # Errors
/// - `INVALID_KERNEL_ARGUMENT_INDEX` if there are more arguments than parameters.
/// - `INVALID_KERNEL_ARGS` if an argument is missing.
/// - `INVALID_KERNEL_ARGUMENT_SIZE` if a value is shorter than its parameter, or if an address is
///   passed for a parameter of another size.
/// - `OUT_OF_RESOURCES` if the size of local memory overflows.
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

/// Packs arguments for a kernel that takes local memory as arguments. The driver checks the sizes
/// of the arguments. `count` is the number of the kernel's parameters, if the driver reports it.
///
/// # Errors
/// Returns `INVALID_KERNEL_ARGUMENT_INDEX` if there are more arguments than parameters. Returns
/// `INVALID_KERNEL_ARGS` if an argument is missing, and `OUT_OF_RESOURCES` if the size of local
/// memory overflows.
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
            // Kernels take an image as a surface handle, which has the size of an address.
            Argument::Image(image) => {
                check_pointer(index, size)?;
                with(arguments.with(image))
            }
            // Kernels take a sampler as a word that describes the sampler.
            Argument::Sampler(sampler) => match size {
                None | Some(SAMPLER_BYTES) => with(arguments.with(sampler)),
                size => return Err(wrong_size(index, SAMPLER_BYTES, size)),
            },
            Argument::Local(len) => {
                let (start, end) = place(local, *len).ok_or_else(|| too_much(*len, local))?;
                // Local memory addresses may be shorter than other addresses.
                Self {
                    arguments: arguments.bytes(fitted(index, &start.to_ne_bytes(), size)?),
                    local: end,
                }
            }
        })
    }
}

/// Returns the bytes of a value that fit into its parameter. Kernels do not read the remaining
/// bytes of a longer value. If the parameter's size is unknown, returns all bytes.
fn fitted(index: usize, value: &[u8], size: Option<usize>) -> Result<&[u8]> {
    value
        .get(..size.unwrap_or(value.len()))
        .ok_or_else(|| wrong_size(index, value.len(), size))
}

/// Returns `INVALID_KERNEL_ARGUMENT_SIZE` if the parameter does not have the size of an address.
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

/// Reserves `len` more bytes of local memory in each work-group. Returns the start and the end of
/// the reserved bytes. Returns `None` if the size overflows.
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
            // The sum overflows. If it wrapped instead, the arguments would seem to use no local
            // memory.
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
        // SAFETY: no command accesses the memory range.
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
