//! Plain data.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data, which can lie in memory that other processes write. Every sequence of bytes is a
/// valid value, and a value has no padding and no pointers that Rust follows.
///
/// Numbers and arrays of numbers are plain data. A structure becomes plain data through the derives
/// of `zerocopy`, which this crate re-exports:
///
/// ```
/// use crosshandle::zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[zerocopy(crate = "crosshandle::zerocopy")]
/// #[repr(C)]
/// struct Particle {
///     position: [f32; 3],
///     mass: f32,
/// }
///
/// fn is_plain<T: crosshandle::Pod>() {}
/// is_plain::<Particle>();
/// ```
pub trait Pod: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Pod for T {}
