//! The tables of entry points, and the functions by which the loader fetches them.

use crate::abi::boundary::enter;
use crate::abi::description::{self, Description};
use crate::abi::failure::Failure;
use crate::abi::{object, unsupported};
use crate::discovery::{adapter, device, platform};
use crate::enqueue::{command_buffer, graph};
use crate::memory::{bindless, object as memory_object, physical, usm, virtual_memory};
use crate::program::kernel;
use crate::{context, enqueue, event, ipc, program, queue, sampler};
use unified_runtime_sys::{ur_api_version_t, ur_dditable_t, ur_result_t};

/// The table of all entry points. The compiler rejects the table if an entry is missing.
pub static TABLE: ur_dditable_t = ur_dditable_t {
    Adapter: adapter::TABLE,
    Platform: platform::TABLE,
    Context: context::entry::TABLE,
    Event: event::TABLE,
    EventExp: event::EXP_TABLE,
    Program: program::TABLE,
    ProgramExp: program::EXP_TABLE,
    Kernel: kernel::TABLE,
    Queue: queue::entry::TABLE,
    QueueExp: graph::queue::TABLE,
    Sampler: sampler::TABLE,
    Mem: memory_object::TABLE,
    PhysicalMem: physical::TABLE,
    Enqueue: enqueue::TABLE,
    EnqueueExp: enqueue::EXP_TABLE,
    USM: usm::TABLE,
    USMExp: usm::EXP_TABLE,
    BindlessImagesExp: bindless::TABLE,
    CommandBufferExp: command_buffer::TABLE,
    GraphExp: graph::TABLE,
    IPCExp: ipc::TABLE,
    MemoryExportExp: unsupported::MEMORY_EXPORT_EXP,
    UsmP2PExp: usm::P2P_TABLE,
    VirtualMem: virtual_memory::TABLE,
    Device: device::TABLE,
    DeviceExp: device::EXP_TABLE,
};

/// Copies a table of entry points to the loader's memory, and sets the adapter's description.
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn copy<T: Copy>(
    description: Description,
    version: ur_api_version_t,
    to: *mut T,
    table: fn(&ur_dditable_t) -> &T,
) -> ur_result_t {
    enter(|_| {
        if to.is_null() {
            return Err(Failure::NULL_POINTER);
        }
        // Tables for other versions of UR may have other lengths.
        if version != ur_api_version_t::UR_API_VERSION_CURRENT {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_VERSION,
                format!(
                    "the loader uses version {:#x} of Unified Runtime, but this adapter has version {:#x}",
                    version.0,
                    ur_api_version_t::UR_API_VERSION_CURRENT.0
                ),
            ));
        }
        description::set(description);
        object::set_table(&TABLE);
        // SAFETY: the pointer is not null, so the caller ensures that it is valid for a write.
        unsafe { to.write(*table(&TABLE)) };
        Ok(())
    })
}

/// Exports the functions by which the loader fetches the tables of entry points. The adapter has
/// the properties in the given [`Description`].
///
/// Also exports `crosshandle_usm_functions`, by which other libraries get
/// [`UsmFunctions`](crate::UsmFunctions). Use the macro once, in a `cdylib`.
#[macro_export]
macro_rules! export_adapter {
    ($description:expr) => {
        $crate::sys::for_each_table!([$crate::export_tables], $description);

        /// Returns the functions that share USM allocations by their addresses. Returns null for an
        /// unsupported version.
        #[unsafe(no_mangle)]
        pub extern "C" fn crosshandle_usm_functions(version: u32) -> *const $crate::UsmFunctions {
            match version {
                $crate::USM_FUNCTIONS_VERSION => &raw const $crate::USM_FUNCTIONS,
                _ => ::std::ptr::null(),
            }
        }
    };
}

/// Exports one function for each table.
#[doc(hidden)]
#[macro_export]
macro_rules! export_tables {
    ($description:expr; $($field:ident: $table:ident, $function:ident;)*) => {
        $(
            /// Copies a table of entry points to the loader's memory.
            ///
            /// # Safety
            /// `table` must be null or valid for a write.
            #[allow(non_snake_case, reason = "the name is the loader's")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                version: $crate::sys::ur_api_version_t,
                table: *mut $crate::sys::$table,
            ) -> $crate::sys::ur_result_t {
                // SAFETY: the caller upholds this function's contract.
                unsafe { $crate::table::copy($description, version, table, |all| &all.$field) }
            }
        )*
    };
}
