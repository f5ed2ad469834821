//! Image views: the handles by which kernels access images.

use super::image::{describe, refusal};
use crate::abi::boundary::{In, Out, entry_points};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crate::context::bindless::{Known, ViewKind};
use crate::discovery::Device;
use crate::memory::image::format;
use crate::sampler;
use crosshandle::image::{ImageDescription, ImageView, Sampling};
use std::ptr;
use unified_runtime_sys::{
    ur_exp_image_mem_native_handle_t, ur_exp_image_native_handle_t, ur_exp_sampler_addr_modes_t,
    ur_exp_sampler_cubemap_filter_mode_t, ur_exp_sampler_cubemap_properties_t,
    ur_exp_sampler_mip_properties_t, ur_image_desc_t, ur_image_format_t, ur_sampler_desc_t,
    ur_structure_type_t as types,
};

/// Converts a sampler description from UR.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for an unknown mode, and `INVALID_VALUE` for an anisotropy outside
/// the range 0 to 1024.
///
/// # Safety
/// The chain that starts at `desc.pNext` must satisfy the contract of [`chain::find`].
unsafe fn sampling(desc: &ur_sampler_desc_t) -> Result<Sampling> {
    let mut sampling = Sampling::from(sampler::description(desc)?);
    let next = desc.pNext;
    // SAFETY: the caller ensures that the chain is valid, and each lookup uses the structure that
    // belongs to its type.
    let (modes, levels, cubes) = unsafe {
        (
            chain::find::<ur_exp_sampler_addr_modes_t>(
                next,
                types::UR_STRUCTURE_TYPE_EXP_SAMPLER_ADDR_MODES,
            ),
            chain::find::<ur_exp_sampler_mip_properties_t>(
                next,
                types::UR_STRUCTURE_TYPE_EXP_SAMPLER_MIP_PROPERTIES,
            ),
            chain::find::<ur_exp_sampler_cubemap_properties_t>(
                next,
                types::UR_STRUCTURE_TYPE_EXP_SAMPLER_CUBEMAP_PROPERTIES,
            ),
        )
    };
    if let Some(modes) = modes {
        for (own, mode) in sampling.addressing.iter_mut().zip(modes.addrModes) {
            *own = sampler::addressing(mode)?;
        }
    }
    if let Some(levels) = levels {
        sampling.level_filter = sampler::filter(levels.mipFilterMode)?;
        sampling.levels = [levels.minMipmapLevelClamp, levels.maxMipmapLevelClamp];
        // Drivers take the anisotropy as an integer.
        if !(0.0..=1024.0).contains(&levels.maxAnisotropy) {
            return Err(Failure::VALUE);
        }
        sampling.anisotropy = levels.maxAnisotropy as u32;
    }
    if let Some(cubes) = cubes {
        sampling.is_seamless = match cubes.cubemapFilterMode {
            ur_exp_sampler_cubemap_filter_mode_t::UR_EXP_SAMPLER_CUBEMAP_FILTER_MODE_DISJOINTED => {
                false
            }
            ur_exp_sampler_cubemap_filter_mode_t::UR_EXP_SAMPLER_CUBEMAP_FILTER_MODE_SEAMLESS => {
                true
            }
            _ => return Err(Failure::ENUMERATION),
        };
    }
    Ok(sampling)
}

/// Checks that an image matches the caller's description.
fn check_same(own: &ImageDescription, given: &ImageDescription) -> Result<()> {
    match own == given {
        true => Ok(()),
        false => Err(format::wrong_description(
            "the image does not match the description",
        )),
    }
}

entry_points! {
    pub(super) fn create_unsampled(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_mem_native_handle_t,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        created: Out<ur_exp_image_native_handle_t>,
    ) {
        context.on(device)?;
        let (description, _) = describe(format, desc)?;
        let bindless = &context.state().bindless;
        let image = bindless.find_flat(image)?;
        check_same(image.description(), &description)?;
        let view = image.unsampled_view()?;
        created.put(bindless.add_view(ViewKind::Unsampled, view) as ur_exp_image_native_handle_t)
    }

    /// Creates a sampled view of an image, or of memory in this context. The argument `image` is
    /// the handle of an image or the address of memory.
    pub(super) fn create_sampled(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_mem_native_handle_t,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        sampler: In<ur_sampler_desc_t>,
        created: Out<ur_exp_image_native_handle_t>,
    ) {
        let inner = context.on(device)?;
        let (description, _) = describe(format, desc)?;
        // SAFETY: the caller passes a valid chain of descriptions.
        let sampling = unsafe { sampling(sampler) }?;
        let state = context.state();
        let view = match state.bindless.find(image) {
            Ok(Known::Image(image) | Known::Level(image, _)) => {
                check_same(image.description(), &description)?;
                image.sampled_view(&sampling)?
            }
            Ok(Known::Levels(levels)) => {
                check_same(levels.description(), &description)?;
                levels.sampled_view(&sampling)?
            }
            Err(unknown) => {
                let start = ptr::with_exposed_provenance(image);
                // The view keeps the memory alive. Freeing the memory does not wait for the view to
                // be destroyed.
                let memory = state.usm.adopt(start);
                let memory = memory.or_else(|| state.bindless.mapping(start));
                let memory = memory.ok_or(unknown)?;
                let view = ImageView::of_memory(inner, &memory, &description, desc.rowPitch, &sampling);
                view.map_err(refusal)?
            }
        };
        created.put(state.bindless.add_view(ViewKind::Sampled, view) as ur_exp_image_native_handle_t)
    }

    pub(super) fn destroy_unsampled(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_native_handle_t,
    ) {
        context.on(device)?;
        drop(context.state().bindless.remove_view(ViewKind::Unsampled, image as u64)?);
        Ok(())
    }

    pub(super) fn destroy_sampled(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_native_handle_t,
    ) {
        context.on(device)?;
        drop(context.state().bindless.remove_view(ViewKind::Sampled, image as u64)?);
        Ok(())
    }
}
