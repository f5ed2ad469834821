//! Devices, and how they are lost.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use level_zero_sys::*;

use crate::call::{DEVICE_LOST, Result, entry, write};
use crate::context::Context;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::switches::switches;

pub(crate) struct Device {
    pub(crate) index: u32,
    lost: AtomicBool,
    executed: AtomicU64,
}

impl Object for Device {
    const NAME: &'static str = "device";

    fn resource(&self) -> Resource {
        Resource::Device
    }

    fn context(&self) -> Option<&Arc<Context>> {
        None
    }
}

impl Device {
    /// Returns an error if the device is lost.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_lost() {
            true => Err(DEVICE_LOST),
            false => Ok(()),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Counts a command that is about to be executed. Returns whether the device still works.
    pub(crate) fn works_on(&self) -> bool {
        let before = self.executed.fetch_add(1, Ordering::Relaxed);
        if switches().lost_after.is_some_and(|limit| before >= limit) {
            self.lose();
        }
        !self.is_lost()
    }

    /// Marks the device as lost.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        ANY_LOST.store(true, Ordering::Release);
    }

    /// Returns the device's UUID, which is equal in all processes.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..6].copy_from_slice(b"ze_sim");
        id[12..].copy_from_slice(&self.index.to_le_bytes());
        id
    }
}

static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// The handles of devices, as addresses.
static DEVICES: LazyLock<Result<Vec<usize>>> = LazyLock::new(|| {
    (0..switches().devices)
        .map(|index| {
            let device = Arc::new(Device {
                index,
                lost: AtomicBool::new(false),
                executed: AtomicU64::new(0),
            });
            let handle: *mut c_void = handles::create(device)?;
            Ok(handle.expose_provenance())
        })
        .collect()
});

pub(crate) fn devices() -> Result<Vec<ze_device_handle_t>> {
    let devices = DEVICES.as_ref().map_err(|&code| code)?;
    let handle = |&address| std::ptr::with_exposed_provenance_mut(address);
    Ok(devices.iter().map(handle).collect())
}

pub(crate) fn handle_of(device: &Device) -> Result<ze_device_handle_t> {
    Ok(devices()?[device.index as usize])
}

/// Returns whether a signal that a thread waits for may never arrive.
pub(crate) fn any_lost() -> bool {
    ANY_LOST.load(Ordering::Acquire)
}

entry! {
    fn zeDeviceCanAccessPeer(
        device: ze_device_handle_t,
        peer: ze_device_handle_t,
        answer: *mut ze_bool_t,
    ) {
        let device = handles::get::<Device, _>(device)?;
        let peer = handles::get::<Device, _>(peer)?;
        let reaches = device.index == peer.index || !switches().missing("peer_access");
        write(answer, u8::from(reaches))
    }
}
