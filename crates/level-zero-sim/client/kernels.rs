//! Modules, kernels and launches.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use level_zero_sys::*;

use crate::basics::extensions;
use crate::session::{INVALID_ARGUMENT, LONG, NO_EVENT, SUCCESS, Session, description, ok, ze};

/// The kernels of the conformance suite.
const SPIR_V: &[u8] = include_bytes!("../../conformance/kernels/kernels.spv");
const COUNT: usize = 512;

type Made = Result<(ze_module_handle_t, String), (ze_result_t, String)>;

/// Returns whether the driver compiles modules.
fn compiles(session: &Session) -> bool {
    let mut properties = description!(
        ze_device_module_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES
    );
    ok!(session.zeDeviceGetModuleProperties(session.device, &mut properties));
    if properties.spirvVersionSupported == 0 {
        println!("not tested: there is no OpenCL runtime for the CPU");
    }
    properties.spirvVersionSupported != 0
}

fn desc(format: ze_module_format_t, bytes: &[u8]) -> ze_module_desc_t {
    let mut desc = description!(ze_module_desc_t, ZE_STRUCTURE_TYPE_MODULE_DESC);
    desc.format = format;
    desc.inputSize = bytes.len();
    desc.pInputModule = bytes.as_ptr();
    desc
}

fn spirv() -> ze_module_desc_t {
    desc(ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV, SPIR_V)
}

