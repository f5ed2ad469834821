//! Bindless images: images that kernels reach by numbers, which any argument or memory may hold.
//!
//! - `image`: memory of images, their levels, and what they answer.
//! - `view`: the numbers, sampled and unsampled.
//! - `support`: what can be made.
//! - `external`: memory and semaphores of other interfaces.
//!
//! Copies are commands, in `enqueue::bindless`.
//!
//! An image's number is the driver's own object. A view's number is what the driver's kernels take. Each number is
//! looked up here before the driver sees it, so that one that is none, or is no more, is refused.

mod external;
pub(crate) mod image;
mod support;
mod view;

use crate::enqueue;
use unified_runtime_sys::ur_bindless_images_exp_dditable_t;

/// The table of bindless images.
pub(crate) const TABLE: ur_bindless_images_exp_dditable_t = ur_bindless_images_exp_dditable_t {
    pfnUnsampledImageHandleDestroyExp: Some(view::destroy_unsampled),
    pfnSampledImageHandleDestroyExp: Some(view::destroy_sampled),
    pfnImageAllocateExp: Some(image::allocate),
    pfnImageFreeExp: Some(image::free),
    pfnUnsampledImageCreateExp: Some(view::create_unsampled),
    pfnSampledImageCreateExp: Some(view::create_sampled),
    pfnImageCopyExp: Some(enqueue::bindless::copy),
    pfnImageGetInfoExp: Some(image::get_info),
    pfnGetImageMemoryHandleTypeSupportExp: Some(support::memory),
    pfnGetImageUnsampledHandleSupportExp: Some(support::unsampled),
    pfnGetImageSampledHandleSupportExp: Some(support::sampled),
    pfnMipmapGetLevelExp: Some(image::get_level),
    pfnMipmapFreeExp: Some(image::free_levels),
    pfnImportExternalMemoryExp: external::MEMORY_IMPORT,
    pfnMapExternalArrayExp: external::MEMORY_MAP_ARRAY,
    pfnMapExternalLinearMemoryExp: external::MEMORY_MAP_LINEAR,
    pfnReleaseExternalMemoryExp: external::MEMORY_RELEASE,
    pfnFreeMappedLinearMemoryExp: external::MEMORY_FREE,
    pfnSupportsImportingHandleTypeExp: Some(external::supports_importing),
    pfnImportExternalSemaphoreExp: external::SEMAPHORE_IMPORT,
    pfnReleaseExternalSemaphoreExp: external::SEMAPHORE_RELEASE,
    pfnWaitExternalSemaphoreExp: external::SEMAPHORE_WAIT,
    pfnSignalExternalSemaphoreExp: external::SEMAPHORE_SIGNAL,
};
