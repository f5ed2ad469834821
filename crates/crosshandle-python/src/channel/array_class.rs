//! The methods that items and slots of a channel have in common.

/// Defines the methods of a class that has an array, by its method `array_of`.
macro_rules! array_class {
    ($Class:ident { $($method:item)* }) => {
        #[pymethods]
        impl $Class {
            /// The array over the slot's memory.
            #[getter]
            fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Array>> {
                self.array_of(py)
            }

            /// The number of elements in each dimension.
            #[getter]
            fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.getattr("shape")
            }

            /// The name of the element type, such as `uint8`.
            #[getter]
            fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.getattr("dtype")
            }

            /// Returns a NumPy array that shares the slot's bytes.
            fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.call_method0("numpy")
            }

            /// Returns a torch tensor that shares the slot's bytes, or a copy. A read-only array
            /// needs `copy=True`.
            #[pyo3(signature = (*, copy = false))]
            fn torch<'py>(&self, py: Python<'py>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
                let options = pyo3::types::PyDict::new(py);
                options.set_item("copy", copy)?;
                self.array_of(py)?.call_method("torch", (), Some(&options))
            }

            /// Returns a JAX array that shares the slot's bytes.
            fn jax<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.call_method0("jax")
            }

            /// Returns a CuPy array that shares the slot's bytes, which must be on a GPU.
            fn cupy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.call_method0("cupy")
            }

            #[pyo3(signature = (dtype = None, *, copy = None))]
            fn __array__<'py>(
                &self,
                py: Python<'py>,
                dtype: Option<Bound<'py, PyAny>>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let options = pyo3::types::PyDict::new(py);
                options.set_item("copy", copy)?;
                self.array_of(py)?
                    .call_method("__array__", (dtype,), Some(&options))
            }

            #[pyo3(signature = (**options))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                options: Option<&Bound<'py, pyo3::types::PyDict>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.call_method("__dlpack__", (), options)
            }

            fn __dlpack_device__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.call_method0("__dlpack_device__")
            }

            unsafe fn __getbuffer__(
                slf: Bound<'_, Self>,
                view: *mut pyo3::ffi::Py_buffer,
                flags: std::ffi::c_int,
            ) -> PyResult<()> {
                // The view belongs to the array, which releases it.
                let array = slf.get().array_of(slf.py());
                // SAFETY: the interpreter passes a `view` that is null or can be written.
                unsafe { crate::array::fill_view(array, view, flags) }
            }

            fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
                self.array_of(py)?.len()
            }

            fn __getitem__<'py>(
                &self,
                py: Python<'py>,
                index: Bound<'py, PyAny>,
            ) -> PyResult<Bound<'py, PyAny>> {
                self.array_of(py)?.get_item(index)
            }

            $($method)*
        }
    };
}
