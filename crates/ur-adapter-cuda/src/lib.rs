//! `libur_adapter_crosshandle_cuda.so`: the Unified Runtime adapter for NVIDIA GPUs.
//!
//! Everything is in `crosshandle-ur-adapter`; this names the backend and exports the symbols.

ur_adapter::export_adapter!(ur_adapter::Description::CUDA);
