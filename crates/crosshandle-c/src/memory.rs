//! Memory: allocated, adopted or opened.

use crate::boundary::{
    buffer, entry, entry_object, entry_value, given, list, place, put, text, timeout,
};
use crate::context::crosshandle_context;
use crate::error::{Failure, Result, crosshandle_result};
use crate::handle::crosshandle_memory_handle;
use crate::object::{close, get, object, open};
use crosshandle::{Access, AllocationOptions, Memory, MemoryKind};
use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A range of device memory that was allocated, adopted or opened here. Any thread may use it. Only
/// events order the accesses of several threads and processes.
pub struct crosshandle_memory {}
object!(crosshandle_memory, Arc<Memory>, 3, "memory");

/// Memory on the device, which the host may not be able to access: a value of `kind`.
pub const CROSSHANDLE_MEMORY_DEVICE: u32 = 0;
/// Memory on the host that the host and the device can access: a value of `kind`.
pub const CROSSHANDLE_MEMORY_HOST: u32 = 1;
/// Memory anywhere that the host and the device can access: a value of `kind`.
pub const CROSSHANDLE_MEMORY_SHARED: u32 = 2;

/// Access for reading and writing: a value of `access`.
pub const CROSSHANDLE_READ_WRITE: u32 = 0;
/// Access for reading only: a value of `access`. A write by the host ends the process.
pub const CROSSHANDLE_READ_ONLY: u32 = 1;

/// The options of an allocation. A structure of zeros, with `size` set, has the defaults.
#[repr(C)]
pub struct crosshandle_allocation_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// Where the memory is: one of `CROSSHANDLE_MEMORY_…`.
    pub kind: u32,
    /// Whether all pages are taken at once.
    pub populate: bool,
    /// Whether the allocation may be larger than the memory that the machine has left.
    pub overcommit: bool,
    /// The alignment of the address in bytes, a power of two of at most 2 MiB. 0 is the default of
    /// 64 bytes.
    pub alignment: usize,
}

/// A function that the library calls once with the program's `user` pointer, when it no longer
/// needs the program's data. A thread of the library may call it. It must not throw.
pub type crosshandle_release = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// A function that the library calls with the program's `user` pointer as a command of a queue. A
/// thread of the library calls it. It must not throw.
pub type crosshandle_work = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// The program's data, which the program's function releases on drop.
pub(crate) struct Owner {
    release: crosshandle_release,
    user: *mut c_void,
}

// SAFETY: the library only passes the pointer to the program's function, which any thread may call.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    pub(crate) fn new(release: crosshandle_release, user: *mut c_void) -> Self {
        Self { release, user }
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.user
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program has passed the function with this pointer, and it is called once.
            unsafe { release(self.user) }
        }
    }
}

/// Converts one of `CROSSHANDLE_READ_…`.
pub(crate) fn access(access: u32) -> Result<Access> {
    match access {
        CROSSHANDLE_READ_WRITE => Ok(Access::ReadWrite),
        CROSSHANDLE_READ_ONLY => Ok(Access::ReadOnly),
        _ => Err(Failure::invalid(
            "`access` is neither CROSSHANDLE_READ_WRITE nor CROSSHANDLE_READ_ONLY",
        )),
    }
}

fn address(address: *mut c_void) -> Result<NonNull<u8>> {
    NonNull::new(address.cast()).ok_or(Failure::NULL)
}

