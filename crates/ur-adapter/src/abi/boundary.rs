//! The boundary between C and Rust: entry points, their arguments and their results.
//!
//! [`entry_points!`] defines C functions whose bodies are Rust code. The type of each argument
//! comes from this module, from [`object`](super::object) or from [`query`](super::query). The type
//! determines how the C value is checked, and which value the body receives:
//!
//! | argument type | C type | type in the body | result for null |
//! |---|---|---|---|
//! | `Handle<T>` | `T` | `&Shared<T>` | `INVALID_NULL_HANDLE` |
//! | `MaybeHandle<T>` | `T` | `Option<&Shared<T>>` | `None` |
//! | `In<T>`, `InMut<T>` | `const T *`, `T *` | `&T` | `INVALID_NULL_POINTER` |
//! | `MaybeIn<T>`, `MaybeInMut<T>` | `const T *`, `T *` | `Option<&T>` | `None` |
//! | `Out<T>` | `T *` | [`OutPointer<T>`] | `INVALID_NULL_POINTER` |
//! | `MaybeOut<T>` | `T *` | `Option<OutPointer<T>>` | `None` |
//! | `Text` | `const char *` | `&CStr` | `INVALID_NULL_POINTER` |
//! | `MaybeText` | `const char *` | `Option<&CStr>` | `None` |
//! | `List<T>` | `uint32_t, const T *` | `&[T]` | `INVALID_NULL_POINTER` unless empty |
//! | `OutList<T>` | `uint32_t, T *` | [`Places<T>`] | a [`Places<T>`] without memory |
//! | `Handles<T>` | `uint32_t, const T *` | `HandleList<T>` | `INVALID_NULL_POINTER` unless empty |
//! | `Answer` | `size_t, void *, size_t *` | `Query` | see `Query` |
//! | numbers, enumerations, other pointers | the same type | the same type | not checked |
//!
//! Arguments are checked in order. The values in the body are borrowed from a [`Call`], so the body
//! cannot keep them after the entry point returns.

use super::failure::{Failure, Result};
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use unified_runtime_sys::*;

/// One call of an entry point. The caller's arguments stay valid while the `Call` is borrowed.
pub(crate) struct Call(());

/// Runs the body of an entry point and converts its result to a UR result. An error with a
/// message is also stored for `urAdapterGetLastError`. A panic is a bug in this adapter, and is
/// reported as an error.
#[inline]
pub(crate) fn enter(body: impl FnOnce(&Call) -> Result<()>) -> ur_result_t {
    match catch_unwind(AssertUnwindSafe(|| body(&Call(())))) {
        Ok(Ok(())) => ur_result_t::UR_RESULT_SUCCESS,
        Ok(Err(failure)) => failure.report(),
        Err(payload) => {
            let result = Failure::panicked(&*payload).report();
            // Dropping the payload could panic again, so it is leaked.
            std::mem::forget(payload);
            result
        }
    }
}

/// An argument of an entry point that consists of one C value.
pub(crate) trait Argument {
    /// The C type of the argument.
    type C;
    /// The type of the value that the body receives.
    type Value<'a>;

    /// Checks the C value, and converts it to the value for the body.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` or `INVALID_NULL_HANDLE` if the C value is null and the
    /// argument type does not allow null.
    ///
    /// # Safety
    /// The caller must ensure that the argument satisfies the Unified Runtime specification for its
    /// type. A handle must be null or refer to a living object of its type. A pointer must be null
    /// or valid for the reads or writes that its type implies. Both conditions must hold during
    /// `'a`.
    unsafe fn read<'a>(c: Self::C, call: &'a Call) -> Result<Self::Value<'a>>;
}

/// An argument of an entry point that consists of two C values. See [`Argument`].
pub(crate) trait Argument2 {
    /// The type of the first C value.
    type A;
    /// The type of the second C value.
    type B;
    /// The type of the value that the body receives.
    type Value<'a>;

    /// Checks the two C values, and converts them to one value for the body.
    ///
    /// # Errors
    /// Returns an error if the C values do not match each other, or if a required value is missing.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`Argument::read`].
    unsafe fn read<'a>(a: Self::A, b: Self::B, call: &'a Call) -> Result<Self::Value<'a>>;
}

