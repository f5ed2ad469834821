//! Arrays in DLPack's form, to and from other libraries. See
//! <https://dmlc.github.io/dlpack/latest/>.

use crate::boundary::{entry, entry_object, given, list, place};
use crate::context::crosshandle_context;
use crate::error::{Failure, Result, crosshandle_result};
use crate::memory::crosshandle_memory;
use crate::object::get;
use crosshandle::{Access, Memory};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The DLPack version (major, minor) of the tensors that this library creates.
const VERSION: [u32; 2] = [1, 0];
/// The flag of a tensor that must not be written.
const READ_ONLY: u64 = 1;
/// Maximum number of dimensions, which protects against wrong structures.
const MAX_DIMENSIONS: usize = 64;

/// DLPack's structure `DLTensor`, which describes an array.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's tensor with an owner, a version and flags. `dlpack.h` defines the structure.
#[repr(C)]
struct Managed {
    version: [u32; 2],
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// DLPack's tensor, as `dlpack.h` defines it.
pub struct DLManagedTensorVersioned {}

/// The elements, shape and strides of an array in memory.
#[repr(C)]
pub struct crosshandle_layout {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// The position of the first element in the memory, in bytes.
    pub offset: usize,
    /// DLPack's code of the element type (`DLDataTypeCode`): 0 for signed and 1 for unsigned
    /// integers, 2 for floating-point numbers.
    pub type_code: u8,
    /// The number of bits of an element, a multiple of 8.
    pub type_bits: u8,
    /// The number of dimensions.
    pub dimensions: u32,
    /// The number of elements in each dimension.
    pub shape: *const i64,
    /// The distance between elements in each dimension, in elements. Null if rows follow each other
    /// without gaps, the last dimension being contiguous.
    pub strides: *const i64,
}

/// A tensor of this library, and what it keeps alive.
struct Owned {
    managed: Managed,
    _memory: Arc<Memory>,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// The deleter of tensors of this library.
///
/// # Safety
/// `tensor` is null, or was made by [`crosshandle_memory_to_dlpack`] and not freed yet.
unsafe extern "C" fn delete(tensor: *mut Managed) {
    if !tensor.is_null() {
        // SAFETY: the owner's field has the leaked box of which the tensor is a part.
        drop(unsafe { Box::from_raw((*tensor).owner.cast::<Owned>()) });
    }
}

/// Returns the strides of an array without gaps, or `None` if it is too large.
fn contiguous(shape: &[i64]) -> Option<Box<[i64]>> {
    let mut strides = vec![1; shape.len()];
    let mut next: i64 = 1;
    for (stride, size) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next = next.checked_mul((*size).max(1))?;
    }
    Some(strides.into())
}

/// Returns the number of bytes from the first element to the end of the last one. Returns `None` if
/// a size or stride is negative or the result is too large.
fn extent(shape: &[i64], strides: &[i64], element: usize) -> Option<usize> {
    let mut is_empty = false;
    let mut last = 0_usize;
    for (size, stride) in shape.iter().zip(strides) {
        let (size, stride) = (usize::try_from(*size).ok()?, usize::try_from(*stride).ok()?);
        is_empty |= size == 0;
        // The largest number is too large below.
        last = last.saturating_add(size.saturating_sub(1).saturating_mul(stride));
    }
    match is_empty {
        true => Some(0),
        false => last.checked_add(1)?.checked_mul(element),
    }
}

/// Returns the size of an element in bytes.
fn element(bits: u8, lanes: u16) -> Result<usize> {
    let bits = usize::from(bits) * usize::from(lanes);
    match bits != 0 && bits.is_multiple_of(8) {
        true => Ok(bits / 8),
        false => Err(Failure::invalid("elements have a whole number of bytes")),
    }
}

const TOO_LARGE: Failure =
    Failure::invalid("the array is not inside the memory, or has a negative size or stride");
/// A tensor that other processes must not write. The memory's handles could not keep that.
const IS_READ_ONLY: Failure = Failure::Misuse(
    crosshandle_result::CROSSHANDLE_UNSUPPORTED,
    "the tensor is read-only, but processes that open shared memory may write it: share a copy",
);

/// Describes a part of memory as an array in DLPack's form, without a copy.
///
/// The tensor keeps the memory open until the consumer calls its deleter. Memory that was opened
/// read-only has the flag `DLPACK_FLAG_BITMASK_READ_ONLY`. The program orders accesses with events.
///
/// `context` must be a context of the memory's device, which the tensor names. The call does not
/// check this.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for an array that is not inside the memory, or has a
/// negative size or stride.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_to_dlpack(
    memory: *const crosshandle_memory,
    context: *const crosshandle_context,
    layout: *const crosshandle_layout,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> crosshandle_result {
    entry! {
        let place = place(tensor)?;
        let layout = given(layout)?;
        if layout.size != size_of::<crosshandle_layout>() {
            return Err(Failure::invalid("set `size` to the size of crosshandle_layout"));
        }
        let dimensions = layout.dimensions as usize;
        if dimensions > MAX_DIMENSIONS {
            return Err(Failure::invalid("an array has at most 64 dimensions"));
        }
        let shape: Box<[i64]> = list(layout.shape, dimensions)?.into();
        let strides = match layout.strides.is_null() {
            true => contiguous(&shape).ok_or(TOO_LARGE)?,
            false => list(layout.strides, dimensions)?.into(),
        };
        let element = element(layout.type_bits, 1)?;
        let memory = get(memory)?;
        let bytes = extent(&shape, &strides, element).ok_or(TOO_LARGE)?;
        let end = layout.offset.checked_add(bytes).ok_or(TOO_LARGE)?;
        if end > memory.len() {
            return Err(TOO_LARGE);
        }
        let device = get(context)?.device().info();
        let managed = Managed {
            version: VERSION,
            owner: ptr::null_mut(),
            deleter: Some(delete),
            flags: match memory.access() {
                Access::ReadOnly => READ_ONLY,
                Access::ReadWrite => 0,
            },
            tensor: Tensor {
                data: memory.as_ptr().wrapping_add(layout.offset).cast(),
                device_type: device.dlpack_type,
                device_id: device.index as i32,
                dimensions: dimensions as i32,
                code: layout.type_code,
                bits: layout.type_bits,
                lanes: 1,
                shape: shape.as_ptr(),
                strides: strides.as_ptr(),
                byte_offset: 0,
            },
        };
        let owned = Box::into_raw(Box::new(Owned {
            managed,
            _memory: Arc::clone(memory),
            _shape: shape,
            _strides: strides,
        }));
        (*owned).managed.owner = owned.cast();
        place.write((&raw mut (*owned).managed).cast());
        Ok(())
    }
}

/// A tensor of another library, which its deleter frees on drop.
struct Foreign(NonNull<Managed>);

// SAFETY: DLPack's deleters may be called by any thread, and nothing else uses the tensor.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the program has given the tensor to this library, which calls the deleter once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// Shares the bytes of a tensor of another library, without a copy. The memory starts at the first
/// element and ends with the last one. The program sends the shape and the type itself.
///
/// The library that made the tensor must have allocated it with the driver of the context's device.
/// If the call succeeds, the result owns the tensor, and its deleter is called when no process uses
/// the memory any more. Otherwise the caller still owns the tensor.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` for a tensor in ordinary memory of the host, for a read-only
/// tensor, and for an allocation that the driver cannot share. `CROSSHANDLE_INVALID_ARGUMENT` for a
/// tensor of another device or version, without elements, or with a negative size or stride. The
/// caller closes the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_from_dlpack(
    context: *const crosshandle_context,
    tensor: *mut DLManagedTensorVersioned,
    memory: *mut *mut crosshandle_memory,
) -> crosshandle_result {
    entry_object! { memory;
        let context = get(context)?;
        let managed = given(tensor.cast_const().cast::<Managed>())?;
        if managed.version[0] != VERSION[0] {
            return Err(Failure::invalid("the tensor has another major version of DLPack"));
        }
        if managed.flags & READ_ONLY != 0 {
            return Err(IS_READ_ONLY);
        }
        let device = context.device().info();
        let array = &managed.tensor;
        if (array.device_type, array.device_id) != (device.dlpack_type, device.index as i32) {
            return Err(Failure::invalid("the tensor is on another device than the context"));
        }
        let dimensions = usize::try_from(array.dimensions).unwrap_or(usize::MAX);
        if dimensions > MAX_DIMENSIONS {
            return Err(Failure::invalid("an array has at most 64 dimensions"));
        }
        let shape = list(array.shape, dimensions)?;
        let strides = match array.strides.is_null() {
            true => contiguous(shape).ok_or(TOO_LARGE)?,
            false => list(array.strides, dimensions)?.into(),
        };
        let bytes = extent(shape, &strides, element(array.bits, array.lanes)?);
        let bytes = bytes.ok_or(TOO_LARGE)?;
        let start = array.data.cast::<u8>().wrapping_add(array.byte_offset as usize);
        let start = NonNull::new(start).ok_or(Failure::NULL)?;
        let adopted = Arc::new(Memory::adopt(context, start, bytes)?);
        // All of adopted memory can always be lent, so the tensor is given away permanently here.
        let tensor = NonNull::new(tensor.cast::<Managed>()).ok_or(Failure::NULL)?;
        let lent = adopted.lend(.., Foreign(tensor))?;
        Arc::new(lent)
    }
}
