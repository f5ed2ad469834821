//! `libur_adapter_crosshandle_cuda.so`: the Unified Runtime adapter for NVIDIA GPUs.
//!
//! The implementation is in `crosshandle-ur-adapter`. This crate selects the backend and exports
//! the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::CUDA);