/// An argument of an entry point that consists of three C values. See [`Argument`].
pub(crate) trait Argument3 {
    /// The type of the first C value.
    type A;
    /// The type of the second C value.
    type B;
    /// The type of the third C value.
    type C;
    /// The type of the value that the body receives.
    type Value<'a>;

    /// Checks the three C values, and converts them to one value for the body.
    ///
    /// # Errors
    /// Returns an error if the C values do not match each other, or if a required value is missing.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`Argument::read`].
    unsafe fn read<'a>(
        a: Self::A,
        b: Self::B,
        c: Self::C,
        call: &'a Call,
    ) -> Result<Self::Value<'a>>;
}

/// An argument of an entry point that consists of four C values. See [`Argument`].
pub(crate) trait Argument4 {
    /// The type of the first C value.
    type A;
    /// The type of the second C value.
    type B;
    /// The type of the third C value.
    type C;
    /// The type of the fourth C value.
    type D;
    /// The type of the value that the body receives.
    type Value<'a>;

    /// Checks the four C values, and converts them to one value for the body.
    ///
    /// # Errors
    /// Returns an error if the C values do not match each other, or if a required value is missing.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`Argument::read`].
    unsafe fn read<'a>(
        a: Self::A,
        b: Self::B,
        c: Self::C,
        d: Self::D,
        call: &'a Call,
    ) -> Result<Self::Value<'a>>;
}

