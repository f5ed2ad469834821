//! The binary interface of [Unified Runtime] 0.12, as an adapter needs it: the types, the
//! constants and the function-pointer tables that a loader asks an adapter to fill. The crate
//! contains declarations only. The functions themselves (`urContextCreate` and so on) are entries
//! of the tables and not declared by name, so that a program that uses this crate links no
//! library.
//!
//! # Where it comes from
//!
//! `cargo xtask bindings` generates [`api`], [`ddi`] and [`params`] from the headers `ur_api.h`
//! and `ur_ddi.h` of the Python package `intel-sycl-rt` 2026.2.0, the runtime that loads
//! adapters. `cargo xtask bindings --check`, a step of `cargo xtask test`, reports any difference
//! from what it would generate. It also compares sizes, alignments and offsets with those that
//! clang finds in the headers. Do not edit these files.
//!
//! # Conventions
//!
//! - Every item keeps its C name and is in the root of this crate.
//! - An enumeration is a newtype of `u32`, and its constants are associated constants:
//!   `ur_result_t::UR_RESULT_SUCCESS`. So a value that this version does not know is valid, never
//!   undefined behaviour.
//! - Flags are plain `u32`, alone (`ur_usm_advice_flag_t`) and together
//!   (`ur_usm_advice_flags_t`), with free constants: `flags & UR_USM_ADVICE_FLAG_BIAS_CACHED`.
//!   The bits of `UR_USM_ADVICE_FLAGS_MASK` must be zero.
//! - A handle is a pointer to an opaque structure: `ur_context_handle_t` is
//!   `*mut ur_context_handle_t_`.
//! - A function pointer is an `Option` of an `unsafe extern "C" fn`; `None` is null. Its type
//!   is named after the function: `ur_pfnContextCreate_t`.
//! - [`ur_dditable_t`] holds all tables; [`for_each_table!`] lists them.
//! - `ur_bool_t` is one byte, in which any value but 0 is true; so is `bool` of C.
//! - Structures and unions are `Copy`, and zeroed bytes are a valid value of each:
//!   [`core::mem::MaybeUninit::zeroed`] makes one. Those that can be chained begin with `stype` and
//!   `pNext`.
//! - Macros with a text are `&CStr`.
//!
//! [Unified Runtime]: https://oneapi-src.github.io/unified-runtime/core/INTRO.html

#![no_std]
// The names are those of the C headers, which document their meaning.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals
)]

// Kept as generated: each version of `rustfmt` would format them differently.
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
