//! The list of tables, for code that handles all of them in one way.

/// Expands the macro whose path is in brackets once, with all tables in the order of
/// [`ur_dditable_t`](crate::ur_dditable_t).
///
/// A table is written as its field, the type of the field, and the symbol that a loader looks
/// up in an adapter to have that table filled. If there is an expression after the macro's path, it
/// comes before all tables, followed by a semicolon.
///
/// ```
/// macro_rules! count {
///     ($($field:ident: $table:ident, $symbol:ident;)*) => {
///         [$((stringify!($symbol), size_of::<unified_runtime_sys::$table>())),*]
///     };
/// }
/// let tables = unified_runtime_sys::for_each_table!([count]);
/// assert_eq!(tables[0], ("urGetAdapterProcAddrTable", 7 * size_of::<usize>()));
/// assert_eq!(tables.len(), 26);
/// ```
#[macro_export]
macro_rules! for_each_table {
    ([$($callback:tt)+] $(, $before:expr)?) => {
        $($callback)+! {
            $($before;)?
            Adapter: ur_adapter_dditable_t, urGetAdapterProcAddrTable;
            Platform: ur_platform_dditable_t, urGetPlatformProcAddrTable;
            Context: ur_context_dditable_t, urGetContextProcAddrTable;
            Event: ur_event_dditable_t, urGetEventProcAddrTable;
            EventExp: ur_event_exp_dditable_t, urGetEventExpProcAddrTable;
            Program: ur_program_dditable_t, urGetProgramProcAddrTable;
            ProgramExp: ur_program_exp_dditable_t, urGetProgramExpProcAddrTable;
            Kernel: ur_kernel_dditable_t, urGetKernelProcAddrTable;
            Queue: ur_queue_dditable_t, urGetQueueProcAddrTable;
            QueueExp: ur_queue_exp_dditable_t, urGetQueueExpProcAddrTable;
            Sampler: ur_sampler_dditable_t, urGetSamplerProcAddrTable;
            Mem: ur_mem_dditable_t, urGetMemProcAddrTable;
            PhysicalMem: ur_physical_mem_dditable_t, urGetPhysicalMemProcAddrTable;
            Enqueue: ur_enqueue_dditable_t, urGetEnqueueProcAddrTable;
            EnqueueExp: ur_enqueue_exp_dditable_t, urGetEnqueueExpProcAddrTable;
            USM: ur_usm_dditable_t, urGetUSMProcAddrTable;
            USMExp: ur_usm_exp_dditable_t, urGetUSMExpProcAddrTable;
            BindlessImagesExp: ur_bindless_images_exp_dditable_t, urGetBindlessImagesExpProcAddrTable;
            CommandBufferExp: ur_command_buffer_exp_dditable_t, urGetCommandBufferExpProcAddrTable;
            GraphExp: ur_graph_exp_dditable_t, urGetGraphExpProcAddrTable;
            IPCExp: ur_ipc_exp_dditable_t, urGetIPCExpProcAddrTable;
            MemoryExportExp: ur_memory_export_exp_dditable_t, urGetMemoryExportExpProcAddrTable;
            UsmP2PExp: ur_usm_p2p_exp_dditable_t, urGetUsmP2PExpProcAddrTable;
            VirtualMem: ur_virtual_mem_dditable_t, urGetVirtualMemProcAddrTable;
            Device: ur_device_dditable_t, urGetDeviceProcAddrTable;
            DeviceExp: ur_device_exp_dditable_t, urGetDeviceExpProcAddrTable;
        }
    };
}