/// Defines entry points in the form `fn name(argument: Type, …) { body }`.
///
/// The body is a block of type `Result<()>`. An argument that consists of several C values is
/// written `argument(first, second): Type`.
///
/// By default, [`enter`] runs each body. Start the macro's input with `in function;` to run the
/// bodies by `function` instead.
macro_rules! entry_points {
    (in $enter:path; $($(#[$meta:meta])* $vis:vis fn $name:ident($($arguments:tt)*) $body:block)*) => {$(
        $crate::abi::boundary::entry_point! {
            { $enter } { $(#[$meta])* } { $vis } { $name } { $body } {} {}
            call $($arguments)*
        }
    )*};
    ($($functions:tt)*) => {
        $crate::abi::boundary::entry_points! { in $crate::abi::boundary::enter; $($functions)* }
    };
}

/// Defines one function for [`entry_points!`]. The macro processes one argument per step, and emits
/// the function after the last argument.
macro_rules! entry_point {
    ({ $($enter:tt)* } { $($meta:tt)* } { $vis:vis } { $name:ident } { $body:block }
     { $($parameters:tt)* } { $($reads:tt)* } $call:ident) => {
        $($meta)*
        #[allow(unused_variables, reason = "not every body needs every argument")]
        $vis unsafe extern "C" fn $name($($parameters)*) -> ::unified_runtime_sys::ur_result_t {
            $($enter)*(|$call| {
                $($reads)*
                $body
            })
        }
    };
    ({ $($enter:tt)* } { $($meta:tt)* } { $vis:vis } { $name:ident } { $body:block }
     { $($parameters:tt)* } { $($reads:tt)* } $call:ident
     $argument:ident: $type:ty $(, $($rest:tt)*)?) => {
        $crate::abi::boundary::entry_point! {
            { $($enter)* } { $($meta)* } { $vis } { $name } { $body }
            { $($parameters)* $argument: <$type as $crate::abi::boundary::Argument>::C, }
            { $($reads)*
                // SAFETY: the caller of this entry point passes arguments that satisfy the
                // specification until the call returns.
                let $argument = unsafe {
                    <$type as $crate::abi::boundary::Argument>::read($argument, $call)
                }?;
            }
            $call $($($rest)*)?
        }
    };
    ({ $($enter:tt)* } { $($meta:tt)* } { $vis:vis } { $name:ident } { $body:block }
     { $($parameters:tt)* } { $($reads:tt)* } $call:ident
     $argument:ident($a:ident, $b:ident): $type:ty $(, $($rest:tt)*)?) => {
        $crate::abi::boundary::entry_point! {
            { $($enter)* } { $($meta)* } { $vis } { $name } { $body }
            { $($parameters)*
                $a: <$type as $crate::abi::boundary::Argument2>::A,
                $b: <$type as $crate::abi::boundary::Argument2>::B, }
            { $($reads)*
                // SAFETY: the caller of this entry point passes arguments that satisfy the
                // specification until the call returns.
                let $argument = unsafe {
                    <$type as $crate::abi::boundary::Argument2>::read($a, $b, $call)
                }?;
            }
            $call $($($rest)*)?
        }
    };
    ({ $($enter:tt)* } { $($meta:tt)* } { $vis:vis } { $name:ident } { $body:block }
     { $($parameters:tt)* } { $($reads:tt)* } $call:ident
     $argument:ident($a:ident, $b:ident, $c:ident): $type:ty $(, $($rest:tt)*)?) => {
        $crate::abi::boundary::entry_point! {
            { $($enter)* } { $($meta)* } { $vis } { $name } { $body }
            { $($parameters)*
                $a: <$type as $crate::abi::boundary::Argument3>::A,
                $b: <$type as $crate::abi::boundary::Argument3>::B,
                $c: <$type as $crate::abi::boundary::Argument3>::C, }
            { $($reads)*
                // SAFETY: the caller of this entry point passes arguments that satisfy the
                // specification until the call returns.
                let $argument = unsafe {
                    <$type as $crate::abi::boundary::Argument3>::read($a, $b, $c, $call)
                }?;
            }
            $call $($($rest)*)?
        }
    };
    ({ $($enter:tt)* } { $($meta:tt)* } { $vis:vis } { $name:ident } { $body:block }
     { $($parameters:tt)* } { $($reads:tt)* } $call:ident
     $argument:ident($a:ident, $b:ident, $c:ident, $d:ident): $type:ty $(, $($rest:tt)*)?) => {
        $crate::abi::boundary::entry_point! {
            { $($enter)* } { $($meta)* } { $vis } { $name } { $body }
            { $($parameters)*
                $a: <$type as $crate::abi::boundary::Argument4>::A,
                $b: <$type as $crate::abi::boundary::Argument4>::B,
                $c: <$type as $crate::abi::boundary::Argument4>::C,
                $d: <$type as $crate::abi::boundary::Argument4>::D, }
            { $($reads)*
                // SAFETY: the caller of this entry point passes arguments that satisfy the
                // specification until the call returns.
                let $argument = unsafe {
                    <$type as $crate::abi::boundary::Argument4>::read($a, $b, $c, $d, $call)
                }?;
            }
            $call $($($rest)*)?
        }
    };
}

pub(crate) use {entry_point, entry_points};

/// Implements [`Argument`] for types that the body receives unchanged.
macro_rules! by_value {
    ($($type:ty),* $(,)?) => {$(
        impl Argument for $type {
            type C = Self;
            type Value<'a> = Self;

            #[inline]
            unsafe fn read(c: Self, _call: &Call) -> Result<Self> {
                Ok(c)
            }
        }
    )*};
}

by_value!(
    u8,
    u32,
    u64,
    usize,
    ur_adapter_info_t,
    ur_buffer_create_type_t,
    ur_context_info_t,
    ur_device_info_t,
    ur_device_type_t,
    ur_event_info_t,
    ur_execution_info_t,
    ur_exp_command_buffer_info_t,
    ur_exp_external_mem_type_t,
    ur_exp_image_copy_input_types_t,
    ur_exp_image_mem_type_t,
    ur_exp_peer_info_t,
    ur_image_info_t,
    ur_kernel_exec_info_t,
    ur_kernel_group_info_t,
    ur_kernel_info_t,
    ur_kernel_sub_group_info_t,
    ur_logger_level_t,
    ur_mem_info_t,
    ur_physical_mem_info_t,
    ur_platform_info_t,
    ur_profiling_info_t,
    ur_program_build_info_t,
    ur_program_info_t,
    ur_queue_info_t,
    ur_rect_offset_t,
    ur_rect_region_t,
    ur_sampler_info_t,
    ur_usm_alloc_info_t,
    ur_usm_pool_info_t,
    ur_virtual_mem_granularity_info_t,
    ur_virtual_mem_info_t,
    ur_context_extended_deleter_t,
    ur_event_callback_t,
    ur_exp_enqueue_native_command_function_t,
    ur_logger_callback_t,
);

impl<T> Argument for *const T {
    type C = Self;
    type Value<'a> = Self;

    #[inline]
    unsafe fn read(c: Self, _call: &Call) -> Result<Self> {
        Ok(c)
    }
}

impl<T> Argument for *mut T {
    type C = Self;
    type Value<'a> = Self;

    #[inline]
    unsafe fn read(c: Self, _call: &Call) -> Result<Self> {
        Ok(c)
    }
}

/// A pointer to a structure that the caller passes.
pub(crate) struct In<T>(PhantomData<T>);

impl<T: 'static> Argument for In<T> {
    type C = *const T;
    type Value<'a> = &'a T;

    #[inline]
    unsafe fn read(c: *const T, _call: &Call) -> Result<&T> {
        // SAFETY: the caller ensures that the pointer is null or valid for reads during `'a`.
        unsafe { c.as_ref() }.ok_or(Failure::NULL_POINTER)
    }
}

/// A structure that the caller passes by a mutable pointer. The adapter only reads the structure.
pub(crate) struct InMut<T>(PhantomData<T>);

impl<T: 'static> Argument for InMut<T> {
    type C = *mut T;
    type Value<'a> = &'a T;

    #[inline]
    unsafe fn read(c: *mut T, call: &Call) -> Result<&T> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { In::read(c.cast_const(), call) }
    }
}

