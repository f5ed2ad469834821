//! Devices, which have memory and run queues.

use crate::backends;
use crosshandle_hal::{BackendDevice, BackendPartitions};
use crosshandle_handle::BackendKind;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, NativeObject, NativeRuntime, Partition,
    PartitionLimits,
};
use std::fmt;
use std::sync::Arc;

/// A device of one of the backends. Cloning is cheap, and any thread may use it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<dyn BackendDevice>,
}

impl Device {
    /// Returns all devices that this process can use. The host is the first one.
    pub fn all() -> Vec<Self> {
        backends::all()
            .iter()
            .flat_map(|backend| backend.devices())
            .map(|inner| Self { inner })
            .collect()
    }

    /// Returns the devices of one backend that this process can use. Loads no driver of another
    /// backend.
    pub fn of(backend: BackendKind) -> Vec<Self> {
        let found = backends::of(backend).map(|backend| backend.devices());
        let found = found.into_iter().flatten();
        found.map(|inner| Self { inner }).collect()
    }

    /// Returns the device with a name. The name is a backend (`host`, `cuda`, `level_zero`),
    /// optionally followed by a colon and the device's number (`cuda:1`). Without a number, the
    /// name means the backend's first device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if no such device exists. Its text says what was looked for and where.
    pub fn find(name: &str) -> Result<Self> {
        let missing = |reason: String| Error::NoDevice {
            name: name.to_owned(),
            reason,
        };
        let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
        let kind: BackendKind = kind
            .parse()
            .map_err(|error: crosshandle_handle::UnknownBackend| missing(error.to_string()))?;
        let index: usize = index
            .parse()
            .map_err(|_| missing(format!("'{index}' is not the number of a device")))?;
        let backend = backends::of(kind)
            .ok_or_else(|| missing(format!("this build has no {kind} backend")))?;
        if let Err(reason) = backend.status() {
            return Err(missing(reason));
        }
        let mut devices = backend.devices();
        if index >= devices.len() {
            return Err(missing(format!("{kind} has {} device(s)", devices.len())));
        }
        Ok(Self {
            inner: devices.swap_remove(index),
        })
    }

    /// Returns the device's description.
    pub fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    /// Returns the limits of kernels on the device. On the host, the first call in a process
    /// searches for an OpenCL runtime and loads it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device runs no programs. Its text says what was looked for and
    /// what to install.
    pub fn kernels(&self) -> Result<&KernelLimits> {
        let lacks = || Err(format!("{} runs no kernels", self.info().name));
        let limits = self.inner.kernels().unwrap_or_else(lacks);
        limits.map_err(Error::Unsupported)
    }

