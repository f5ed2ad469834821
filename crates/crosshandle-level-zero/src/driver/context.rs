//! A context of the driver, and the memory in it.

use super::event_pool::EventPools;
use super::{ContextHandle, DeviceHandle, Driver, Handle, check, check_memory, description};
use crosshandle_os::process;
use crosshandle_types::MemoryKind;
use crosshandle_types::error::{Error, Result};
use level_zero_sys::{ze_external_memory_type_flags_t, ze_ipc_mem_handle_t, ze_memory_type_t};
use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;

/// The length of the driver's handles for other processes, in bytes.
pub(crate) const IPC_HANDLE_BYTES: usize = 64;

/// A context of the driver. Every object of a driver belongs to a context.
pub(crate) struct DriverContext {
    pub driver: &'static Driver,
    pub handle: ContextHandle,
    /// Whether the context is destroyed with this value. Otherwise it belongs to the program.
    is_ours: bool,
    pub(super) events: EventPools,
    /// Whether a check has shown that opened events receive later signals.
    pub(super) has_live_events: AtomicBool,
}

impl DriverContext {
    pub(super) fn create(driver: &'static Driver) -> Result<Self> {
        let desc = description!(ze_context_desc_t, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
        let mut handle = ptr::null_mut();
        let create = driver.loader.zeContextCreate;
        // SAFETY: a driver that the loader gave, and a live result.
        let code = unsafe { create(driver.handle.0, &desc, &mut handle) };
        check("zeContextCreate", code)?;
        Ok(Self {
            driver,
            handle: Handle(handle),
            is_ours: true,
            events: EventPools::default(),
            has_live_events: AtomicBool::new(false),
        })
    }

    /// Adopts a context that the program created.
    ///
    /// # Safety
    /// `handle` is a context of this driver, and lives as long as the result.
    pub(crate) unsafe fn adopt(driver: &'static Driver, handle: ContextHandle) -> Self {
        Self {
            driver,
            handle,
            is_ours: false,
            events: EventPools::default(),
            has_live_events: AtomicBool::new(false),
        }
    }

    /// Returns whether this value owns the driver's context. Otherwise the program decides when it
    /// is destroyed.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Allocates memory at a multiple of `align`. Memory that will be shared must be allocated with
    /// `export`. Otherwise Intel's driver places small allocations next to other memory of the
    /// process and would share all of it. On some GPUs, it also compresses memory without `export`,
    /// and handles report compression only since version 26.14.
    pub(crate) fn allocate(
        &self,
        device: DeviceHandle,
        kind: MemoryKind,
        len: usize,
        align: usize,
        export: Option<ze_external_memory_type_flags_t>,
    ) -> Result<NonNull<u8>> {
        let loader = &self.driver.loader;
        let mut exported = description!(
            ze_external_memory_export_desc_t,
            ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC
        );
        exported.flags = export.unwrap_or(0);
        let chained = export.map_or(ptr::null(), |_| (&raw const exported).cast::<c_void>());
        let mut start: *mut c_void = ptr::null_mut();
        let (context, device) = (self.handle.0, device.0);
        let code = match kind {
            MemoryKind::Device => {
                let mut desc = description!(
                    ze_device_mem_alloc_desc_t,
                    ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
                );
                desc.pNext = chained;
                // SAFETY: our context, one of its devices, live descriptions and a live result.
                unsafe { (loader.zeMemAllocDevice)(context, &desc, len, align, device, &mut start) }
            }
            // Drivers cannot share memory that migrates between host and device.
            MemoryKind::Host | MemoryKind::Shared => {
                let mut desc = description!(
                    ze_host_mem_alloc_desc_t,
                    ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC
                );
                desc.pNext = chained;
                // SAFETY: as above.
                unsafe { (loader.zeMemAllocHost)(context, &desc, len, align, &mut start) }
            }
        };
        check_memory("allocating memory (zeMemAlloc)", len, code)?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::out_of_memory(len))?;
        self.driver.known_memory.add(start.addr().get());
        Ok(start)
    }

    /// Frees memory that `allocate` returned.
    ///
    /// # Safety
    /// No command and no thread accesses the memory any more.
    pub(crate) unsafe fn free(&self, start: NonNull<u8>) -> Result<()> {
        self.driver.known_memory.remove(start.addr().get());
        // SAFETY: promised by the caller.
        let code = unsafe {
            (self.driver.loader.zeMemFree)(self.handle.0, start.as_ptr().cast::<c_void>())
        };
        check("zeMemFree", code)
    }

    /// Returns the driver's IPC handle of memory that `allocate` returned. The driver owns the
    /// descriptor in the handle until the memory is freed.
    pub(crate) fn export(&self, start: NonNull<u8>) -> Result<[u8; IPC_HANDLE_BYTES]> {
        let mut handle = ze_ipc_mem_handle_t {
            data: [0; IPC_HANDLE_BYTES],
        };
        let get = self.driver.loader.zeMemGetIpcHandle;
        // SAFETY: the start of an allocation of this context, with a live result.
        let code = unsafe { get(self.handle.0, start.as_ptr().cast(), &mut handle) };
        check_memory("zeMemGetIpcHandle", 0, code)?;
        Ok(handle.data.map(|byte| byte as u8))
    }

