//! Identifiers of driver objects.

use crosshandle_handle::BackendKind;

/// An object of a driver, identified by the pointer or number that the driver's own interface uses.
///
/// This type is only an identifier. It does not keep the object alive, and does not tell the kind
/// of the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NativeObject {
    backend: BackendKind,
    raw: usize,
}

impl NativeObject {
    /// Creates the identifier of an object of `backend`'s driver from its pointer or number.
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

/// An allocation that a program made directly with a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverAllocation {
    /// The address of the first byte.
    pub address: usize,
    /// The length in bytes.
    pub len: usize,
    /// A number that no other allocation of this process ever has. It distinguishes a new
    /// allocation from an earlier one at the same address. 0 if the driver has no such number.
    pub number: u64,
}

/// The side that destroys an adopted object of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// The program destroys the object, after it has dropped all objects of this library that use
    /// it.
    Borrowed,
    /// This library destroys the object once no object of the library uses it.
    Owned,
}

/// Raw handles, as integers, of the OpenCL runtime that runs kernels on the host. All contexts on
/// one device share them, and they live as long as the process. Those of a part of a device live
/// until the part and all objects created on it have been dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeRuntime {
    /// The `cl_platform_id`.
    pub platform: usize,
    /// The `cl_device_id`.
    pub device: usize,
    /// The `cl_context`.
    pub context: usize,
}
