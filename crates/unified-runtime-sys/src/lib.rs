//! The binary interface of [Unified Runtime] 0.12, as an adapter needs it: the types, the
//! constants and the function-pointer tables that a loader asks an adapter to fill. There are
//! declarations only. Nothing here can be called without an adapter or a loader at hand: the
//! functions themselves (`urContextCreate` and so on) appear as the entries of the tables and
//! are not declared, so that whoever uses this crate links nothing.
//!
//! # Where it comes from
//!
//! `cargo xtask bindings` generates [`api`], [`ddi`] and [`params`] from the headers `ur_api.h`
//! and `ur_ddi.h` of the Python package `intel-sycl-rt` 2026.2.0, the runtime that adapters
//! are loaded by. `cargo xtask bindings --check` says whether they are still what it would
//! generate, and the crate's tests compare sizes, alignments, offsets and values with those
//! that a C compiler finds in the headers. Do not edit these files.
//!
//! # Conventions
//!
//! - Every item keeps its C name and lies in the root of this crate.
//! - An enumeration is a newtype of `u32`, its constants are associated ones:
//!   `ur_result_t::UR_RESULT_SUCCESS`. So a value that this version does not know is a value
//!   like any other, never undefined behaviour.
//! - Flags are plain `u32`, alone (`ur_usm_advice_flag_t`) and together
//!   (`ur_usm_advice_flags_t`), with free constants: `flags & UR_USM_ADVICE_FLAG_BIAS_CACHED`.
//!   The bits of `UR_USM_ADVICE_FLAGS_MASK` are those that must be zero.
//! - A handle is a pointer to an opaque structure: `ur_context_handle_t` is
//!   `*mut ur_context_handle_t_`.
//! - A function pointer is an `Option` of an `unsafe extern "C" fn`; `None` is null. Its type
//!   is named after the function: `ur_pfnContextCreate_t`.
//! - [`ur_dditable_t`] holds all tables; [`for_each_table!`] lists them.
//! - `ur_bool_t` is one byte, any value but 0 is true; what C calls `bool` is one too.
//! - Structures and unions are `Copy`, and zeroed bytes are a valid value of each:
//!   [`core::mem::MaybeUninit::zeroed`] makes one. `stype` and `pNext` begin those that can be
//!   chained.
//! - Macros with text are `&CStr`.
//!
//! [Unified Runtime]: https://oneapi-src.github.io/unified-runtime/core/INTRO.html

#![no_std]
// The names are those of the C headers, and what they mean is documented there.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals
)]

// As generated; `rustfmt` would format them in the way of its own version.
#[rustfmt::skip]
pub mod api;
#[rustfmt::skip]
pub mod ddi;
#[rustfmt::skip]
pub mod params;
mod tables;

pub use api::*;
pub use ddi::*;
pub use params::*;