/// A pointer to a structure that the caller passes, or null.
pub(crate) struct MaybeIn<T>(PhantomData<T>);

impl<T: 'static> Argument for MaybeIn<T> {
    type C = *const T;
    type Value<'a> = Option<&'a T>;

    #[inline]
    unsafe fn read(c: *const T, _call: &Call) -> Result<Option<&T>> {
        // SAFETY: the caller ensures that the pointer is null or valid for reads during `'a`.
        Ok(unsafe { c.as_ref() })
    }
}

/// A structure that the caller passes by a mutable pointer, or null. The adapter only reads the
/// structure.
pub(crate) struct MaybeInMut<T>(PhantomData<T>);

impl<T: 'static> Argument for MaybeInMut<T> {
    type C = *mut T;
    type Value<'a> = Option<&'a T>;

    #[inline]
    unsafe fn read(c: *mut T, call: &Call) -> Result<Option<&T>> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { MaybeIn::read(c.cast_const(), call) }
    }
}

/// A pointer to the caller's memory for a result.
pub(crate) struct Out<T>(PhantomData<T>);

impl<T: 'static> Argument for Out<T> {
    type C = *mut T;
    type Value<'a> = OutPointer<'a, T>;

    #[inline]
    unsafe fn read<'a>(c: *mut T, _call: &'a Call) -> Result<OutPointer<'a, T>> {
        NonNull::new(c)
            .map(OutPointer::new)
            .ok_or(Failure::NULL_POINTER)
    }
}

/// A pointer to the caller's memory for a result, or null.
pub(crate) struct MaybeOut<T>(PhantomData<T>);

impl<T: 'static> Argument for MaybeOut<T> {
    type C = *mut T;
    type Value<'a> = Option<OutPointer<'a, T>>;

    #[inline]
    unsafe fn read<'a>(c: *mut T, _call: &'a Call) -> Result<Option<OutPointer<'a, T>>> {
        Ok(NonNull::new(c).map(OutPointer::new))
    }
}

/// The caller's memory for a result. The memory is valid for writes during `'a`, and may be
/// uninitialised.
pub(crate) struct OutPointer<'a, T> {
    start: NonNull<T>,
    _call: PhantomData<&'a mut T>,
}

impl<T> OutPointer<'_, T> {
    /// Creates a pointer to memory for a result. The function is private because it does not check
    /// that the memory is valid for writes.
    fn new(start: NonNull<T>) -> Self {
        Self {
            start,
            _call: PhantomData,
        }
    }

    /// Writes a result. This function always succeeds. It returns `Ok` so that a body can end with
    /// it.
    #[inline]
    pub(crate) fn put(&self, value: T) -> Result<()> {
        // SAFETY: the caller of `read` ensured that the memory is valid for writes during `'a`.
        unsafe { self.start.write(value) };
        Ok(())
    }
}

