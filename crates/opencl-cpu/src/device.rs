//! Devices: the runtime's own, and parts of it that have some of its compute units.

use crate::failure::{Failure, check};
use crate::runtime::{Runtime, device_bytes, device_value, numbers};
use crate::types::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// What commands run on, and the context that programs, images and queues for it are made in: the runtime's
/// device or a part of it. The parts of one [`partition`](Self::partition) share a context, which is
/// not that of the whole. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Device {
    runtime: &'static Runtime,
    device: cl_device_id,
    context: cl_context,
    /// Keeps both, where they are not the runtime's own.
    division: Option<Arc<Division>>,
}

/// The parts that a device was divided into, and the context that they share with the whole.
struct Division {
    runtime: &'static Runtime,
    /// Null until it is made.
    context: cl_context,
    parts: Vec<cl_device_id>,
    /// Keeps what was divided.
    _whole: Device,
}

/// A way to divide a device into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// As many parts as there can be that have so many compute units each.
    Equally(u32),
    /// A part for each of these numbers of compute units.
    ByCounts(Vec<u32>),
    /// A part for each set of compute units that share one of these.
    ByAffinity(Affinity),
}

/// What compute units share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Affinity {
    /// Memory: a NUMA node.
    Numa = 1,
    /// A cache of the fourth level.
    L4Cache = 1 << 1,
    /// A cache of the third level.
    L3Cache = 1 << 2,
    /// A cache of the second level.
    L2Cache = 1 << 3,
    /// A cache of the first level.
    L1Cache = 1 << 4,
    /// The first of these, in their order, by which the device can be divided.
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

/// The ways in which a device can be divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionLimits {
    /// The most parts; 0 if the device cannot be divided.
    pub parts: u32,
    /// Whether it can be divided [equally](Partition::Equally).
    pub equally: bool,
    /// Whether it can be divided [by counts](Partition::ByCounts).
    pub by_counts: bool,
    /// What it can be divided [by](Partition::ByAffinity).
    pub by_affinity: Vec<Affinity>,
}

impl Runtime {
    /// Returns the device with all threads.
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
    /// Returns the runtime.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    pub(crate) fn handle(&self) -> cl_device_id {
        self.device
    }

    /// Returns whether it is a part of another one.
    pub(crate) fn is_part(&self) -> bool {
        self.division.is_some()
    }

    pub(crate) fn context(&self) -> cl_context {
        self.context
    }

    /// Returns OpenCL's own platform, device and context, as numbers.
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

    /// Returns the ways in which the device can be divided.
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

    /// Divides the device into parts with compute units of their own.
    ///
    /// # Errors
    /// Fails with the runtime's code: for more units than there are, and for ways that are not among
    /// [`partitions`](Self::partitions).
    pub fn partition(&self, partition: &Partition) -> Result<Vec<Self>, Failure> {
        let properties = partition.properties();
        let library = &self.runtime.library;
        let mut count = 0;
        // SAFETY: the device lives, and the properties end with a zero; asks for the number alone.
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
        // SAFETY: as above, and there is room for as many.
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

    /// Returns what the compute units of the device share, if that is by what it was divided.
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
    /// Returns the partition as OpenCL has it: its kind, what belongs to it, and zeros.
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
    /// Takes the parts of a device, and makes their context. The whole is in it too, so that one build of a
    /// program for the whole serves all parts.
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
        // SAFETY: the devices live, and there are no properties and no callback.
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
            // SAFETY: made for this, and released once; programs, images and queues keep it as long as
            // they need it.
            unsafe { (library.clReleaseContext)(self.context) };
        }
        for part in &self.parts {
            // SAFETY: as above.
            unsafe { (library.clReleaseDevice)(*part) };
        }
    }
}
