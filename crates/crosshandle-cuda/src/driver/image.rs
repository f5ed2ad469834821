//! Arrays of pixels, and the texture and surface objects through which kernels access them.
//!
//! For all calls, the context of the array must be current (see `Driver::enter`). If the driver
//! lacks functions for images, its devices have no images, and none of these calls is used.

use super::library::ImageLibrary;
use super::{ArrayHandle, DeviceAddress, Driver, LevelsHandle};
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{
    CU_TRSF_NORMALIZED_COORDINATES, CU_TRSF_READ_AS_INTEGER, CU_TRSF_SEAMLESS_CUBEMAP,
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SURFACE_LDST,
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_st__bindgen_ty_1,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_1,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_2,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4, CUDA_TEXTURE_DESC, CUaddress_mode,
    CUarray_format, CUfilter_mode, CUresourcetype,
};
use std::ffi::c_uint;
use std::ptr;

/// The pixels of an array: the type of a channel, and the number of channels (1, 2 or 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pixel {
    pub format: CUarray_format,
    pub channels: c_uint,
}

/// The size of an array in pixels. It is 0 in dimensions that the array does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArrayShape {
    pub width: usize,
    pub height: usize,
    /// The depth in pixels, or the number of layers of a layered array.
    pub depth: usize,
    pub is_layered: bool,
    pub is_cube: bool,
}

/// The source that a texture reads.
#[derive(Clone, Copy)]
pub(crate) enum TextureSource {
    Array(ArrayHandle),
    Levels(LevelsHandle),
    /// A row of pixels in memory, with its length in pixels.
    Row(DeviceAddress, usize),
    /// Rows in memory: width and height in pixels, and the row pitch in bytes.
    Rows(DeviceAddress, [usize; 2], usize),
}

/// The rules by which a texture reads.
#[derive(Clone, Copy)]
pub(crate) struct TextureRules {
    pub addressing: [CUaddress_mode; 3],
    pub filter: CUfilter_mode,
    pub level_filter: CUfilter_mode,
    pub levels: [f32; 2],
    pub anisotropy: c_uint,
    pub is_normalized: bool,
    /// Whether integers are read as integers and not as fractions.
    pub reads_integers: bool,
    pub is_seamless: bool,
}

impl ArrayShape {
    pub(super) fn description(&self, pixel: Pixel) -> CUDA_ARRAY3D_DESCRIPTOR {
        let mut flags = CUDA_ARRAY3D_SURFACE_LDST;
        if self.is_layered {
            flags |= CUDA_ARRAY3D_LAYERED;
        }
        if self.is_cube {
            flags |= CUDA_ARRAY3D_CUBEMAP;
        }
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.width,
            Height: self.height,
            Depth: self.depth,
            Format: pixel.format,
            NumChannels: pixel.channels,
            Flags: flags,
        }
    }
}

impl TextureSource {
    fn description(self, pixel: Pixel) -> CUDA_RESOURCE_DESC {
        type Places = CUDA_RESOURCE_DESC_st__bindgen_ty_1;
        // The driver requires zeros in the unused part of the union.
        //
        // SAFETY: zeros are valid numbers and pointers, of which the union consists.
        let mut res: Places = unsafe { std::mem::zeroed() };
        let kind = match self {
            Self::Array(array) => {
                res.array = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_1 {
                    hArray: ptr::with_exposed_provenance_mut(array.number()),
                };
                CUresourcetype::CU_RESOURCE_TYPE_ARRAY
            }
            Self::Levels(levels) => {
                res.mipmap = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_2 {
                    hMipmappedArray: ptr::with_exposed_provenance_mut(levels.number()),
                };
                CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
            }
            Self::Row(start, len) => {
                res.linear = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
                    devPtr: start,
                    format: pixel.format,
                    numChannels: pixel.channels,
                    sizeInBytes: len * pixel.bytes(),
                };
                CUresourcetype::CU_RESOURCE_TYPE_LINEAR
            }
            Self::Rows(start, [width, height], pitch) => {
                res.pitch2D = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
                    devPtr: start,
                    format: pixel.format,
                    numChannels: pixel.channels,
                    width,
                    height,
                    pitchInBytes: pitch,
                };
                CUresourcetype::CU_RESOURCE_TYPE_PITCH2D
            }
        };
        CUDA_RESOURCE_DESC {
            resType: kind,
            res,
            flags: 0,
        }
    }
}

impl Pixel {
    /// Returns the size of a pixel in bytes.
    pub(crate) fn bytes(self) -> usize {
        let channel = match self.format {
            CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8
            | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
            CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16
            | CUarray_format::CU_AD_FORMAT_SIGNED_INT16
            | CUarray_format::CU_AD_FORMAT_HALF => 2,
            // This library creates no arrays of other formats.
            _ => 4,
        };
        channel * self.channels as usize
    }
}

