//! Arrays that other libraries made: what they are, and how they are shared.
//!
//! | file | holds |
//! |---|---|
//! | `description.rs` | what an array is, by the protocol that its library has |
//! | `buffer.rs`, `capsule.rs`, `exchange.rs`, `interface.rs`, `torch.rs` | the protocols |
//! | `adopt.rs` | the memory beneath arrays, shared without a copy |
//! | `owners.rs` | what keeps that memory from being used again |
//! | `allocator.rs` | allocators that torch and CuPy call |
//! | `copy.rs` | copies of what cannot be |
//! | `bytes.rs` | the bytes themselves, for a store |

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

pub(crate) use adopt::{Wholes, adopt_all, laid_over};
pub(crate) use bytes::Bytes;
pub(crate) use copy::{copied, copied_array, filled, moved};
pub(crate) use description::{Foreign, Place, describe};
pub(crate) use exchange::torch_tensor;
pub(crate) use interface::{check_whole, swapped};