/// Allocates `size` bytes of memory of the context's device. `options` may be null for the
/// defaults. The contents are arbitrary.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for 0 bytes or a wrong alignment, and
/// `CROSSHANDLE_EXHAUSTED` if memory or a limit of the system is used up. The caller closes the
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_allocate(
    context: *const crosshandle_context,
    size: usize,
    options: *const crosshandle_allocation_options,
    memory: *mut *mut crosshandle_memory,
) -> crosshandle_result {
    entry_object! { memory;
        let mut chosen = AllocationOptions::new(size);
        if let Ok(options) = given(options) {
            if options.size != size_of::<crosshandle_allocation_options>() {
                return Err(Failure::invalid(
                    "set `size` to the size of crosshandle_allocation_options",
                ));
            }
            let kind = match options.kind {
                CROSSHANDLE_MEMORY_DEVICE => MemoryKind::Device,
                CROSSHANDLE_MEMORY_HOST => MemoryKind::Host,
                CROSSHANDLE_MEMORY_SHARED => MemoryKind::Shared,
                _ => return Err(Failure::invalid("`kind` is none of CROSSHANDLE_MEMORY_…")),
            };
            chosen = chosen
                .kind(kind)
                .populate(options.populate)
                .overcommit(options.overcommit);
            if options.alignment != 0 {
                chosen = chosen.align(options.alignment);
            }
        }
        Arc::new(get(context)?.allocate_with(chosen)?)
    }
}

/// Adopts `size` bytes of device memory at `address` that the program has allocated with the driver
/// (`cudaMalloc`, `zeMemAllocDevice`) or with a library that uses it. The memory can then be shared
/// like any other.
///
/// The program frees the allocation after it has closed the result and all commands that use it
/// are complete. If the driver does not count importers, they must have closed the memory too.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the bytes are not in allocations of this device, and
/// `CROSSHANDLE_UNSUPPORTED` if the driver cannot share that kind of allocation. The caller closes
/// the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_adopt(
    context: *const crosshandle_context,
    address: *mut c_void,
    size: usize,
    memory: *mut *mut crosshandle_memory,
) -> crosshandle_result {
    entry_object! { memory;
        let adopted = Memory::adopt(get(context)?, self::address(address)?, size)?;
        Arc::new(adopted)
    }
}

/// Lends `size` bytes of memory from byte `offset` as memory with a handle of its own. Importers of
/// several parts map their common segment only once.
///
/// `release` may be null. Otherwise it is called with `user` once, when the result is closed, its
/// commands are complete and no process has it open. It is also called if this call fails.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for a part that is empty or not inside the memory, and
/// for memory that was opened from a handle. The caller closes the part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_lend(
    memory: *const crosshandle_memory,
    offset: usize,
    size: usize,
    release: crosshandle_release,
    user: *mut c_void,
    part: *mut *mut crosshandle_memory,
) -> crosshandle_result {
    entry! {
        let owner = Owner::new(release, user);
        let part = place(part)?;
        let end = offset.checked_add(size);
        let end = end.ok_or(Failure::invalid("the part is not inside the memory"))?;
        let lent = get(memory)?.lend(offset..end, owner)?;
        part.write(open(Arc::new(lent)));
        Ok(())
    }
}

/// Opens memory of another process by its handle, and maps it into this process. `access` is
/// `CROSSHANDLE_READ_WRITE` or `CROSSHANDLE_READ_ONLY`. The call waits for the exporter for at most
/// `timeout_ns` nanoseconds.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE`, `CROSSHANDLE_STALE` if the exporter has freed the memory,
/// `CROSSHANDLE_PEER_DIED` if the exporter has ended, `CROSSHANDLE_PERMISSION_DENIED` for writing
/// with a read-only handle, `CROSSHANDLE_TIMED_OUT`, `CROSSHANDLE_EXHAUSTED`. The caller closes the
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_open(
    context: *const crosshandle_context,
    handle: *const crosshandle_memory_handle,
    access: u32,
    timeout_ns: u64,
    memory: *mut *mut crosshandle_memory,
) -> crosshandle_result {
    entry_object! { memory;
        let handle = crosshandle_memory_handle::read(handle)?;
        let (access, timeout) = (self::access(access)?, timeout(timeout_ns));
        let opened = get(context)?.open_memory_timeout(&handle, access, timeout)?;
        Arc::new(opened)
    }
}