    /// Returns the limits of kernels if they are known without a search. On the host, they are
    /// known after [`kernels`](Self::kernels) was called or a program was loaded in this process.
    pub fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.inner.loaded_kernels()
    }

    /// Returns the limits of images on the device. Like [`kernels`](Self::kernels), the first call
    /// may search for a runtime and load it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no images. Its text says why.
    pub fn images(&self) -> Result<&ImageLimits> {
        let lacks = || Err(format!("{} has no images", self.info().name));
        let limits = self.inner.images().unwrap_or_else(lacks);
        limits.map_err(Error::Unsupported)
    }

    /// Returns how the device can be divided into parts. Like [`kernels`](Self::kernels), the first
    /// call may search for a runtime and load it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot be divided. The error's text says why.
    pub fn partitions(&self) -> Result<PartitionLimits> {
        self.divider()?.limits().map_err(Error::Unsupported)
    }

    fn divider(&self) -> Result<&dyn BackendPartitions> {
        let lacks = || Error::Unsupported(format!("{} cannot be divided", self.info().name));
        self.inner.partitions().ok_or_else(lacks)
    }

    /// Divides the device into parts, each of which runs kernels on its own compute units. A part
    /// has the identity, memory and handles of the whole device, so contexts on the parts and on
    /// the whole can open each other's handles. A part may be divided again.
    ///
    /// A program is loaded in a context on one device. Its kernels run in queues of that device, or
    /// of parts that the same call returned. The same applies to images.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for a division that [`partitions`](Self::partitions) does not list.
    /// - [`Error::InvalidArgument`] for parts without compute units, for more compute units than
    ///   the device has, and for more parts than it can have.
    /// - [`Error::Driver`] if the runtime that runs kernels refuses.
    pub fn partition(&self, how: &Partition) -> Result<Vec<Self>> {
        if process::is_forked() {
            return Err(Error::forked());
        }
        how.check(&self.partitions()?)?;
        let parts = self.divider()?.divide(how)?.into_iter();
        Ok(parts.map(|inner| Self { inner }).collect())
    }

    /// Returns what the compute units of this part share, if the whole device was divided by
    /// affinity.
    pub fn affinity(&self) -> Option<AffinityDomain> {
        self.inner.partitions()?.affinity()
    }

    /// Returns the native objects of the runtime that compiles and runs kernels, for programs that
    /// also call the runtime directly.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as for [`kernels`](Self::kernels), and if the driver itself runs
    /// kernels.
    pub fn native_runtime(&self) -> Result<NativeRuntime> {
        let lacks = || Error::Unsupported("the driver itself runs this device's kernels".into());
        let runtime = self.inner.kernel_runtime().ok_or_else(lacks)?;
        runtime.native().map_err(Error::Unsupported)
    }

    /// Returns a description of the runtime that compiles and runs kernels, or `None` if the driver
    /// itself compiles and runs them. Like [`kernels`](Self::kernels), the first call may search
    /// for the runtime and load it.
    pub fn kernel_runtime(&self) -> Option<String> {
        self.inner.kernel_runtime()?.description()
    }

    /// Returns the free memory of the device in bytes, or `None` if it is not known.
    pub fn free_memory(&self) -> Option<u64> {
        self.inner.free_memory()
    }

    /// Returns whether this device can access the memory of another device. If so, contexts on this
    /// device can open that memory, and this device's queues can use memory that this process
    /// allocated there.
    pub fn reaches(&self, other: &Self) -> bool {
        self.info().backend == other.info().backend && self.inner.reaches(other.info().uuid)
    }

    /// Returns the driver's own device, for programs that also call the driver. Returns `None` if
    /// the backend has no such object.
    pub fn native(&self) -> Option<NativeObject> {
        let native = self.inner.native()?;
        Some(NativeObject::new(self.info().backend, native.raw()))
    }

    /// Returns the native object that represents the driver itself, for programs that also call the
    /// driver. Returns `None` if the backend has no such object.
    pub fn native_driver(&self) -> Option<NativeObject> {
        let driver = self.inner.native()?.driver()?;
        Some(NativeObject::new(self.info().backend, driver))
    }

    /// Returns the current time, in nanoseconds of the clock that
    /// [`EventProfile`](crate::event::EventProfile) uses on every device.
    pub fn timestamp(&self) -> u64 {
        process::monotonic_nanoseconds()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        write!(f, "{}:{}", info.backend, info.index)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(self.info()).finish()
    }
}

/// The state of a backend that this build contains. Its driver may be absent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendStatus {
    /// The backend.
    pub backend: BackendKind,
    /// A description of the driver or, if it is absent, of what was looked for and where.
    pub driver: std::result::Result<String, String>,
    /// Whether kernels of two processes can run on one of its GPUs at the same time, with the
    /// reason. `None` if no device of the backend has kernels that use events.
    pub runs_processes_together: Option<std::result::Result<String, String>>,
}

impl BackendStatus {
    /// Returns the state of all backends of this build.
    pub fn all() -> Vec<Self> {
        backends::all()
            .iter()
            .map(|backend| Self {
                backend: backend.kind(),
                driver: backend.status(),
                runs_processes_together: backend.runs_processes_together(),
            })
            .collect()
    }
}
