//! Devices: the runtime's own device, and parts of it with some of its compute units.

use crate::failure::{Failure, check};
use crate::runtime::{Runtime, device_bytes, device_value, numbers};
use crate::types::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A device on which commands run, with the context of its programs, images and queues.
///
/// It is the runtime's device or a part of that. The parts of one [`partition`](Self::partition)
/// share a context, which differs from the whole device's context. A device is cheap to clone, and
/// any thread may use it.
#[derive(Clone)]
pub struct Device {
    runtime: &'static Runtime,
    device: cl_device_id,
    context: cl_context,
    /// Keeps the device and the context alive if they are not the runtime's own.
    division: Option<Arc<Division>>,
}

/// The parts of a device, and the context that they share with the whole device.
struct Division {
    runtime: &'static Runtime,
    /// The context, which is null until it is created.
    context: cl_context,
    parts: Vec<cl_device_id>,
    /// Keeps the divided device alive.
    _whole: Device,
}

/// A way to divide a device into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// As many parts as possible, with this many compute units each.
    Equally(u32),
    /// One part for each of these numbers of compute units.
    ByCounts(Vec<u32>),
    /// One part for each group of compute units that share this resource.
    ByAffinity(Affinity),
}

/// A resource that compute units share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Affinity {
    /// Memory of one NUMA node.
    Numa = 1,
    /// A level-4 cache.
    L4Cache = 1 << 1,
    /// A level-3 cache.
    L3Cache = 1 << 2,
    /// A level-2 cache.
    L2Cache = 1 << 3,
    /// A level-1 cache.
    L1Cache = 1 << 4,
    /// The first resource of this list by which the device can be divided.
    Next = 1 << 5,
}

impl Affinity {
    const ALL: [Self; 6] = [
        Self::Numa,
        Self::L4Cache,
        Self::L3Cache,
        Self::L2Cache,
        Self::L1Cache,
        Self::Next,
    ];
}

/// The ways to divide a device that the runtime supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionLimits {
    /// The maximum number of parts, or 0 if the device cannot be divided.
    pub parts: u32,
    /// Whether the device can be divided [equally](Partition::Equally).
    pub equally: bool,
    /// Whether the device can be divided [by counts](Partition::ByCounts).
    pub by_counts: bool,
    /// The resources by which the device can be divided, see [`Partition::ByAffinity`].
    pub by_affinity: Vec<Affinity>,
}

impl Runtime {
    /// Returns the whole device, with all threads.
    pub fn device(&'static self) -> Device {
        Device {
            runtime: self,
            device: self.device,
            context: self.context,
            division: None,
        }
    }
}

