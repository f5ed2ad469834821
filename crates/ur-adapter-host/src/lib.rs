//! `libur_adapter_crosshandle_host.so`: the Unified Runtime adapter for the host device.
//!
//! Everything is in `crosshandle-ur-adapter`; this names the backend and exports the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::HOST);
