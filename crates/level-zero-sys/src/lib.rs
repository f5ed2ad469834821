//! The binary interface of [Level Zero]'s core API 1.17: the types, the constants and the
//! function-pointer tables, and [`Loader`], which finds the functions at run time. A program that
//! uses this crate links no library and needs no driver to start.
//!
//! # Where it comes from
//!
//! `cargo xtask bindings` generates [`api`] and [`ddi`] from the headers `ze_api.h` and `ze_ddi.h`
//! of Debian's package `libze-dev` 1.32.0. `cargo xtask bindings --check`, a step of `cargo xtask
//! test`, reports any difference from what it would generate. It also compares sizes, alignments
//! and offsets with those that clang finds in the headers. Do not edit these files. The
//! declarations for tracing layers are left out. [`zex`] has the names under which drivers offered
//! counter-based events before the core API included them.
//!
//! # Conventions
//!
//! - Every item keeps its C name and is in the root of this crate.
//! - An enumeration is a newtype of `u32`, and its constants are associated constants:
//!   `ze_result_t::ZE_RESULT_SUCCESS`. So a value that this version does not know is valid, never
//!   undefined behaviour.
//! - Flags are plain `u32`, alone (`ze_event_scope_flag_t`) and together
//!   (`ze_event_scope_flags_t`), with free constants.
//! - A handle is a pointer to an opaque structure.
//! - A function pointer is an `Option` of an `unsafe extern "C" fn`; `None` is null. Its type is
//!   named after the function: `ze_pfnContextCreate_t`.
//! - The tables of a driver only ever grow at their end: a driver of an older version has a prefix
//!   of each table that is declared here.
//! - Zeroed bytes are a valid value of every structure. Those that can be chained begin with
//!   `stype` and `pNext`.
//!
//! [Level Zero]: https://oneapi-src.github.io/level-zero-spec/level-zero/latest/index.html

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
mod loader;
pub mod zex;

pub use api::*;
pub use ddi::*;
pub use loader::*;
pub use zex::*;