/// Returns a handle to the whole memory. `access` is the access that the handle grants.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for memory that was opened from a handle; pass that
/// handle on instead. `CROSSHANDLE_EXHAUSTED` if a limit is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_get_handle(
    memory: *const crosshandle_memory,
    access: u32,
    handle: *mut crosshandle_memory_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let memory = get(memory)?;
        let made = match self::access(access)? {
            Access::ReadWrite => memory.handle()?,
            Access::ReadOnly => memory.handle_read_only()?,
        };
        handle.write(crosshandle_memory_handle::new(&made));
        Ok(())
    }
}

/// Returns a handle for reading and writing to the bytes from `offset` to the end of the memory.
///
/// Errors: those of `crosshandle_memory_get_handle`, and `CROSSHANDLE_INVALID_ARGUMENT` for an
/// offset that is not inside the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_get_handle_at(
    memory: *const crosshandle_memory,
    offset: usize,
    handle: *mut crosshandle_memory_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let made = get(memory)?.handle_at(offset)?;
        handle.write(crosshandle_memory_handle::new(&made));
        Ok(())
    }
}

/// Returns the address of the memory's first byte: a device address, which is also a valid pointer
/// if the host can access the memory. Returns null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_data(memory: *const crosshandle_memory) -> *mut c_void {
    entry_value!(or ptr::null_mut(); Ok(get(memory)?.as_ptr().cast()))
}

/// Returns a pointer with which the host can access the memory. Returns null on an error, which is
/// `CROSSHANDLE_UNSUPPORTED` for device memory that the host cannot access.
///
/// The pointer is valid until the memory is closed. Memory that was opened with
/// `CROSSHANDLE_READ_ONLY` must only be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_host_data(
    memory: *const crosshandle_memory,
) -> *mut c_void {
    entry_value! { or ptr::null_mut();
        let memory = get(memory)?;
        memory.bytes()?;
        Ok(memory.as_ptr().cast())
    }
}

/// Returns the size of the memory in bytes. Returns 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_size(memory: *const crosshandle_memory) -> usize {
    entry_value!(or 0; Ok(get(memory)?.len()))
}

/// Copies `size` bytes from byte `offset` of the memory to `to`, on the calling thread.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` for device memory that the host cannot access, and
/// `CROSSHANDLE_INVALID_ARGUMENT` if the range is not inside the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_read(
    memory: *const crosshandle_memory,
    offset: usize,
    to: *mut c_void,
    size: usize,
) -> crosshandle_result {
    entry! {
        let bytes = get(memory)?.bytes()?;
        let bytes = bytes.slice(offset..offset.saturating_add(size))?;
        Ok(bytes.read(0, buffer(to.cast(), size)?)?)
    }
}

/// Copies `size` bytes from `from` to byte `offset` of the memory, on the calling thread.
///
/// Errors: those of `crosshandle_memory_read`, and `CROSSHANDLE_PERMISSION_DENIED` for memory that
/// was opened read-only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_write(
    memory: *const crosshandle_memory,
    offset: usize,
    from: *const c_void,
    size: usize,
) -> crosshandle_result {
    entry!(Ok(get(memory)?.write(offset, list(from.cast(), size)?)?))
}

/// Gives the memory a name, which tools and errors of all processes that share it show. Names are
/// cut to 32 bytes. Only the process that allocated or adopted the memory can name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_set_name(
    memory: *const crosshandle_memory,
    name: *const c_char,
) -> crosshandle_result {
    entry! {
        get(memory)?.set_name(text(name)?);
        Ok(())
    }
}

/// Stores in `in_use` whether submitted commands still use the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_is_in_use(
    memory: *const crosshandle_memory,
    in_use: *mut bool,
) -> crosshandle_result {
    entry! {
        put(in_use, get(memory)?.is_in_use());
        Ok(())
    }
}

/// Frees memory of this process, or closes opened memory in this process. Commands that use it keep
/// it until they are complete, and processes that have it open keep its bytes. Closing null does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_close(
    memory: *mut crosshandle_memory,
) -> crosshandle_result {
    entry!(close(memory).map(drop))
}
