//! Samplers, which define how kernels read images. A UR sampler is only a description. The device's
//! sampler is created when a kernel first uses the UR sampler.

use crate::abi::boundary::{In, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::native::NativeHandles;
use crate::abi::object::{Handle, Object, Ref, Shared, release, retain};
use crate::abi::query::{Answer, Query};
use crate::context::Context;
use crate::queue::destination::Destination;
use crosshandle::image::{Addressing, Filter, SamplerDescription};
use std::sync::{Arc, OnceLock};
use unified_runtime_sys::{
    ur_native_handle_t, ur_result_t, ur_sampler_addressing_mode_t as addressing_mode,
    ur_sampler_addressing_mode_t, ur_sampler_dditable_t, ur_sampler_desc_t,
    ur_sampler_filter_mode_t, ur_sampler_handle_t, ur_sampler_handle_t_, ur_sampler_info_t,
    ur_sampler_native_properties_t,
};

/// A UR sampler. Samplers created from one native handle share a [`SamplerState`].
pub(crate) struct Sampler {
    context: Ref<Context>,
    state: Arc<SamplerState>,
    /// The sampler of each device of the context. It is set when a kernel on the device first uses
    /// this sampler.
    inner: Vec<OnceLock<crosshandle::image::Sampler>>,
}

/// The way in which a sampler reads an image.
struct SamplerState {
    /// Whether coordinates are fractions of the image's size instead of element indexes.
    is_normalized: bool,
    addressing: ur_sampler_addressing_mode_t,
    filter: ur_sampler_filter_mode_t,
}

impl SamplerState {
    /// Returns the sampler description for `crosshandle`.
    fn description(&self) -> SamplerDescription {
        SamplerDescription {
            is_normalized: self.is_normalized,
            // Both modes were validated when the sampler was created, so the fallbacks are
            // unreachable.
            addressing: addressing(self.addressing).unwrap_or(Addressing::None),
            filter: filter(self.filter).unwrap_or(Filter::Nearest),
        }
    }
}

/// Converts an addressing mode from UR.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for an unknown mode.
pub(crate) fn addressing(mode: ur_sampler_addressing_mode_t) -> Result<Addressing> {
    Ok(match mode {
        addressing_mode::UR_SAMPLER_ADDRESSING_MODE_NONE => Addressing::None,
        addressing_mode::UR_SAMPLER_ADDRESSING_MODE_CLAMP_TO_EDGE => Addressing::ClampToEdge,
        addressing_mode::UR_SAMPLER_ADDRESSING_MODE_CLAMP => Addressing::Clamp,
        addressing_mode::UR_SAMPLER_ADDRESSING_MODE_REPEAT => Addressing::Repeat,
        addressing_mode::UR_SAMPLER_ADDRESSING_MODE_MIRRORED_REPEAT => Addressing::MirroredRepeat,
        _ => return Err(Failure::ENUMERATION),
    })
}

/// Converts a filter mode from UR.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for an unknown mode.
pub(crate) fn filter(mode: ur_sampler_filter_mode_t) -> Result<Filter> {
    match mode {
        ur_sampler_filter_mode_t::UR_SAMPLER_FILTER_MODE_NEAREST => Ok(Filter::Nearest),
        ur_sampler_filter_mode_t::UR_SAMPLER_FILTER_MODE_LINEAR => Ok(Filter::Linear),
        _ => Err(Failure::ENUMERATION),
    }
}

/// Converts a sampler description from UR.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` if the addressing mode or the filter mode is unknown.
pub(crate) fn description(desc: &ur_sampler_desc_t) -> Result<SamplerDescription> {
    Ok(SamplerDescription {
        is_normalized: desc.normalizedCoords != 0,
        addressing: addressing(desc.addressingMode)?,
        filter: filter(desc.filterMode)?,
    })
}

static NATIVE: NativeHandles<SamplerState> = NativeHandles::new();

impl Object for Sampler {
    type Opaque = ur_sampler_handle_t_;
}

impl Sampler {
    /// Creates a sampler and returns its UR handle.
    fn hand_out(context: &Shared<Context>, state: Arc<SamplerState>) -> ur_sampler_handle_t {
        let context = context.to_ref();
        let inner = context.devices().map(|_| OnceLock::new()).collect();
        Shared::hand_out(Shared::new(Self {
            context,
            state,
            inner,
        }))
    }

    /// Returns the device's sampler for a kernel argument.
    ///
    /// # Errors
    /// Returns `INVALID_SAMPLER` if the sampler belongs to another context, or if an earlier device
    /// of the context shares memory with the kernel's device. Returns an error from `crosshandle`
    /// if the device does not support the sampler.
    pub(crate) fn for_kernel(
        &self,
        destination: &dyn Destination,
    ) -> Result<crosshandle::image::Sampler> {
        let own = self.context.state();
        let is_own = Arc::ptr_eq(own, destination.context().state());
        // Among devices that share memory, only the first one has images.
        let index = own
            .memory_of(destination.device())
            .filter(|index| is_own && Arc::ptr_eq(own.device(*index).0, destination.device()));
        let index = index.ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SAMPLER,
                "the sampler must belong to the queue's context, and the queue must be on a device that has images",
            )
        })?;
        if let Some(sampler) = self.inner[index].get() {
            return Ok(sampler.clone());
        }
        let context = own.device(index).1;
        let sampler = crosshandle::image::Sampler::new(context, &self.state.description())?;
        Ok(self.inner[index].get_or_init(|| sampler).clone())
    }
}