/// Creates a module, and returns the build log with it.
fn make(session: &Session, desc: &ze_module_desc_t) -> Made {
    let (mut module, mut log) = (ptr::null_mut(), ptr::null_mut());
    let (context, device) = (session.context, session.device);
    let code = ze!(session.zeModuleCreate(context, device, desc, &mut module, &mut log));
    let mut text = Vec::new();
    if !log.is_null() {
        let mut size = 0;
        ok!(session.zeModuleBuildLogGetString(log, &mut size, ptr::null_mut()));
        text.resize(size, 0);
        ok!(session.zeModuleBuildLogGetString(log, &mut size, text.as_mut_ptr().cast::<c_char>()));
        ok!(session.zeModuleBuildLogDestroy(log));
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    match code {
        SUCCESS => Ok((module, text)),
        code => Err((code, text)),
    }
}

fn kernel(session: &Session, module: ze_module_handle_t, name: &CStr) -> ze_kernel_handle_t {
    let mut desc = description!(ze_kernel_desc_t, ZE_STRUCTURE_TYPE_KERNEL_DESC);
    desc.pKernelName = name.as_ptr();
    let mut kernel = ptr::null_mut();
    ok!(session.zeKernelCreate(module, &desc, &mut kernel));
    kernel
}

/// Sets an argument of a kernel, and returns the result code.
fn set<T>(session: &Session, kernel: ze_kernel_handle_t, index: u32, value: &T) -> ze_result_t {
    let value = ptr::from_ref(value).cast::<c_void>();
    ze!(session.zeKernelSetArgumentValue(kernel, index, size_of::<T>(), value))
}

fn groups(count: u32) -> ze_group_count_t {
    ze_group_count_t {
        groupCountX: count,
        groupCountY: 1,
        groupCountZ: 1,
    }
}

fn launch(
    session: &Session,
    list: ze_command_list_handle_t,
    kernel: ze_kernel_handle_t,
    count: u32,
) -> ze_result_t {
    let count = groups(count);
    ze!(session.zeCommandListAppendLaunchKernel(list, kernel, &count, NO_EVENT, 0, ptr::null_mut()))
}

fn words(session: &Session, memory: *mut c_void) -> Vec<u32> {
    let bytes = session.read(memory, 4 * COUNT);
    let words = bytes.as_chunks().0.iter();
    words.map(|word| u32::from_ne_bytes(*word)).collect()
}

pub(crate) fn run(session: &Session) {
    if !compiles(session) {
        return;
    }
    let (module, _) = make(session, &spirv()).unwrap();
    let mut count = 0;
    ok!(session.zeModuleGetKernelNames(module, &mut count, ptr::null_mut()));
    assert_eq!(count, 4);
    let memory = session.alloc(4 * COUNT);
    let (fill, scale) = (
        kernel(session, module, c"fill"),
        kernel(session, module, c"scale"),
    );
    for kernel in [fill, scale] {
        assert_eq!(set(session, kernel, 0, &memory), SUCCESS);
        assert_eq!(set(session, kernel, 1, &7_u32), SUCCESS);
        assert_eq!(set(session, kernel, 2, &(COUNT as u32)), SUCCESS);
        ok!(session.zeKernelSetGroupSize(kernel, 128, 1, 1));
    }
    let list = session.synchronous();
    assert_eq!(launch(session, list, fill, 4), SUCCESS);
    // The earlier launch keeps the arguments that were set before it.
    assert_eq!(set(session, fill, 1, &1_u32), SUCCESS);
    assert_eq!(launch(session, list, scale, 4), SUCCESS);
    assert!(words(session, memory).iter().all(|word| *word == 3 * 7 + 7));

    offsets_and_local_memory(session, module, memory);
    variables(session, module, memory, scale);
    constants_programs_and_binaries(session, module, memory);

    // A regular list keeps earlier arguments as well.
    let list_desc = description!(ze_command_list_desc_t, ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC);
    let mut regular = ptr::null_mut();
    let (context, device) = (session.context, session.device);
    ok!(session.zeCommandListCreate(context, device, &list_desc, &mut regular));
    assert_eq!(set(session, fill, 1, &50_u32), SUCCESS);
    assert_eq!(launch(session, regular, fill, 4), SUCCESS);
    assert_eq!(set(session, fill, 1, &1_u32), SUCCESS);
    ok!(session.zeCommandListClose(regular));
    let queue_desc = description!(
        ze_command_queue_desc_t,
        ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
    );
    let mut queue = ptr::null_mut();
    ok!(session.zeCommandQueueCreate(context, device, &queue_desc, &mut queue));
    for _ in 0..2 {
        ok!(session.zeCommandQueueExecuteCommandLists(queue, 1, &mut regular, ptr::null_mut()));
    }
    ok!(session.zeCommandQueueSynchronize(queue, LONG));
    assert!(words(session, memory).iter().all(|word| *word == 50));
    ok!(session.zeCommandQueueDestroy(queue));
    ok!(session.zeCommandListDestroy(regular));

    ok!(session.zeCommandListDestroy(list));
    for kernel in [fill, scale] {
        ok!(session.zeKernelDestroy(kernel));
    }
    ok!(session.zeModuleDestroy(module));
    session.free(memory);
}

fn offsets_and_local_memory(session: &Session, module: ze_module_handle_t, memory: *mut c_void) {
    let list = session.synchronous();
    let number = kernel(session, module, c"number");
    assert_eq!(set(session, number, 0, &memory), SUCCESS);
    let mut size = [0; 3];
    let [x, y, z] = &mut size;
    ok!(session.zeKernelSuggestGroupSize(number, COUNT as u32, 1, 1, x, y, z));
    assert_eq!(COUNT as u32 % size[0], 0);
    ok!(session.zeKernelSetGroupSize(number, size[0], size[1], size[2]));
    let offset = session.loader.zeKernelSetGlobalOffsetExp.expect("offsets");
    // SAFETY: a kernel.
    assert_eq!(unsafe { offset(number, 1000, 0, 0) }, SUCCESS);
    assert_eq!(
        launch(session, list, number, COUNT as u32 / size[0]),
        SUCCESS
    );
    assert!(
        words(session, memory)
            .into_iter()
            .eq(1000..1000 + COUNT as u32)
    );

    let reverse = kernel(session, module, c"reverse");
    assert_eq!(set(session, reverse, 0, &memory), SUCCESS);
    ok!(session.zeKernelSetArgumentValue(reverse, 1, 4 * COUNT, ptr::null()));
    ok!(session.zeKernelSetGroupSize(reverse, COUNT as u32, 1, 1));
    let one = groups(1);
    let no = ptr::null_mut();
    // A cooperative launch of a single group succeeds.
    ok!(session.zeCommandListAppendLaunchCooperativeKernel(list, reverse, &one, NO_EVENT, 0, no));
    assert!(
        words(session, memory)
            .into_iter()
            .rev()
            .eq(1000..1000 + COUNT as u32)
    );
    for kernel in [number, reverse] {
        ok!(session.zeKernelDestroy(kernel));
    }
    ok!(session.zeCommandListDestroy(list));
}

fn variables(
    session: &Session,
    module: ze_module_handle_t,
    memory: *mut c_void,
    scale: ze_kernel_handle_t,
) {
    let list = session.synchronous();
    let (mut size, mut factor) = (0, ptr::null_mut());
    ok!(session.zeModuleGetGlobalPointer(module, c"factor".as_ptr(), &mut size, &mut factor));
    assert_eq!(size, 4);
    // Kernels and copies accept the address of the variable.
    assert_eq!(set(session, scale, 0, &factor), SUCCESS);
    assert_eq!(set(session, scale, 2, &1_u32), SUCCESS);
    assert_eq!(launch(session, list, scale, 1), SUCCESS);
    let no = ptr::null_mut();
    ok!(session.zeCommandListAppendMemoryCopy(list, memory, factor, 4, NO_EVENT, 0, no));
    assert_eq!(words(session, memory)[0], 3 * 3 + 7);
    ok!(session.zeCommandListDestroy(list));
}

fn constants_programs_and_binaries(
    session: &Session,
    module: ze_module_handle_t,
    memory: *mut c_void,
) {
    let (number, value) = (0_u32, 10_u32);
    let mut values = [ptr::from_ref(&value).cast::<c_void>()];
    let constants = ze_module_constants_t {
        numConstants: 1,
        pConstantIds: &number,
        pConstantValues: values.as_mut_ptr(),
    };
    let mut specialized = spirv();
    specialized.pConstants = &constants;
    let (by_desc, _) = make(session, &specialized).unwrap();

    // Builds the same module through the extension for programs of several modules.
    let (sizes, mut modules) = ([SPIR_V.len()], [SPIR_V.as_ptr()]);
    let flags = CString::new("-ze-opt-disable").unwrap();
    let (mut flags, mut all) = ([flags.as_ptr()], [ptr::from_ref(&constants)]);
    let mut program = description!(
        ze_module_program_exp_desc_t,
        ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC
    );
    program.count = 1;
    program.inputSizes = sizes.as_ptr();
    program.pInputModules = modules.as_mut_ptr();
    program.pBuildFlags = flags.as_mut_ptr();
    program.pConstants = all.as_mut_ptr();
    let mut chained = description!(ze_module_desc_t, ZE_STRUCTURE_TYPE_MODULE_DESC);
    chained.pNext = (&raw const program).cast();
    let (by_program, _) = make(session, &chained).unwrap();

    let mut size = 0;
    ok!(session.zeModuleGetNativeBinary(module, &mut size, ptr::null_mut()));
    let mut binary = vec![0; size];
    ok!(session.zeModuleGetNativeBinary(module, &mut size, binary.as_mut_ptr()));
    let native = desc(ze_module_format_t::ZE_MODULE_FORMAT_NATIVE, &binary);
    let (by_binary, _) = make(session, &native).unwrap();

    for (module, factor) in [(by_desc, 30), (by_program, 30), (by_binary, 3)] {
        session.fill(memory, 0, 4 * COUNT);
        session.fill(memory, 1, 1);
        let list = session.synchronous();
        let scale = kernel(session, module, c"scale");
        assert_eq!(set(session, scale, 0, &memory), SUCCESS);
        assert_eq!(set(session, scale, 1, &2_u32), SUCCESS);
        assert_eq!(set(session, scale, 2, &2_u32), SUCCESS);
        ok!(session.zeKernelSetGroupSize(scale, 2, 1, 1));
        assert_eq!(launch(session, list, scale, 1), SUCCESS);
        assert_eq!(words(session, memory)[..3], [factor + 2, 2, 0]);
        ok!(session.zeCommandListDestroy(list));
        ok!(session.zeKernelDestroy(scale));
        ok!(session.zeModuleDestroy(module));
    }
}

pub(crate) fn refusals(session: &Session) {
    if !compiles(session) {
        return;
    }
    let code = |desc: &ze_module_desc_t| make(session, desc).unwrap_err().0;
    let native = ze_module_format_t::ZE_MODULE_FORMAT_NATIVE;
    let wrong = ze_result_t::ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    assert_eq!(code(&desc(native, b"no binary of this driver")), wrong);
    let wrong = ze_result_t::ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
    let text = b"kernel void f() {}";
    assert_eq!(
        code(&desc(ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV, text)),
        wrong
    );
    let mut flagged = spirv();
    flagged.pBuildFlags = c"-no-such-flag-of-any-compiler".as_ptr();
    assert_eq!(code(&flagged), wrong);
    let (unknown, value) = (99_u32, 0_u64);
    let mut values = [ptr::from_ref(&value).cast::<c_void>()];
    let constants = ze_module_constants_t {
        numConstants: 1,
        pConstantIds: &unknown,
        pConstantValues: values.as_mut_ptr(),
    };
    let mut specialized = spirv();
    specialized.pConstants = &constants;
    assert_eq!(code(&specialized), INVALID_ARGUMENT);

    let (module, _) = make(session, &spirv()).unwrap();
    let mut nothing = description!(ze_kernel_desc_t, ZE_STRUCTURE_TYPE_KERNEL_DESC);
    nothing.pKernelName = c"nothing".as_ptr();
    let mut none = ptr::null_mut();
    let answer = ze!(session.zeKernelCreate(module, &nothing, &mut none));
    assert_eq!(answer, ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_NAME);
    let (name, no) = (c"nothing".as_ptr(), ptr::null_mut());
    let answer = ze!(session.zeModuleGetGlobalPointer(module, name, ptr::null_mut(), no));
    assert_eq!(answer, ze_result_t::ZE_RESULT_ERROR_INVALID_GLOBAL_NAME);

    let fill = kernel(session, module, c"fill");
    let memory = session.alloc(4 * COUNT);
    let list = session.synchronous();
    let size = ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
    let index = ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
    assert_eq!(set(session, fill, 3, &0_u32), index);
    assert_eq!(set(session, fill, 1, &0_u64), size);
    assert_eq!(set(session, fill, 0, &0_u32), size);
    let (most, zeros) = (usize::MAX, ptr::null());
    let answer = ze!(session.zeKernelSetArgumentValue(fill, 1, most, zeros));
    assert_eq!(answer, size);
    // An address that does not belong to the driver's memory.
    let own = 0_u32;
    assert_eq!(
        set(session, fill, 0, &ptr::from_ref(&own)),
        INVALID_ARGUMENT
    );
    assert_eq!(set(session, fill, 0, &memory), SUCCESS);
    assert_eq!(set(session, fill, 1, &0_u32), SUCCESS);
    ok!(session.zeKernelSetGroupSize(fill, 64, 1, 1));
    // The launch fails because an argument is missing.
    assert_eq!(launch(session, list, fill, 1), INVALID_ARGUMENT);
    // A null pointer stands for a value of zeros.
    ok!(session.zeKernelSetArgumentValue(fill, 2, 4, ptr::null()));
    assert_eq!(launch(session, list, fill, 1), SUCCESS);
    let dimension = ze_result_t::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION;
    assert_eq!(
        ze!(session.zeKernelSetGroupSize(fill, 1025, 1, 1)),
        dimension
    );
    assert_eq!(
        ze!(session.zeKernelSetGroupSize(fill, 0, 1, 1)),
        INVALID_ARGUMENT
    );
    let two = groups(2);
    let (count, no) = (0, ptr::null_mut());
    let answer =
        ze!(session
            .zeCommandListAppendLaunchCooperativeKernel(list, fill, &two, NO_EVENT, count, no));
    assert_eq!(answer, INVALID_ARGUMENT);
    ok!(session.zeCommandListDestroy(list));
    ok!(session.zeKernelDestroy(fill));
    ok!(session.zeModuleDestroy(module));
    session.free(memory);
}

pub(crate) fn none(session: &Session) {
    assert!(!compiles(session));
    let unavailable = ze_result_t::ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE;
    assert_eq!(make(session, &spirv()).unwrap_err().0, unavailable);
    assert!(extensions(session).contains(&"ZE_experimental_module_program".to_owned()));
}
