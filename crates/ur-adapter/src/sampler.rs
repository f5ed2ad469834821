//! Samplers: how images are read. They are descriptions that nothing uses until there are images.

use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::native::NativeHandles;
use crate::object::{Object, Ref, Shared, release, retain};
use crate::query::Query;
use std::ffi::c_void;
use std::sync::Arc;
use unified_runtime_sys::{
    ur_context_handle_t, ur_native_handle_t, ur_result_t, ur_sampler_addressing_mode_t,
    ur_sampler_dditable_t, ur_sampler_desc_t, ur_sampler_filter_mode_t, ur_sampler_handle_t,
    ur_sampler_handle_t_, ur_sampler_info_t, ur_sampler_native_properties_t,
};

/// A sampler. Several UR samplers share one [`SamplerState`] if they were made from one native
/// handle.
pub(crate) struct Sampler {
    context: Ref<Context>,
    state: Arc<SamplerState>,
}

/// How an image is read.
struct SamplerState {
    /// Whether coordinates are parts of the image's size, not numbers of its elements.
    is_normalized: bool,
    addressing: ur_sampler_addressing_mode_t,
    filter: ur_sampler_filter_mode_t,
}

static NATIVE: NativeHandles<SamplerState> = NativeHandles::new();

impl Object for Sampler {
    type Opaque = ur_sampler_handle_t_;
}

unsafe extern "C" fn create(
    context: ur_context_handle_t,
    desc: *const ur_sampler_desc_t,
    created: *mut ur_sampler_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or a description.
        let (context, desc) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                desc.as_ref().ok_or(Failure::NULL_POINTER)?,
            )
        };
        not_null(created)?;
        let (addressing, filter) = (desc.addressingMode, desc.filterMode);
        let last = ur_sampler_addressing_mode_t::UR_SAMPLER_ADDRESSING_MODE_MIRRORED_REPEAT;
        if addressing.0 > last.0
            || filter.0 > ur_sampler_filter_mode_t::UR_SAMPLER_FILTER_MODE_LINEAR.0
        {
            return Err(Failure::ENUMERATION);
        }
        let sampler = Shared::new(Sampler {
            context: context.to_ref(),
            state: Arc::new(SamplerState {
                is_normalized: desc.normalizedCoords != 0,
                addressing,
                filter,
            }),
        });
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(sampler)) }
    })
}

unsafe extern "C" fn get_info(
    handle: ur_sampler_handle_t,
    name: ur_sampler_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a sampler's handle and a place for the answer.
        let (sampler, query) = unsafe {
            (
                Shared::<Sampler>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(sampler, name, query)
    })
}

fn answer(sampler: &Shared<Sampler>, name: ur_sampler_info_t, query: Query) -> Result<()> {
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

unsafe extern "C" fn get_native_handle(
    handle: ur_sampler_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a sampler's handle and a valid pointer.
        unsafe {
            let sampler = Shared::<Sampler>::from_handle(handle)?;
            put(native, NATIVE.of(&sampler.state))
        }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    context: ur_context_handle_t,
    _properties: *const ur_sampler_native_properties_t,
    created: *mut ur_sampler_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(created)?;
        let sampler = Shared::new(Sampler {
            context: context.to_ref(),
            state: NATIVE.find(native)?,
        });
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(sampler)) }
    })
}

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
    use crate::context;
    use crate::device::Device;
    use std::ptr::{from_mut, null, null_mut};
    use unified_runtime_sys::ur_structure_type_t;

    #[test]
    fn any_byte_but_0_is_true() {
        let device = Device::create(crosshandle::Device::find("host").expect("the host"));
        let (mut context, mut sampler) = (null_mut(), null_mut());
        let mut desc = ur_sampler_desc_t {
            stype: ur_structure_type_t::UR_STRUCTURE_TYPE_SAMPLER_DESC,
            pNext: null(),
            normalizedCoords: 0,
            addressingMode: ur_sampler_addressing_mode_t::UR_SAMPLER_ADDRESSING_MODE_CLAMP,
            filterMode: ur_sampler_filter_mode_t::UR_SAMPLER_FILTER_MODE_NEAREST,
        };
        let create_context = context::TABLE.pfnCreate.expect("filled");
        let ok = ur_result_t::UR_RESULT_SUCCESS;
        // SAFETY: the handle is alive, the pointers valid.
        let result = unsafe { create_context(1, &device.handle(), null(), &mut context) };
        assert_eq!(result, ok);
        for (given, answered) in [(0, 0), (1, 1), (2, 1), (255, 1)] {
            desc.normalizedCoords = given;
            let mut found = 7_u8;
            let name = ur_sampler_info_t::UR_SAMPLER_INFO_NORMALIZED_COORDS;
            // SAFETY: the handles are alive until they are released, the pointers valid.
            unsafe {
                assert_eq!(create(context, &desc, &mut sampler), ok);
                let value = from_mut(&mut found).cast();
                assert_eq!(get_info(sampler, name, 1, value, null_mut()), ok);
                assert_eq!(release::<Sampler>(sampler), ok);
            }
            assert_eq!(found, answered, "{given}");
        }
        // SAFETY: the handle is alive, and not used any more.
        unsafe { release::<context::Context>(context) };
    }
}
