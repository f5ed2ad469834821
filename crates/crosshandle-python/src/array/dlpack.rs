//! Exports arrays as DLPack tensors. See <https://dmlc.github.io/dlpack/latest/>.

use super::dtype::Plain;
use super::{Array, Layout};
use crate::memory::SharedMemory;
use crosshandle::device::dlpack::{CPU, CUDA, ONE_API};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

/// The DLPack version (major, minor) of the capsules that this module creates.
pub(crate) const VERSION: [u32; 2] = [1, 0];
/// The bit in [`Versioned::flags`] that marks a tensor as read-only.
pub(crate) const READ_ONLY: u64 = 1;
/// The names of capsules whose tensor no consumer has taken yet: versioned, and unversioned.
pub(crate) const NEW_CAPSULES: [&CStr; 2] = [Versioned::NAMES[0], Unversioned::NAMES[0]];

/// DLPack's structure `DLTensor`, which describes an array.
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    pub(crate) ndim: i32,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) elements: u16,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// DLPack's structure `DLManagedTensorVersioned`: a tensor with an owner, a version and flags.
#[repr(C)]
pub(crate) struct Versioned {
    pub(crate) version: [u32; 2],
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) flags: u64,
    pub(crate) tensor: Tensor,
}

/// DLPack's structure `DLManagedTensor`: a tensor with an owner. Older consumers need it.
#[repr(C)]
pub(crate) struct Unversioned {
    pub(crate) tensor: Tensor,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A managed tensor and the data that it keeps alive. It contains no Python objects, so any thread
/// can free it without the interpreter's lock.
struct Owner<T> {
    tensor: T,
    _memory: Arc<SharedMemory>,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// The deleter of managed tensors that this module creates.
///
/// # Safety
/// The caller must ensure that `tensor` is null or was returned by [`Managed::make`], and that it
/// has not been freed yet.
unsafe extern "C" fn delete<T: Managed>(tensor: *mut T) {
    if !tensor.is_null() {
        // SAFETY: `tensor` is not null, so the caller guarantees that `make` returned it and that
        // it has not been freed. `make` leaked the `Owner` to which the tensor's owner field
        // points.
        drop(unsafe { Box::from_raw((*tensor).owner().cast::<Owner<T>>()) });
    }
}

/// A form of managed tensor: [`Versioned`] or [`Unversioned`].
trait Managed: Sized {
    /// The name of a capsule before a consumer has taken the tensor, and the name after that.
    const NAMES: [&CStr; 2];

    fn new(tensor: Tensor, read_only: bool) -> Self;
    fn owner(&self) -> *mut c_void;
    fn set_owner(&mut self, owner: *mut c_void);

    /// Creates a managed tensor that keeps an array's memory alive. `element` is the array's
    /// element type. `device` is DLPack's device type and device number. The tensor's deleter frees
    /// it.
    fn make(array: &Array, element: Plain, device: (i32, i32), read_only: bool) -> *mut Self {
        let Layout {
            dtype,
            shape,
            strides,
            ..
        } = &array.layout;
        let size = dtype.bytes() as i64;
        let mut sizes = Box::from_iter(shape.iter().map(|size| *size as i64));
        // In a dimension with at most one element, the stride has no effect. Make it positive,
        // because torch rejects negative strides.
        let steps = shape
            .iter()
            .zip(strides)
            .map(|(elements, stride)| match *elements > 1 {
                true => *stride as i64 / size,
                false => (*stride as i64 / size).abs(),
            });
        let mut steps = Box::from_iter(steps);
        let tensor = Tensor {
            data: array.address() as *mut c_void,
            device_type: device.0,
            device_id: device.1,
            ndim: shape.len() as i32,
            code: element.kind as u8,
            bits: element.bits,
            elements: 1,
            shape: sizes.as_mut_ptr(),
            strides: steps.as_mut_ptr(),
            byte_offset: 0,
        };
        let owner = Box::into_raw(Box::new(Owner {
            tensor: Self::new(tensor, read_only),
            _memory: Arc::clone(&array.memory),
            _shape: sizes,
            _strides: steps,
        }));
        // SAFETY: `owner` points to a live allocation to which no other reference exists.
        unsafe {
            (*owner).tensor.set_owner(owner.cast());
            &raw mut (*owner).tensor
        }
    }
}

impl Managed for Versioned {
    const NAMES: [&CStr; 2] = [c"dltensor_versioned", c"used_dltensor_versioned"];

