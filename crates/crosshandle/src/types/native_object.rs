//! Objects of drivers, as values.

use crate::handle::BackendKind;

/// A driver's own object, as programs that call the driver know it: a pointer or a number.
///
/// It is only a value: it keeps nothing alive, and does not say what kind of object it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NativeObject {
    backend: BackendKind,
    raw: usize,
}

impl NativeObject {
    /// Names an object of the driver of `backend` by its pointer or number.
    pub fn new(backend: BackendKind, raw: usize) -> Self {
        Self { backend, raw }
    }

    /// Returns the backend whose driver the object belongs to.
    pub fn backend(self) -> BackendKind {
        self.backend
    }

    /// Returns the pointer or number.
    pub fn raw(self) -> usize {
        self.raw
    }
}

/// An allocation that a program made with a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverAllocation {
    /// The address of its first byte.
    pub address: usize,
    /// Its length in bytes.
    pub len: usize,
    /// A number that no other allocation of this process ever has, by which a new allocation at an old
    /// address is recognised; 0 where the driver has none.
    pub number: u64,
}

/// The owner of an adopted object of the driver: the side that destroys the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// The program destroys the object, after everything here that uses it is gone.
    Borrowed,
    /// This library destroys the object, once nothing here uses it any more.
    Owned,
}

/// The objects of an OpenCL runtime that runs the host's kernels, as numbers. They live as long as the
/// process, those of a [part](crate::Device::partition) as long as that part and what was made on it. All contexts
/// on one device use the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NativeRuntime {
    /// The `cl_platform_id`.
    pub platform: usize,
    /// The `cl_device_id`.
    pub device: usize,
    /// The `cl_context`.
    pub context: usize,
}
