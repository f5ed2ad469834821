//! Where the elements of an array lie.

use super::Dtype;
use crosshandle::handle::bundle::MAX_DIMENSIONS;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The elements of an array in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: Dtype,
    /// Elements of each dimension.
    pub(crate) shape: Vec<usize>,
    /// Bytes from an element to its neighbour in each dimension.
    pub(crate) strides: Vec<isize>,
    /// Bytes from the start of the memory to the first element.
    pub(crate) offset: usize,
}

impl Layout {
    /// Reads what a program asks for, of memory of `len` bytes.
    pub(crate) fn of(
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        len: usize,
        offset: usize,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(Dtype::BYTE), Dtype::of)?;
        let shape = match shape {
            None => vec![len.saturating_sub(offset) / dtype.bytes()],
            Some(shape) => match shape.extract::<usize>() {
                Ok(elements) => vec![elements],
                Err(_) => shape.extract::<Vec<usize>>()?,
            },
        };
        let layout = Self::contiguous(dtype, shape, offset);
        layout.ok_or_else(|| {
            PyValueError::new_err("the shape has more bytes than there are addresses")
        })
    }

    /// Returns a layout without gaps, the last dimension the densest; `None` if it has more bytes than
    /// there are addresses.
    pub(crate) fn contiguous(dtype: Dtype, shape: Vec<usize>, offset: usize) -> Option<Self> {
        let mut strides = vec![0; shape.len()];
        let mut stride = isize::try_from(dtype.bytes()).ok()?;
        for (place, size) in strides.iter_mut().zip(&shape).rev() {
            *place = stride;
            // A dimension without elements leaves the strides of the others as they are.
            stride = stride.checked_mul(isize::try_from(*size).ok()?.max(1))?;
        }
        Some(Self {
            dtype,
            shape,
            strides,
            offset,
        })
    }

    /// Returns the number of elements, of a layout that was [checked](Self::check).
    pub(crate) fn elements(&self) -> usize {
        // Without elements, the other sizes may be anything.
        match self.shape.contains(&0) {
            true => 0,
            false => self.shape.iter().product(),
        }
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let dense = Self::contiguous(self.dtype, self.shape.clone(), self.offset);
        self.elements() == 0 || dense.is_some_and(|dense| dense.strides == self.strides)
    }

    /// Checks that all elements lie inside memory of `len` bytes, at multiples of their size.
    pub(crate) fn check(&self, len: usize) -> PyResult<()> {
        let refused = |what: String| Err(PyValueError::new_err(what));
        if self.shape.len() > MAX_DIMENSIONS || self.shape.len() != self.strides.len() {
            return refused(format!("an array has at most {MAX_DIMENSIONS} dimensions"));
        }
        let (mut first, mut last) = (self.offset as i128, self.offset as i128);
        let mut elements = 1_i128;
        if self
            .shape
            .iter()
            .any(|size| isize::try_from(*size).is_err())
        {
            return refused("a dimension has more elements than there are addresses".into());
        }
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            elements = elements.saturating_mul(*size as i128);
            let reach = (*size as i128 - 1).max(0).saturating_mul(*stride as i128);
            match reach < 0 {
                true => first = first.saturating_add(reach),
                false => last = last.saturating_add(reach),
            }
        }
        let size = self.dtype.bytes();
        let end = if elements == 0 {
            self.offset as i128
        } else {
            last.saturating_add(size as i128)
        };
        if elements > isize::MAX as i128 || first < 0 || end > len as i128 {
            return refused(format!(
                "the array has bytes up to {end} of its memory, which has {len}"
            ));
        }
        let align = size.min(8);
        let is_aligned = |distance: isize| distance % align as isize == 0;
        if !self.offset.is_multiple_of(align) || !self.strides.iter().copied().all(is_aligned) {
            return refused(format!("{} lies at multiples of {align} bytes", self.dtype));
        }
        Ok(())
    }
}
