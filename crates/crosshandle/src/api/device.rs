//! Devices: where memory lives and queues run.

use crate::error::{Error, Result};
use crate::hal::registry;
use crate::hal::{Backend, BackendDevice};
use crate::handle::BackendKind;
use crate::os::process;
use crate::types::{
    AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, NativeObject, NativeRuntime, Partition,
    PartitionLimits,
};
use std::fmt;
use std::sync::Arc;

/// A device of one of the backends. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<dyn BackendDevice>,
}

impl Device {
    /// Returns all devices that can be used here, the host first.
    pub fn all() -> Vec<Self> {
        registry::all()
            .iter()
            .flat_map(|backend| backend.devices())
            .map(|inner| Self { inner })
            .collect()
    }

    /// Returns the device with a name: a backend (`host`, `cuda`, `level_zero`), followed by a
    /// colon and the device's number for any but the first device (`cuda:1`).
    ///
    /// # Errors
    /// [`Error::NoDevice`], which says what was looked for and where.
    pub fn find(name: &str) -> Result<Self> {
        let missing = |reason: String| Error::NoDevice {
            name: name.to_owned(),
            reason,
        };
        let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
        let kind: BackendKind = kind
            .parse()
            .map_err(|error: crate::handle::UnknownBackend| missing(error.to_string()))?;
        let index: usize = index
            .parse()
            .map_err(|_| missing(format!("'{index}' is not the number of a device")))?;
        let backend: &dyn Backend = *registry::all()
            .iter()
            .find(|backend| backend.kind() == kind)
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

    /// Returns the limits of kernels on the device. On the host, the first call in a process looks for an
    /// OpenCL runtime and loads it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device runs no programs: its text says what was looked for and what
    /// would bring it.
    pub fn kernels(&self) -> Result<&KernelLimits> {
        self.inner.kernels().map_err(Error::Unsupported)
    }

    /// Returns the limits of kernels if they are known without a search: on the host, once
    /// [`kernels`](Self::kernels) was called or a program loaded in this process.
    pub fn loaded_kernels(&self) -> Option<&KernelLimits> {
        self.inner.loaded_kernels()
    }

    /// Returns the limits of images on the device. Looks for what has them as [`kernels`](Self::kernels) does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no images: its text says why.
    pub fn images(&self) -> Result<&ImageLimits> {
        self.inner.images().map_err(Error::Unsupported)
    }

    /// Returns how the device can be divided into parts. Looks for what runs kernels as
    /// [`kernels`](Self::kernels) does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it cannot: its text says why.
    pub fn partitions(&self) -> Result<PartitionLimits> {
        self.inner.partitions().map_err(Error::Unsupported)
    }

    /// Divides the device into parts, which run kernels on compute units of their own. All else is that of
    /// the whole: its identity, its memory and its handles, so that contexts on parts and on the whole open
    /// each other's. A part may be divided again.
    ///
    /// A program is loaded in a context on one device, and its kernels run in queues of that device, or of
    /// parts that the same call returned. So do images.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what is not among [`partitions`](Self::partitions);
    /// [`Error::InvalidArgument`] for parts without compute units, for more compute units than the device has, and
    /// for more parts than it can have; [`Error::Driver`] if what runs kernels refuses.
    pub fn partition(&self, how: &Partition) -> Result<Vec<Self>> {
        if process::is_forked() {
            return Err(Error::forked());
        }
        how.check(&self.partitions()?, self.info().compute_units)?;
        let parts = self.inner.partition(how)?.into_iter();
        Ok(parts.map(|inner| Self { inner }).collect())
    }

    /// Returns what the compute units of a part share, if the whole was divided by affinity.
    pub fn affinity(&self) -> Option<AffinityDomain> {
        self.inner.affinity()
    }

    /// Returns the objects of what compiles and runs kernels, for programs that use it too.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as for [`kernels`](Self::kernels), and where the driver itself does it.
    pub fn native_runtime(&self) -> Result<NativeRuntime> {
        self.inner.native_runtime().map_err(Error::Unsupported)
    }

    /// Returns a description of what compiles and runs kernels, if that is not the driver itself. Looks for
    /// it as [`kernels`](Self::kernels) does.
    pub fn kernel_runtime(&self) -> Option<String> {
        self.inner.kernel_runtime()
    }

    /// Returns the number of bytes of the device's memory that are free at the moment, if that is
    /// known.
    pub fn free_memory(&self) -> Option<u64> {
        self.inner.free_memory()
    }

    /// Returns whether contexts on this device can open memory of another one, and this device's
    /// queues can use memory that was allocated on the other one in this process.
    pub fn reaches(&self, other: &Self) -> bool {
        self.info().backend == other.info().backend && self.inner.reaches(other.info().uuid)
    }

    /// Returns the driver's own device, for programs that use the driver too; `None` where the backend
    /// has none.
    pub fn native(&self) -> Option<NativeObject> {
        let native = self.inner.native()?;
        Some(NativeObject::new(self.info().backend, native.raw()))
    }

    /// Returns the driver's own object that stands for the driver, for programs that use the driver
    /// too; `None` where the backend has none.
    pub fn native_driver(&self) -> Option<NativeObject> {
        let driver = self.inner.native()?.driver()?;
        Some(NativeObject::new(self.info().backend, driver))
    }

    /// Returns the present time, in nanoseconds of the clock that [`EventProfile`](crate::EventProfile) uses
    /// on every device.
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

/// The state of a backend of this build: its driver may be absent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendStatus {
    /// The backend.
    pub backend: BackendKind,
    /// A description of the driver; if it is absent, what was looked for and where.
    pub driver: std::result::Result<String, String>,
}

impl BackendStatus {
    /// Returns the state of all backends of this build.
    pub fn all() -> Vec<Self> {
        registry::all()
            .iter()
            .map(|backend| Self {
                backend: backend.kind(),
                driver: backend.status(),
            })
            .collect()
    }
}