impl<T: Copy> OutPointer<'_, T> {
    /// Writes several adjacent results.
    ///
    /// # Safety
    /// The memory must have room for `values.len()` results.
    pub(crate) unsafe fn put_all(&self, values: &[T]) {
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller ensures that the memory has room for all values. The memory is
            // valid for writes during `'a`.
            unsafe { self.start.add(index).write(*value) };
        }
    }
}

/// A null-terminated string that the caller passes.
pub(crate) struct Text;

impl Argument for Text {
    type C = *const c_char;
    type Value<'a> = &'a CStr;

    unsafe fn read(c: *const c_char, call: &Call) -> Result<&CStr> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { MaybeText::read(c, call) }?.ok_or(Failure::NULL_POINTER)
    }
}

/// A null-terminated string that the caller passes, or null.
pub(crate) struct MaybeText;

impl Argument for MaybeText {
    type C = *const c_char;
    type Value<'a> = Option<&'a CStr>;

    unsafe fn read(c: *const c_char, _call: &Call) -> Result<Option<&CStr>> {
        // SAFETY: the caller ensures that a non-null pointer refers to a null-terminated string
        // that is valid during `'a`.
        Ok((!c.is_null()).then(|| unsafe { CStr::from_ptr(c) }))
    }
}

/// A list that the caller passes as the number of elements and the address of the first element.
pub(crate) struct List<T>(PhantomData<T>);

impl<T: 'static> Argument2 for List<T> {
    type A = u32;
    type B = *const T;
    type Value<'a> = &'a [T];

    #[inline]
    unsafe fn read(count: u32, first: *const T, _call: &Call) -> Result<&[T]> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { list(first, count as usize) }
    }
}

/// Memory for a list, which the caller passes as the number of elements and the address of the
/// first element.
pub(crate) struct OutList<T>(PhantomData<T>);

impl<T: 'static> Argument2 for OutList<T> {
    type A = u32;
    type B = *mut T;
    type Value<'a> = Places<'a, T>;

    unsafe fn read<'a>(count: u32, first: *mut T, _call: &'a Call) -> Result<Places<'a, T>> {
        Ok(Places {
            count: count as usize,
            first: NonNull::new(first),
            _call: PhantomData,
        })
    }
}

/// The caller's memory for the elements of a list. The memory is valid for writes during `'a`.
pub(crate) struct Places<'a, T> {
    /// The number of elements that the caller requested. It may be positive even if the address is
    /// null.
    pub(crate) count: usize,
    first: Option<NonNull<T>>,
    _call: PhantomData<&'a mut T>,
}

impl<T> Places<'_, T> {
    /// Returns whether the caller passed no memory for the list.
    pub(crate) fn is_null(&self) -> bool {
        self.first.is_none()
    }

    /// Writes as many values as the memory has room for.
    pub(crate) fn put(&self, values: impl IntoIterator<Item = T>) {
        let Some(first) = self.first else {
            return;
        };
        for (index, value) in values.into_iter().take(self.count).enumerate() {
            // SAFETY: the caller of `read` ensured that the memory has room for `count` values.
            unsafe { first.add(index).write(value) };
        }
    }
}

/// Returns `INVALID_NULL_POINTER` for a null pointer.
#[inline]
pub(crate) fn not_null<T>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        return Err(Failure::NULL_POINTER);
    }
    Ok(())
}

/// Returns the caller's list of `count` elements that starts at `first`.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if the list is not empty and `first` is null. Returns
/// `INVALID_SIZE` if `count` elements exceed the address space.
///
/// # Safety
/// `first` must be null or point to `count` elements that are valid for reads during `'a`. If
/// `count` is 0 or `count` elements exceed the address space, `first` may have any value.
#[inline]
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::NULL_POINTER),
        (false, _) if count > isize::MAX as usize / size_of::<T>() => Err(Failure::SIZE),
        // SAFETY: the caller ensures that the elements are valid for reads. Their total size was
        // checked.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}