impl TextureRules {
    fn description(&self) -> CUDA_TEXTURE_DESC {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        CUDA_TEXTURE_DESC {
            addressMode: self.addressing,
            filterMode: self.filter,
            flags: flag(self.is_normalized, CU_TRSF_NORMALIZED_COORDINATES)
                | flag(self.reads_integers, CU_TRSF_READ_AS_INTEGER)
                | flag(self.is_seamless, CU_TRSF_SEAMLESS_CUBEMAP),
            maxAnisotropy: self.anisotropy,
            mipmapFilterMode: self.level_filter,
            mipmapLevelBias: 0.0,
            minMipmapLevelClamp: self.levels[0],
            maxMipmapLevelClamp: self.levels[1],
            borderColor: [0.0; 4],
            reserved: [0; 12],
        }
    }
}

impl Driver {
    /// Returns whether the driver has all functions for images.
    pub(crate) fn has_images(&self) -> bool {
        self.library.images.is_some()
    }

    pub(super) fn images(&self) -> Result<&ImageLibrary> {
        let images = self.library.images.as_ref();
        images.ok_or_else(|| Error::Unsupported("this driver does not support images".into()))
    }

    /// Creates an array with arbitrary contents. Surfaces can be created on it.
    pub(crate) fn create_array(&self, shape: &ArrayShape, pixel: Pixel) -> Result<ArrayHandle> {
        let mut array = ArrayHandle::NONE;
        let code = (self.images()?.array_create)(&mut array, &shape.description(pixel));
        self.check_memory("cuArray3DCreate", shape.bytes(pixel), code)?;
        Ok(array)
    }

    /// Destroys an array.
    ///
    /// # Safety
    /// The array was created by [`create_array`](Self::create_array). Neither the host nor the
    /// device uses it any more.
    pub(crate) unsafe fn destroy_array(&self, array: ArrayHandle) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.images()?.array_destroy)(array) };
        self.check("cuArrayDestroy", code)
    }

    /// Creates an array of several levels.
    pub(crate) fn create_levels(
        &self,
        shape: &ArrayShape,
        pixel: Pixel,
        levels: u32,
    ) -> Result<LevelsHandle> {
        let mut handle = LevelsHandle::NONE;
        let create = self.images()?.levels_create;
        let code = create(&mut handle, &shape.description(pixel), levels);
        self.check_memory("cuMipmappedArrayCreate", shape.bytes(pixel), code)?;
        Ok(handle)
    }

    /// Returns one level, which is destroyed together with the whole array.
    pub(crate) fn level(&self, levels: LevelsHandle, number: u32) -> Result<ArrayHandle> {
        let mut array = ArrayHandle::NONE;
        let code = (self.images()?.levels_get)(&mut array, levels, number);
        self.check("cuMipmappedArrayGetLevel", code)?;
        Ok(array)
    }

    /// Destroys an array of several levels.
    ///
    /// # Safety
    /// As for [`destroy_array`](Self::destroy_array).
    pub(crate) unsafe fn destroy_levels(&self, levels: LevelsHandle) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.images()?.levels_destroy)(levels) };
        self.check("cuMipmappedArrayDestroy", code)
    }

    /// Creates a texture object.
    ///
    /// # Safety
    /// The source lives as long as kernels use the result. If the source is memory, it contains all
    /// the pixels and is aligned.
    pub(crate) unsafe fn create_texture(
        &self,
        source: TextureSource,
        pixel: Pixel,
        rules: &TextureRules,
    ) -> Result<u64> {
        let mut texture = 0;
        let (source, rules) = (source.description(pixel), rules.description());
        let create = self.images()?.texture_create;
        // SAFETY: the result and the descriptions are live. No view narrows the source. The caller
        // promises the rest.
        let code = unsafe { create(&mut texture, &source, &rules, ptr::null()) };
        self.check("cuTexObjectCreate", code)?;
        Ok(texture)
    }

    /// Destroys a texture object.
    ///
    /// # Safety
    /// The texture was created by [`create_texture`](Self::create_texture), and no kernel uses it
    /// any more.
    pub(crate) unsafe fn destroy_texture(&self, texture: u64) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.images()?.texture_destroy)(texture) };
        self.check("cuTexObjectDestroy", code)
    }

    /// Creates a surface object.
    ///
    /// # Safety
    /// The array lives as long as kernels use the result.
    pub(crate) unsafe fn create_surface(&self, array: ArrayHandle, pixel: Pixel) -> Result<u64> {
        let mut surface = 0;
        let source = TextureSource::Array(array).description(pixel);
        let create = self.images()?.surface_create;
        // SAFETY: the result and the description are live. The caller promises the rest.
        let code = unsafe { create(&mut surface, &source) };
        self.check("cuSurfObjectCreate", code)?;
        Ok(surface)
    }

    /// Destroys a surface object.
    ///
    /// # Safety
    /// The surface was created by [`create_surface`](Self::create_surface), and no kernel uses it
    /// any more.
    pub(crate) unsafe fn destroy_surface(&self, surface: u64) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.images()?.surface_destroy)(surface) };
        self.check("cuSurfObjectDestroy", code)
    }
}

impl ArrayShape {
    /// Returns the number of bytes of all pixels, without padding that the driver adds.
    pub(crate) fn bytes(&self, pixel: Pixel) -> usize {
        let sizes = [self.width, self.height.max(1), self.depth.max(1)];
        let sizes = sizes.into_iter();
        sizes.fold(pixel.bytes(), usize::saturating_mul)
    }
}
