//! The arguments that kernels are called with.
//!
//! Local memory of a work-group is one piece, whose size the launch says. An argument of local memory
//! is the number of bytes before its own part.

use crate::abi::boundary::list;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Shared;
use crate::memory::object::MemoryObject;
use crate::queue::destination::Destination;
use crate::sampler::Sampler;
use crate::tuning::{LARGEST_VECTOR_BYTES, MAX_KERNEL_ARGUMENTS};
use crosshandle::{KernelArguments, KernelParameter, MemoryRange};
use std::borrow::Cow;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_exp_kernel_arg_properties_t, ur_exp_kernel_arg_type_t as argument_type, ur_mem_handle_t,
    ur_result_t,
};

/// An argument as the caller gives it.
#[derive(Clone)]
pub(crate) enum Argument<'a> {
    /// The bytes of a value.
    Value(Cow<'a, [u8]>),
    /// An address that is not known here: the caller vouches for it until the kernel is done.
    Address(usize),
    /// Memory that is kept until the kernel is done.
    Memory(MemoryRange),
    /// An image that is kept until the kernel is done.
    Image(crosshandle::Image),
    /// A sampler that is kept until the kernel is done.
    Sampler(crosshandle::Sampler),
    /// Bytes of a work-group's local memory.
    Local(usize),
}

/// Bytes of a sampler that is an argument, for devices whose kernels' parameters have sizes.
const SAMPLER_BYTES: usize = 4;

/// Arguments by their indices.
pub(crate) type Arguments<'a> = Vec<Option<Argument<'a>>>;

/// Arguments as the device takes them.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) arguments: KernelArguments,
    /// Bytes of a work-group's local memory that they use.
    pub(crate) local: usize,
}

/// Returns the arguments of a launch.
///
/// # Errors
/// `INVALID_NULL_POINTER`; `INVALID_KERNEL_ARGUMENT_INDEX`; `INVALID_ENUMERATION` for a type that
/// UR doesn't know; `INVALID_MEM_OBJECT` for a buffer that the device doesn't reach.
///
/// # Safety
/// The arguments are as their types say; values and buffers stay valid during `'a`.
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
        // SAFETY: as promised to this function.
        arguments[index] = Some(unsafe { read_one(destination, argument) }?);
    }
    Ok(arguments)
}

/// Returns one argument.
///
/// # Safety
/// As [`read`].
unsafe fn read_one<'a>(
    destination: &dyn Destination,
    argument: &'a ur_exp_kernel_arg_properties_t,
) -> Result<Argument<'a>> {
    // SAFETY: the members of the union are those of its type, as promised to this function.
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
    /// Returns the argument that an address is.
    pub(crate) fn of_pointer(destination: &dyn Destination, pointer: *const c_void) -> Self {
        let usm = &destination.context().state().usm;
        match usm.rest(pointer, destination.is_recording()) {
            Some(memory) => Self::Memory(memory),
            None => Self::Address(pointer.expose_provenance()),
        }
    }

    /// Returns the argument that a buffer or an image is, or none.
    ///
    /// # Errors
    /// `INVALID_MEM_OBJECT` for one that the device doesn't reach.
    ///
    /// # Safety
    /// The handle is null, or one of a memory object that is there.
    pub(crate) unsafe fn of_memory(
        destination: &dyn Destination,
        handle: ur_mem_handle_t,
    ) -> Result<Self> {
        if handle.is_null() {
            return Ok(Self::Address(0));
        }
        // SAFETY: as promised to this function.
        Ok(
            match &**unsafe { Shared::<MemoryObject>::from_handle(handle) }? {
                MemoryObject::Buffer(buffer) => Self::Memory(buffer.for_kernel(destination)?),
                MemoryObject::Image(image) => Self::Image(image.for_command(destination)?.clone()),
            },
        )
    }

    /// Returns the same argument, with a copy of what is the caller's.
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

/// Puts arguments together for a kernel, with its parameters if they are known. `local` bytes of a
/// work-group's local memory are taken already. The kernel's last parameter is the `offset`, if there
/// is one.
///
/// # Errors
/// `INVALID_KERNEL_ARGUMENT_INDEX` for too many, `INVALID_KERNEL_ARGS` for missing ones,
/// `INVALID_KERNEL_ARGUMENT_SIZE` for one that is shorter than its parameter, and for an address
/// where none is expected; `OUT_OF_RESOURCES` for more memory of a work-group than can be counted.
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

/// Puts arguments together for a device whose kernels take local memory as arguments, and whose driver
/// checks how large arguments are. `count` is the number of the kernel's parameters, if it is known.
///
/// # Errors
/// `INVALID_KERNEL_ARGUMENT_INDEX` for too many, `INVALID_KERNEL_ARGS` for missing ones,
/// `OUT_OF_RESOURCES` for more memory of a work-group than can be counted.
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
            Argument::Memory(range) => packed.memory(range),
            Argument::Image(image) => packed.image(image),
            Argument::Sampler(sampler) => packed.sampler(sampler),
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
        format!("no group has {len} bytes of local memory after {taken}"),
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
                with(arguments.memory(range))
            }
            // A surface, whose number is as long as an address.
            Argument::Image(image) => {
                check_pointer(index, size)?;
                with(arguments.image(image))
            }
            // A word that describes it.
            Argument::Sampler(sampler) => match size {
                None | Some(SAMPLER_BYTES) => with(arguments.sampler(sampler)),
                size => return Err(wrong_size(index, SAMPLER_BYTES, size)),
            },
            Argument::Local(len) => {
                let (start, end) = place(local, *len).ok_or_else(|| too_much(*len, local))?;
                // Addresses of local memory may be shorter than others.
                Self {
                    arguments: arguments.bytes(fitted(index, &start.to_ne_bytes(), size)?),
                    local: end,
                }
            }
        })
    }
}

/// Returns as many bytes of a value as its parameter has, if that is known. A value that is too long
/// loses its end: the kernel would not look at it either.
fn fitted(index: usize, value: &[u8], size: Option<usize>) -> Result<&[u8]> {
    value
        .get(..size.unwrap_or(value.len()))
        .ok_or_else(|| wrong_size(index, value.len(), size))
}

/// Refuses a parameter of another size than an address has.
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

/// Returns where `len` more bytes of a work-group's local memory start and end; `None` beyond all
/// memory.
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
        // From 128 on, then at a multiple of 16, then anywhere.
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
            // As if nothing had been taken before.
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
        // SAFETY: no command uses it.
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
