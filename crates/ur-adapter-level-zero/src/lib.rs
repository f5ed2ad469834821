//! `libur_adapter_crosshandle_level_zero.so`: the Unified Runtime adapter for Level Zero devices.
//!
//! Everything is in `crosshandle-ur-adapter`; this names the backend and exports the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::LEVEL_ZERO);
