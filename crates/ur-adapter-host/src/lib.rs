//! `libur_adapter_crosshandle_host.so`: the Unified Runtime adapter for the host device.
//!
//! The implementation is in `crosshandle-ur-adapter`. This crate selects the backend and exports
//! the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::HOST);
