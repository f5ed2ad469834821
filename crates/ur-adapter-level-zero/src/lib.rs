//! `libur_adapter_crosshandle_level_zero.so`: the Unified Runtime adapter for Level Zero devices.
//!
//! The implementation is in `crosshandle-ur-adapter`. This crate selects the backend and exports
//! the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::LEVEL_ZERO);
