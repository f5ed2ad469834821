//! Plain data.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data: every sequence of bytes is a value, and a value has no padding and no pointers that
/// Rust follows. Such values can lie in memory that other processes write.
///
/// Numbers and arrays of them are plain data. A structure becomes plain data by `zerocopy`'s derives,
/// which this crate re-exports:
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