    fn new(tensor: Tensor, read_only: bool) -> Self {
        Self {
            version: VERSION,
            owner: ptr::null_mut(),
            deleter: Some(delete::<Self>),
            flags: if read_only { READ_ONLY } else { 0 },
            tensor,
        }
    }

    fn owner(&self) -> *mut c_void {
        self.owner
    }

    fn set_owner(&mut self, owner: *mut c_void) {
        self.owner = owner;
    }
}

impl Managed for Unversioned {
    const NAMES: [&CStr; 2] = [c"dltensor", c"used_dltensor"];

    fn new(tensor: Tensor, _: bool) -> Self {
        Self {
            tensor,
            owner: ptr::null_mut(),
            deleter: Some(delete::<Self>),
        }
    }

    fn owner(&self) -> *mut c_void {
        self.owner
    }

    fn set_owner(&mut self, owner: *mut c_void) {
        self.owner = owner;
    }
}

/// Returns DLPack's device type and device number for some memory.
pub(super) fn device(memory: &SharedMemory) -> (i32, i32) {
    let info = memory.context.device().info();
    (info.dlpack_type, info.index as i32)
}

/// Exports an array as a DLPack capsule, in the newest form that the consumer accepts. Fails for a
/// read-only array if the consumer accepts only the unversioned form.
pub(super) fn capsule<'py>(
    array: &Bound<'py, Array>,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    let own = array.get();
    let device = device(&own.memory);
    let element = element(own)?;
    if max_version.is_some_and(|(major, _)| major >= VERSION[0]) {
        return wrap(
            array.py(),
            Versioned::make(own, element, device, own.read_only),
        );
    }
    if own.read_only {
        return Err(PyBufferError::new_err(
            "this memory is read-only, which the consumer's version of DLPack cannot express: copy it",
        ));
    }
    wrap(
        array.py(),
        Unversioned::make(own, element, device, own.read_only),
    )
}

/// Exports an array as an unversioned DLPack capsule, which every consumer accepts. That form has
/// no read-only flag.
pub(super) fn unversioned<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    let element = element(array)?;
    wrap(
        py,
        Unversioned::make(array, element, device(&array.memory), false),
    )
}

/// Creates a managed tensor that keeps an array's memory alive. The caller must free it with its
/// deleter.
pub(super) fn managed(array: &Array, read_only: bool) -> PyResult<*mut Versioned> {
    let element = element(array)?;
    Ok(Versioned::make(
        array,
        element,
        device(&array.memory),
        read_only,
    ))
}

/// Returns a DLPack tensor that borrows from an array and is valid as long as the array lives.
pub(super) fn borrowed(array: &Array) -> PyResult<Tensor> {
    let element = element(array)?;
    let (device_type, device_id) = device(&array.memory);
    let layout = &array.layout;
    let size = layout.dtype.bytes() as i64;
    let numbers = array.numbers.get_or_init(|| {
        let shape = layout.shape.iter().map(|size| *size as i64);
        let steps = layout.strides.iter().map(|stride| *stride as i64 / size);
        shape.chain(steps).collect()
    });
    let (shape, steps) = numbers.split_at(layout.shape.len());
    Ok(Tensor {
        data: array.address() as *mut c_void,
        device_type,
        device_id,
        ndim: layout.shape.len() as i32,
        code: element.kind as u8,
        bits: element.bits,
        elements: 1,
        shape: shape.as_ptr().cast_mut(),
        strides: steps.as_ptr().cast_mut(),
        byte_offset: 0,
    })
}

/// Returns this library's name for a device, such as `cuda:0`. `kind` and `number` are DLPack's
/// device type and device number.
pub(super) fn device_name(kind: i32, number: i32) -> PyResult<String> {
    match kind {
        CPU => Ok("host".into()),
        CUDA => Ok(format!("cuda:{number}")),
        ONE_API => Ok(format!("level_zero:{number}")),
        _ => Err(PyBufferError::new_err(format!(
            "there are no arrays on devices of DLPack's type {kind}"
        ))),
    }
}

