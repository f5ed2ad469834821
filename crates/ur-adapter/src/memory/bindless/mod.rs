//! Bindless images, which kernels access by handles in their arguments or in memory.
//!
//! - `image`: the memory of images, their mipmap levels, and their properties.
//! - `view`: handles of sampled and unsampled images.
//! - `support`: queries about supported images.
//! - `external`: external memory from other graphics interfaces.
//!
//! Image copies are commands, in `enqueue::bindless`.
//!
//! The handle of an image is the driver's own object. The handle of a view is the number that
//! kernels take. The adapter looks up each handle before it passes the handle to the driver.
//! Invalid and outdated handles therefore give an error.

mod external;
pub(crate) mod image;
mod support;
mod view;

use crate::enqueue;
use unified_runtime_sys::ur_bindless_images_exp_dditable_t;

/// The entry points for bindless images.
pub(crate) const TABLE: ur_bindless_images_exp_dditable_t = ur_bindless_images_exp_dditable_t {
    pfnUnsampledImageHandleDestroyExp: Some(view::destroy_unsampled),
    pfnSampledImageHandleDestroyExp: Some(view::destroy_sampled),
    pfnImageAllocateExp: Some(image::allocate),
    pfnImageFreeExp: Some(image::free),
    pfnUnsampledImageCreateExp: Some(view::create_unsampled),
    pfnSampledImageCreateExp: Some(view::create_sampled),
    pfnImageCopyExp: Some(enqueue::bindless::copy),
    pfnImageGetInfoExp: Some(image::get_info),
    pfnGetImageMemoryHandleTypeSupportExp: Some(support::sampled),
    pfnGetImageUnsampledHandleSupportExp: Some(support::unsampled),
    pfnGetImageSampledHandleSupportExp: Some(support::sampled),
    pfnMipmapGetLevelExp: Some(image::get_level),
    pfnMipmapFreeExp: Some(image::free_levels),
    pfnImportExternalMemoryExp: Some(external::import),
    pfnMapExternalArrayExp: Some(external::map_array),
    pfnMapExternalLinearMemoryExp: Some(external::map_linear),
    pfnReleaseExternalMemoryExp: Some(external::release_memory),
    pfnFreeMappedLinearMemoryExp: Some(external::free_linear),
    pfnSupportsImportingHandleTypeExp: Some(external::supports_importing),
    pfnImportExternalSemaphoreExp: external::SEMAPHORE_IMPORT,
    pfnReleaseExternalSemaphoreExp: external::SEMAPHORE_RELEASE,
    pfnWaitExternalSemaphoreExp: external::SEMAPHORE_WAIT,
    pfnSignalExternalSemaphoreExp: external::SEMAPHORE_SIGNAL,
};
