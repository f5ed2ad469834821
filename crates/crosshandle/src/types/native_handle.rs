//! Objects of drivers, as values.

use crate::handle::BackendKind;

/// An object of a driver, as that driver's own programs know it: a pointer or a number. Only a
/// value: it keeps nothing, and says nothing of what kind of object it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NativeHandle {
    backend: BackendKind,
    value: usize,
}

impl NativeHandle {
    /// An object of the driver of `backend`.
    pub fn new(backend: BackendKind, value: usize) -> Self {
        Self { backend, value }
    }

    /// Whose driver's it is.
    pub fn backend(self) -> BackendKind {
        self.backend
    }

    /// The pointer or number.
    pub fn value(self) -> usize {
        self.value
    }
}

/// Who destroys an object of the driver that was adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// Whoever made it, after everything here that uses it is gone.
    Borrowed,
    /// We do, once nothing here uses it any more.
    Owned,
}