/// Creates a capsule that owns a tensor from another library.
///
/// # Safety
/// The caller must own `tensor`, a valid managed tensor. Ownership passes to the capsule.
pub(super) unsafe fn wrap_foreign(
    py: Python<'_>,
    tensor: *mut Versioned,
) -> PyResult<Bound<'_, PyAny>> {
    let name = Versioned::NAMES[0].as_ptr();
    // SAFETY: `tensor` is not null, `name` is a static string, and `destroy_foreign` accepts a
    // capsule that this function creates.
    let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), name, Some(destroy_foreign)) };
    // SAFETY: `capsule` is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Destructor for capsules from [`wrap_foreign`]. If no consumer has taken the tensor, frees it
/// with the tensor's own deleter.
///
/// # Safety
/// The caller must ensure that [`wrap_foreign`] created `capsule`.
unsafe extern "C" fn destroy_foreign(capsule: *mut ffi::PyObject) {
    let name = Versioned::NAMES[0].as_ptr();
    // SAFETY: the caller guarantees that `capsule` is such a capsule. A consumer that takes the
    // tensor renames the capsule, so under this name the capsule still owns the tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, name).cast::<Versioned>();
            if let Some(delete) = (*tensor).deleter {
                delete(tensor);
            }
        }
    }
}

/// Returns an array's element type in DLPack's encoding.
///
/// Fails if the type has no DLPack code, if a stride is not a multiple of the element size, or if a
/// stride is negative. A negative stride would make torch throw an uncaught C++ exception.
fn element(array: &Array) -> PyResult<Plain> {
    if array.layout.is_reversed() {
        return Err(PyBufferError::new_err(
            "the array has a negative stride, which torch does not accept through DLPack: use array.numpy() on the host, or copy \
             the array first (copy.copy(array))",
        ));
    }
    let dtype = &array.layout.dtype;
    let Some(element) = dtype.numbered() else {
        return Err(PyBufferError::new_err(format!(
            "only NumPy has elements of {dtype}: use array.numpy()"
        )));
    };
    let size = dtype.bytes() as isize;
    match array.layout.strides.iter().all(|stride| stride % size == 0) {
        true => Ok(element),
        false => Err(PyBufferError::new_err(
            "the array's strides are not multiples of its element size, which DLPack cannot express",
        )),
    }
}

/// A wrapper that exports an array as an unversioned DLPack capsule even if the array is read-only.
/// It is used for consumers that never write to the array.
#[pyclass(frozen)]
pub(super) struct NeverWritten(pub(super) Py<Array>);

#[pymethods]
impl NeverWritten {
    #[pyo3(signature = (*, stream = None, **_options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.0.get();
        let element = element(array)?;
        array.order_before(py, stream)?;
        wrap(
            py,
            Unversioned::make(array, element, device(&array.memory), false),
        )
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        device(&self.0.get().memory)
    }
}

fn wrap<T: Managed>(py: Python<'_>, tensor: *mut T) -> PyResult<Bound<'_, PyAny>> {
    let name = T::NAMES[0].as_ptr();
    // SAFETY: `tensor` is not null, `name` is a static string, and `destroy::<T>` accepts a capsule
    // that this function creates.
    let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), name, Some(destroy::<T>)) };
    if capsule.is_null() {
        // SAFETY: `make` returned the tensor, and without a capsule this function still owns it.
        unsafe { delete(tensor) };
    }
    // SAFETY: `capsule` is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Destructor for capsules from [`wrap`]. Frees the tensor if no consumer has taken it.
///
/// # Safety
/// The caller must ensure that [`wrap`] created `capsule` for a tensor of type `T`.
unsafe extern "C" fn destroy<T: Managed>(capsule: *mut ffi::PyObject) {
    let name = T::NAMES[0].as_ptr();
    // SAFETY: the caller guarantees that `capsule` is such a capsule. A consumer that takes the
    // tensor renames the capsule, so under this name the capsule still owns the tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name).cast::<T>());
        }
    }
}