    /// Opens memory of another process by its driver's handle, which the caller has checked.
    pub(crate) fn open(
        &self,
        device: DeviceHandle,
        handle: [u8; IPC_HANDLE_BYTES],
    ) -> Result<NonNull<u8>> {
        let handle = ze_ipc_mem_handle_t {
            data: handle.map(|byte| byte as c_char),
        };
        let mut start: *mut c_void = ptr::null_mut();
        let open = self.driver.loader.zeMemOpenIpcHandle;
        // SAFETY: our context and one of its devices, with a live result.
        let code = unsafe { open(self.handle.0, device.0, handle, 0, &mut start) };
        check_memory("zeMemOpenIpcHandle", 0, code)?;
        NonNull::new(start.cast()).ok_or(Error::Protocol("its memory is nowhere"))
    }

    /// Closes memory that `open` returned.
    ///
    /// # Safety
    /// No command and no thread accesses the memory any more.
    pub(crate) unsafe fn close(&self, start: NonNull<u8>) -> Result<()> {
        let close = self.driver.loader.zeMemCloseIpcHandle;
        // SAFETY: promised by the caller.
        let code = unsafe { close(self.handle.0, start.as_ptr().cast()) };
        check("zeMemCloseIpcHandle", code)
    }

    /// Returns the start of the allocation that contains an address, and its length in bytes.
    pub(crate) fn range_of(&self, address: NonNull<u8>) -> Result<(usize, usize)> {
        let (mut start, mut len) = (ptr::null_mut(), 0);
        let get = self.driver.loader.zeMemGetAddressRange;
        // SAFETY: the results are live. For an address that the driver does not know, it returns an
        // error.
        let code = unsafe { get(self.handle.0, address.as_ptr().cast(), &mut start, &mut len) };
        check("zeMemGetAddressRange", code)?;
        Ok((start.addr(), len))
    }

    /// Returns the start, the length in bytes and the device of the device memory that contains an
    /// address.
    pub(crate) fn device_memory(
        &self,
        address: NonNull<u8>,
    ) -> Option<(NonNull<u8>, usize, DeviceHandle)> {
        let mut properties = description!(
            ze_memory_allocation_properties_t,
            ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
        );
        let mut device = ptr::null_mut();
        let get = self.driver.loader.zeMemGetAllocProperties;
        let place = address.as_ptr().cast();
        // SAFETY: the results are live. For an address that the driver does not know, it returns an
        // error or no type.
        let code = unsafe { get(self.handle.0, place, &mut properties, &mut device) };
        check("zeMemGetAllocProperties", code).ok()?;
        if properties.type_ != ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE {
            return None;
        }
        let (start, len) = self.range_of(address).ok()?;
        let start = NonNull::new(ptr::with_exposed_provenance_mut(start))?;
        Some((start, len, Handle(device)))
    }

    /// Returns whether the driver reports the memory as host memory.
    pub(crate) fn is_host_memory(&self, address: NonNull<u8>) -> bool {
        self.kind_of(address.as_ptr().cast()) == ze_memory_type_t::ZE_MEMORY_TYPE_HOST
    }

    /// Returns whether the driver knows memory at an address.
    pub(crate) fn knows(&self, address: *const c_void) -> bool {
        self.kind_of(address) != ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN
    }

    fn kind_of(&self, address: *const c_void) -> ze_memory_type_t {
        let mut properties = description!(
            ze_memory_allocation_properties_t,
            ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
        );
        let get = self.driver.loader.zeMemGetAllocProperties;
        // SAFETY: the results are live, and the device may be omitted.
        let code = unsafe { get(self.handle.0, address, &mut properties, ptr::null_mut()) };
        match check("zeMemGetAllocProperties", code) {
            Ok(()) => properties.type_,
            Err(_) => ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN,
        }
    }

    /// Releases an object in a `drop`. A failure is logged. In a forked child, which must not call
    /// the driver, this does nothing.
    pub(crate) fn release(&self, what: &'static str, release: impl FnOnce(&Self) -> Result<()>) {
        if process::is_forked() {
            return;
        }
        if let Err(error) = release(self) {
            tracing::warn!(%error, what, "could not release");
        }
    }
}

impl Drop for DriverContext {
    fn drop(&mut self) {
        self.release("a context", |context| {
            context.events.destroy(context);
            if !context.is_ours {
                return Ok(());
            }
            // SAFETY: all objects in the context keep `self` alive, so none exist.
            let code = unsafe { (context.driver.loader.zeContextDestroy)(context.handle.0) };
            check("zeContextDestroy", code)
        });
    }
}