impl Device {
    /// Returns the runtime of the device.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    pub(crate) fn handle(&self) -> cl_device_id {
        self.device
    }

    pub(crate) fn is_part(&self) -> bool {
        self.division.is_some()
    }

    pub(crate) fn context(&self) -> cl_context {
        self.context
    }

    /// Returns OpenCL's platform, device and context handles as numbers.
    pub fn raw(&self) -> (usize, usize, usize) {
        let (platform, ..) = self.runtime.raw();
        let number = |pointer: *mut c_void| pointer.expose_provenance();
        (platform, number(self.device.0), number(self.context.0))
    }

    /// Returns the number of compute units.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn compute_units(&self) -> Result<u32, Failure> {
        self.value(CL_DEVICE_MAX_COMPUTE_UNITS)
    }

    /// Returns the supported ways to divide the device.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn partitions(&self) -> Result<PartitionLimits, Failure> {
        let parts: cl_uint = self.value(CL_DEVICE_PARTITION_MAX_SUB_DEVICES)?;
        if parts == 0 {
            return Ok(PartitionLimits::default());
        }
        let kinds = self.properties(CL_DEVICE_PARTITION_PROPERTIES)?;
        let domains: cl_bitfield = self.value(CL_DEVICE_PARTITION_AFFINITY_DOMAIN)?;
        let can = |affinity: &Affinity| domains & *affinity as cl_bitfield != 0;
        Ok(PartitionLimits {
            parts,
            equally: kinds.contains(&CL_DEVICE_PARTITION_EQUALLY),
            by_counts: kinds.contains(&CL_DEVICE_PARTITION_BY_COUNTS),
            by_affinity: Affinity::ALL.into_iter().filter(can).collect(),
        })
    }

    /// Divides the device into parts that share no compute units.
    ///
    /// # Errors
    /// Fails with the runtime's code if the parts need more compute units than the device has, or
    /// if [`partitions`](Self::partitions) does not list this way.
    pub fn partition(&self, partition: &Partition) -> Result<Vec<Self>, Failure> {
        let properties = partition.properties();
        let library = &self.runtime.library;
        let mut count = 0;
        // SAFETY: the device is alive, and the properties end with a zero. The call only returns
        // the number of parts.
        let code = unsafe {
            (library.clCreateSubDevices)(
                self.device,
                properties.as_ptr(),
                0,
                ptr::null_mut(),
                &mut count,
            )
        };
        check("clCreateSubDevices", code)?;
        let mut parts = vec![cl_device_id::NULL; count as usize];
        // SAFETY: the device is alive, the properties end with a zero, and `parts` has room for
        // `count` handles.
        let code = unsafe {
            (library.clCreateSubDevices)(
                self.device,
                properties.as_ptr(),
                count,
                parts.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("clCreateSubDevices", code)?;
        let division = Arc::new(Division::create(self, parts)?);
        let of = |device: &cl_device_id| Self {
            runtime: self.runtime,
            device: *device,
            context: division.context,
            division: Some(Arc::clone(&division)),
        };
        Ok(division.parts.iter().map(of).collect())
    }

    /// Returns the resource that the compute units of this device share, if it was divided by
    /// affinity.
    pub fn affinity(&self) -> Option<Affinity> {
        self.division.as_ref()?;
        let how = self.properties(CL_DEVICE_PARTITION_TYPE).ok()?;
        let [CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, domain, ..] = *how else {
            return None;
        };
        let mut all = Affinity::ALL.into_iter();
        all.find(|affinity| domain == *affinity as usize)
    }

    fn value<T: Default + Copy>(&self, name: cl_uint) -> Result<T, Failure> {
        device_value(&self.runtime.library, self.device, name)
    }

    fn properties(&self, name: cl_uint) -> Result<Vec<usize>, Failure> {
        device_bytes(&self.runtime.library, self.device, name).map(|bytes| numbers(&bytes))
    }
}

impl Partition {
    /// Returns the property list for OpenCL: the kind of partition, its values, and zeros.
    fn properties(&self) -> Vec<usize> {
        match self {
            Self::Equally(units) => vec![CL_DEVICE_PARTITION_EQUALLY, *units as usize, 0],
            Self::ByCounts(counts) => {
                let counts = counts.iter().map(|units| *units as usize);
                let list = [CL_DEVICE_PARTITION_BY_COUNTS].into_iter().chain(counts);
                list.chain([CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0])
                    .collect()
            }
            Self::ByAffinity(affinity) => vec![
                CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN,
                *affinity as usize,
                0,
            ],
        }
    }
}

impl Division {
    /// Takes over the parts of a device and creates their context. The context includes the whole
    /// device, so that one build of a program for the whole device is valid for all parts.
    fn create(whole: &Device, parts: Vec<cl_device_id>) -> Result<Self, Failure> {
        let runtime = whole.runtime;
        let mut division = Self {
            runtime,
            context: cl_context::NULL,
            parts,
            _whole: whole.clone(),
        };
        let all = [runtime.device];
        let all: Vec<_> = all.into_iter().chain(division.parts.clone()).collect();
        let mut code = CL_SUCCESS;
        // SAFETY: the devices are alive, and there are no properties and no callback.
        division.context = unsafe {
            (runtime.library.clCreateContext)(
                ptr::null(),
                all.len() as cl_uint,
                all.as_ptr(),
                None,
                ptr::null_mut(),
                &mut code,
            )
        };
        check("clCreateContext", code)?;
        Ok(division)
    }
}

impl Drop for Division {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        let library = &self.runtime.library;
        if !self.context.is_null() {
            // SAFETY: the context was created for this object and is released once. Programs,
            // images and queues have their own references.
            unsafe { (library.clReleaseContext)(self.context) };
        }
        for part in &self.parts {
            // SAFETY: the part was created for this object and is released once.
            unsafe { (library.clReleaseDevice)(*part) };
        }
    }
}