entry_points! {
    fn create(
        context: Handle<Context>,
        desc: In<ur_sampler_desc_t>,
        created: Out<ur_sampler_handle_t>,
    ) {
        description(desc)?;
        let state = Arc::new(SamplerState {
            is_normalized: desc.normalizedCoords != 0,
            addressing: desc.addressingMode,
            filter: desc.filterMode,
        });
        created.put(Sampler::hand_out(context, state))
    }

    fn get_info(
        sampler: Handle<Sampler>,
        name: ur_sampler_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(sampler, name, query)
    }

    fn get_native_handle(sampler: Handle<Sampler>, native: Out<ur_native_handle_t>) {
        native.put(NATIVE.of(&sampler.state))
    }

    fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        properties: *const ur_sampler_native_properties_t,
        created: Out<ur_sampler_handle_t>,
    ) {
        created.put(Sampler::hand_out(context, NATIVE.find(native)?))
    }
}

/// Writes a property of a sampler to the caller's memory.
fn answer(sampler: &Shared<Sampler>, name: ur_sampler_info_t, query: Query<'_>) -> Result<()> {
    let state = &sampler.state;
    match name {
        ur_sampler_info_t::UR_SAMPLER_INFO_REFERENCE_COUNT => query.value(sampler.references()),
        ur_sampler_info_t::UR_SAMPLER_INFO_CONTEXT => query.value(sampler.context.handle()),
        ur_sampler_info_t::UR_SAMPLER_INFO_NORMALIZED_COORDS => query.truth(state.is_normalized),
        ur_sampler_info_t::UR_SAMPLER_INFO_ADDRESSING_MODE => query.value(state.addressing.0),
        ur_sampler_info_t::UR_SAMPLER_INFO_FILTER_MODE => query.value(state.filter.0),
        _ => Err(Failure::ENUMERATION),
    }
}

/// The entry points for samplers.
pub(crate) const TABLE: ur_sampler_dditable_t = ur_sampler_dditable_t {
    pfnCreate: Some(create),
    pfnRetain: Some(retain::<Sampler>),
    pfnRelease: Some(release::<Sampler>),
    pfnGetInfo: Some(get_info),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, check};
    use std::ptr::{from_mut, null, null_mut};
    use unified_runtime_sys::ur_structure_type_t;

    #[test]
    fn any_byte_but_0_is_true() {
        let scene = Scene::new();
        let mut sampler = null_mut();
        let mut desc = ur_sampler_desc_t {
            stype: ur_structure_type_t::UR_STRUCTURE_TYPE_SAMPLER_DESC,
            pNext: null(),
            normalizedCoords: 0,
            addressingMode: ur_sampler_addressing_mode_t::UR_SAMPLER_ADDRESSING_MODE_CLAMP,
            filterMode: ur_sampler_filter_mode_t::UR_SAMPLER_FILTER_MODE_NEAREST,
        };
        for (given, answered) in [(0, 0), (1, 1), (2, 1), (255, 1)] {
            desc.normalizedCoords = given;
            let mut found = 7_u8;
            let name = ur_sampler_info_t::UR_SAMPLER_INFO_NORMALIZED_COORDS;
            // SAFETY: each handle is alive until its release, and the pointers are valid.
            unsafe {
                check(create(scene.context, &desc, &mut sampler));
                let value = from_mut(&mut found).cast();
                check(get_info(sampler, name, 1, value, null_mut()));
                check(release::<Sampler>(sampler));
            }
            assert_eq!(found, answered, "{given}");
        }
    }
}
