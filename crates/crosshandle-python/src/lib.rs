//! The Python module `crosshandle._crosshandle`.
//!
//! Each class wraps an object of the Rust library, and its methods raise that library's errors as
//! Python exceptions. Memory, links and address ranges can be closed, and work in `with`
//! statements. A blocking method lets other Python threads run, and Ctrl-C interrupts it. Programs
//! import the package `python/crosshandle`, which adds the parts written in Python.
//!
//! | file | holds |
//! |---|---|
//! | `device.rs`, `context.rs`, `memory/`, `event/`, `queue.rs`, `memory/physical.rs` | a class for each object of the library |
//! | `handle.rs` | classes for handles, which convert to `bytes` and `str` |
//! | `array/` | typed views of memory, the array protocols that they support, and conversions of arguments of any size |
//! | `foreign/` | arrays created by other libraries, and the allocators that those libraries call |
//! | `bundle.rs` | the encoding in which arrays are sent to other processes |
//! | `channel/` | channels of frames, their producers and consumers, and arrays in their slots |
//! | `memory/pending.rs` | pickled objects that no process has opened yet |
//! | `event/notifier.rs` | notifications of completed signals, for event loops such as asyncio |
//! | `link/` | memory and events on other hosts |
//! | `store/` | named models that a holder process keeps in memory |
//! | `streams.rs` | a cache of queues for other libraries' streams |
//! | `error.rs`, `interrupt.rs` | exceptions, and waits that Ctrl-C interrupts |

mod array;
mod bundle;
mod channel;
mod context;
mod device;
mod error;
mod event;
mod foreign;
mod handle;
mod interrupt;
mod link;
mod memory;
mod queue;
mod store;
mod streams;

use pyo3::prelude::*;

/// The part of `crosshandle` that is written in Rust.
#[pymodule]
mod _crosshandle {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python requires this name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::array::{Array, dtype_of, numpy_dtype};
    #[pymodule_export]
    use crate::bundle::{forget_contexts, pack_foreign, pack_shared, unpack, unpack_copied};
    #[pymodule_export]
    use crate::channel::{Channel, Consumer, Item, Producer, Slot, open_channel};
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::device::{Device, device_name};
    #[pymodule_export]
    use crate::event::Event;
    #[pymodule_export]
    use crate::event::Notifier;
    #[pymodule_export]
    use crate::event::{DeviceEvent, device_header};
    #[pymodule_export]
    use crate::foreign::allocator::{
        Block, abandon_arena, keep_for_ever, serve_allocations, stop_freeing,
    };
    #[pymodule_export]
    use crate::foreign::{
        Foreign, adopt_all, check_whole, copied, copied_array, describe, filled, laid_over, moved,
    };
    #[pymodule_export]
    use crate::handle::{
        ChannelHandle, EventHandle, MemoryHandle, PhysicalMemoryHandle, parse_handle,
    };
    #[pymodule_export]
    use crate::link::{Link, Listener, RemoteEvent, RemoteMemory, new_token};
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::memory::pending::{
        keep, kept, kept_limits, opened, release_kept, set_kept_limits, wait_for_receivers,
    };
    #[pymodule_export]
    use crate::memory::physical::{PhysicalMemory, VirtualRange};
    #[pymodule_export]
    use crate::queue::Queue;
    #[pymodule_export]
    use crate::store::{StoreClient, StoreModel, StoreUpdater};
    #[pymodule_export]
    use crate::streams::{adopted_queue, forget_adopted, keep_adopted};
}
