//! The results of device queries, with one file for each topic.
//!
//! Each result has the type that `ur_api.h` specifies for the property. An optional property is
//! reported as unsupported if it is unknown or does not apply to the device.

mod capabilities;
mod experimental;
mod identity;
mod images;
mod kernels;
mod limits;
mod memory;
mod partition;

use crate::abi::failure::{Failure, Result};
use crate::abi::object::Shared;
use crate::abi::query::Query;
use crate::discovery::Device;
use std::ffi::c_void;
use unified_runtime_sys::{ur_device_info_t, ur_result_t};

/// The result of a query, in one of UR's types.
pub(super) enum Answer<'a> {
    Truth(bool),
    U32(u32),
    U64(u64),
    Size(usize),
    Sizes([usize; 3]),
    List(&'a [u32]),
    Text(&'a str),
    Words(Vec<&'a str>),
    /// A version as text: the major and the minor number, separated by a period.
    Version(u32, u32),
    Bytes([u8; 16]),
    Handle(*mut c_void),
    Numbers(Vec<u32>),
    Pairs(Vec<[u32; 2]>),
    /// The property is not supported on this device.
    Unsupported,
}

impl Answer<'_> {
    /// Writes the result to the caller's memory.
    pub(super) fn write(self, query: Query<'_>) -> Result<()> {
        match self {
            Self::Truth(value) => query.truth(value),
            Self::U32(value) => query.value(value),
            Self::U64(value) => query.value(value),
            Self::Size(value) => query.value(value),
            Self::Sizes(values) => query.value(values),
            Self::List(values) => query.list(values),
            Self::Text(text) => query.text(text),
            Self::Words(words) => query.text(&words.join(" ")),
            Self::Version(major, minor) => query.text(&format!("{major}.{minor}")),
            Self::Bytes(bytes) => query.value(bytes),
            Self::Handle(handle) => query.value(handle),
            Self::Numbers(numbers) => query.list(&numbers),
            Self::Pairs(pairs) => query.list(&pairs),
            Self::Unsupported => Err(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into()),
        }
    }
}

/// Returns the value of a device property.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` if UR has no such property.
pub(super) fn answer(device: &Shared<Device>, name: ur_device_info_t) -> Result<Answer<'_>> {
    identity::answer(device, name)
        .or_else(|| partition::answer(device, name))
        .or_else(|| kernels::answer(device, name))
        .or_else(|| limits::answer(device, name))
        .or_else(|| memory::answer(device, name))
        .or_else(|| capabilities::answer(device, name))
        .or_else(|| images::answer(device, name))
        .or_else(|| experimental::answer(device, name))
        .ok_or(Failure::ENUMERATION)
}
