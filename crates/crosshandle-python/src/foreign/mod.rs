//! Describes arrays from other libraries, and shares or copies their memory.
//!
//! | file | holds |
//! |---|---|
//! | `description.rs` | the description of an array, read through a protocol that its library supports |
//! | `buffer.rs`, `capsule.rs`, `exchange.rs`, `interface.rs`, `torch.rs` | one array protocol each |
//! | `adopt.rs` | sharing the memory of arrays without a copy |
//! | `owners.rs` | the objects that keep shared memory from being reused |
//! | `allocator.rs` | allocators that torch and CuPy call |
//! | `copy.rs` | copies of arrays that cannot be shared |
//! | `bytes.rs` | direct access to arrays' bytes, for a store that copies them |

mod adopt;
pub(crate) mod allocator;
mod buffer;
mod bytes;
mod capsule;
mod copy;
mod description;
mod exchange;
mod interface;
pub(crate) mod owners;
mod torch;

pub(crate) use adopt::{Wholes, adopt, adopt_all, laid_over};
pub(crate) use bytes::Bytes;
pub(crate) use copy::{copied, copied_array, copied_to_slot, filled, moved, submitted_to_slot};
pub(crate) use description::{Foreign, Place, describe};
pub(crate) use exchange::torch_tensor;
pub(crate) use interface::{check_whole, swapped};
