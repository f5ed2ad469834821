//! The layout of an array: its element type, shape and strides, and its position in memory.

use super::Dtype;
use super::MAX_DIMENSIONS;
use crate::array::arguments::Sizes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ops::Range;

/// The layout of an array: its element type, shape and strides, and its position in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: Dtype,
    /// The number of elements in each dimension.
    pub(crate) shape: Vec<usize>,
    /// The distance in bytes between neighbouring elements, for each dimension. It may be negative.
    pub(crate) strides: Vec<isize>,
    /// The distance in bytes from the start of the memory to the first element.
    pub(crate) offset: usize,
}

impl Layout {
    /// Creates a layout without gaps from a program's arguments. `len` is the size of the memory in
    /// bytes. Without `shape`, the layout has one dimension that extends from byte `offset` to the
    /// end of the memory. Without `dtype`, the elements are bytes.
    pub(crate) fn of(
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        len: usize,
        offset: usize,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(Dtype::BYTE), Dtype::of)?;
        let shape = match shape {
            None => vec![len.saturating_sub(offset) / dtype.bytes()],
            Some(shape) => Self::shape_of(shape)?,
        };
        let layout = Self::contiguous(dtype, shape, offset);
        layout.ok_or_else(|| PyValueError::new_err("the array is larger than the address space"))
    }

    /// Converts a program's `shape` argument, which is one number or a sequence of numbers.
    pub(crate) fn shape_of(shape: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        if let Ok(elements) = shape.extract::<usize>() {
            return Ok(vec![elements]);
        }
        let sizes = shape.extract::<Sizes<usize>>().map(|sizes| sizes.0);
        sizes.map_err(|error| {
            if error.is_instance_of::<PyValueError>(shape.py()) {
                return error;
            }
            PyTypeError::new_err(format!(
                "a shape is a number of elements or a tuple of them, none negative: {shape}"
            ))
        })
    }

    /// Creates a layout without gaps, in row-major order. Returns `None` if the array is larger
    /// than the address space.
    pub(crate) fn contiguous(dtype: Dtype, shape: Vec<usize>, offset: usize) -> Option<Self> {
        let mut strides = vec![0; shape.len()];
        let mut stride = isize::try_from(dtype.bytes()).ok()?;
        for (place, size) in strides.iter_mut().zip(&shape).rev() {
            *place = stride;
            // Treat a dimension of size 0 like one of size 1, so that the other strides are not 0.
            stride = stride.checked_mul(isize::try_from(*size).ok()?.max(1))?;
        }
        Some(Self {
            dtype,
            shape,
            strides,
            offset,
        })
    }

    /// Returns the number of elements. The layout must be [checked](Self::check), or the product
    /// may overflow.
    pub(crate) fn elements(&self) -> usize {
        // If one size is 0, the product of the other sizes may exceed the address space.
        match self.shape.contains(&0) {
            true => 0,
            false => self.shape.iter().product(),
        }
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let dense = Self::contiguous(self.dtype.clone(), self.shape.clone(), self.offset);
        self.elements() == 0 || dense.is_some_and(|dense| dense.strides == self.strides)
    }

    /// Returns the number of bytes that the elements occupy before the first element's address, and
    /// the number of bytes from that address on.
    ///
    /// Both numbers are 0 if there are no elements. Returns `None` if the array is larger than the
    /// address space.
    pub(crate) fn reach(&self) -> Option<(usize, usize)> {
        let (mut before, mut after, mut elements) = (0_usize, 0_usize, 1_u128);
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            isize::try_from(*size).ok()?;
            elements = elements.saturating_mul(*size as u128);
            let reach = (*size).saturating_sub(1).checked_mul(stride.unsigned_abs());
            // If one size is 0, the product of the other sizes may exceed the address space.
            let reach = match self.shape.contains(&0) {
                true => 0,
                false => reach?,
            };
            match *stride < 0 {
                true => before = before.checked_add(reach)?,
                false => after = after.checked_add(reach)?,
            }
        }
        if elements == 0 {
            return Some((0, 0));
        }
        after = after.checked_add(self.dtype.bytes())?;
        // Count elements that share an address (stride 0) separately, because consumers do so too.
        let bytes = elements.saturating_mul(self.dtype.bytes() as u128);
        let is_within = bytes <= isize::MAX as u128;
        let total = before.checked_add(after)?;
        (is_within && total <= isize::MAX as usize).then_some((before, after))
    }

    /// Returns the array's byte range in its memory: from its lowest byte to the end of its highest
    /// element. The layout must be [checked](Self::check).
    pub(crate) fn bytes(&self) -> Range<usize> {
        let (before, after) = self.reach().unwrap_or_default();
        self.offset.saturating_sub(before)..self.offset.saturating_add(after)
    }

    /// Returns whether a dimension with more than one element has a negative stride.
    pub(crate) fn is_reversed(&self) -> bool {
        let mut dimensions = self.shape.iter().zip(&self.strides);
        self.elements() > 0 && dimensions.any(|(size, stride)| *size > 1 && *stride < 0)
    }

    /// Checks that all elements are aligned and inside a memory of `len` bytes, and that the layout
    /// has at most [`MAX_DIMENSIONS`] dimensions.
    pub(crate) fn check(&self, len: usize) -> PyResult<()> {
        let refused = |what: String| Err(PyValueError::new_err(what));
        if self.shape.len() > MAX_DIMENSIONS || self.shape.len() != self.strides.len() {
            return refused(format!("an array has at most {MAX_DIMENSIONS} dimensions"));
        }
        let Some((before, after)) = self.reach() else {
            return refused("the array is larger than the address space".into());
        };
        let end = self.offset as u128 + after as u128;
        if before > self.offset || end > len as u128 {
            return refused(format!(
                "the array has bytes up to {end} of its memory, which has {len}"
            ));
        }
        let align = self.dtype.align();
        let is_aligned = |distance: isize| distance % align as isize == 0;
        if !self.offset.is_multiple_of(align) || !self.strides.iter().copied().all(is_aligned) {
            return refused(format!("{} lies at multiples of {align} bytes", self.dtype));
        }
        Ok(())
    }
}
