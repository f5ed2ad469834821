//! Modules, which are programs that an OpenCL runtime for the CPU compiles.
//!
//! Device memory is memory of this process, so kernels work on it in place.

use std::ffi::{CStr, CString, c_char, c_void};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;
use opencl_cpu::{Code, Failure, Image, Program, Runtime};

use crate::call::{
    DEPENDENCY_UNAVAILABLE, INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_GLOBAL_NAME,
    INVALID_NATIVE_BINARY, INVALID_NULL_POINTER, INVALID_SIZE, MODULE_BUILD_FAILURE,
    MODULE_LINK_FAILURE, Result, entry, enumerate, present, read, read_all, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::space::UseCount;
use crate::switches::switches;

/// The beginning of this driver's own binaries. It keeps other binaries away from the OpenCL
/// runtime.
const NATIVE: &[u8] = b"ze_sim native 1\n";
/// The first word of a SPIR-V module.
const SPIR_V: [u8; 4] = [0x03, 0x02, 0x23, 0x07];

/// Length of a SPIR-V module's header, in words.
const MODULE_HEADER: usize = 5;
/// The first word of a `Capability` instruction, and its operand for the capability `AsmINTEL`.
const CAPABILITY: u32 = 0x2_0011;
const ASSEMBLY: u32 = 5606;

/// Prefix of Level Zero's own build flags. All of them but one concern GPUs only.
const OWN_FLAGS: &str = "-ze-";
/// The flag that also concerns the CPU, and the OpenCL runtime's flag for it.
const NO_OPTIMISATION: (&str, &str) = ("-ze-opt-disable", "-cl-opt-disable");

/// Returns whether modules can be created. Loads an OpenCL runtime only if that is the only way to
/// find out.
pub(crate) fn is_available() -> bool {
    !switches().missing("modules") && (opencl_cpu::is_at_hand() || Runtime::get().is_ok())
}

fn runtime() -> Result<&'static Runtime> {
    if switches().missing("modules") {
        return Err(DEPENDENCY_UNAVAILABLE);
    }
    Runtime::get().map_err(|_| DEPENDENCY_UNAVAILABLE)
}

pub(crate) struct Module {
    context: Arc<Context>,
    pub(crate) device: Arc<Device>,
    pub(crate) program: Arc<Program>,
    names: Vec<CString>,
    /// The addresses and sizes of the variables that the program has asked for.
    variables: Mutex<Vec<(usize, usize)>>,
    pub(crate) use_count: UseCount,
}

impl Module {
    /// Returns whether an address lies in a variable that the program has asked for.
    pub(crate) fn has_variable_at(&self, address: usize) -> bool {
        let variables = self
            .variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut variables = variables.iter();
        variables.any(|(start, len)| (*start..start + len).contains(&address))
    }
}

impl Object for Module {
    const NAME: &'static str = "module";

    fn resource(&self) -> Resource {
        Resource::Module
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

struct BuildLog {
    context: Arc<Context>,
    text: CString,
}

impl Object for BuildLog {
    const NAME: &'static str = "build log";

    fn resource(&self) -> Resource {
        Resource::BuildLog
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

/// One input of a module, as its description gives it.
struct Input<'a> {
    format: ze_module_format_t,
    bytes: &'a [u8],
    flags: String,
    constants: Vec<(u32, Vec<u8>)>,
}

impl Input<'_> {
    fn read(
        format: ze_module_format_t,
        (first, size): (*const u8, usize),
        flags: *const c_char,
        constants: *const ze_module_constants_t,
    ) -> Result<Self> {
        if first.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        if size == 0 {
            return Err(INVALID_SIZE);
        }
        // SAFETY: the contract of entry points: `size` bytes are valid during the call.
        let bytes = unsafe { slice::from_raw_parts(first, size) };
        let constants = match constants.is_null() {
            true => Vec::new(),
            false => constants_of(bytes, &read(constants)?)?,
        };
        Ok(Self {
            format,
            bytes,
            flags: flags_of(flags),
            constants,
        })
    }

    fn image(&self) -> Result<Image<'_>> {
        match self.format {
            ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV if has_assembly(self.bytes) => {
                Err(MODULE_BUILD_FAILURE)
            }
            ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV if self.bytes.starts_with(&SPIR_V) => {
                Ok(Image::SpirV(self.bytes, &self.constants))
            }
            ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV => Err(MODULE_BUILD_FAILURE),
            ze_module_format_t::ZE_MODULE_FORMAT_NATIVE => {
                let binary = self.bytes.strip_prefix(NATIVE);
                binary.map(Image::Binary).ok_or(INVALID_NATIVE_BINARY)
            }
            _ => Err(INVALID_ENUMERATION),
        }
    }
}

/// Returns whether a SPIR-V module contains assembly. It would be assembly of another device, not
/// of the CPU. The capabilities at the start of a module show it.
fn has_assembly(module: &[u8]) -> bool {
    let words = module.as_chunks::<4>().0.iter().skip(MODULE_HEADER);
    let words: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
    let mut capabilities = words
        .chunks_exact(2)
        .take_while(|word| word[0] == CAPABILITY);
    capabilities.any(|word| word[1] == ASSEMBLY)
}

/// Converts build flags to the OpenCL runtime's flags.
fn flags_of(flags: *const c_char) -> String {
    if flags.is_null() {
        return String::new();
    }
    // SAFETY: the contract of entry points: the string ends with a zero.
    let flags = unsafe { CStr::from_ptr(flags) }.to_string_lossy();
    let words = flags
        .split_ascii_whitespace()
        .filter_map(|word| match word {
            word if word == NO_OPTIMISATION.0 => Some(NO_OPTIMISATION.1),
            word if word.starts_with(OWN_FLAGS) => None,
            word => Some(word),
        });
    words.collect::<Vec<_>>().join(" ")
}

/// Reads the values of specialization constants. The module defines their sizes.
fn constants_of(module: &[u8], given: &ze_module_constants_t) -> Result<Vec<(u32, Vec<u8>)>> {
    let numbers = read_all(given.pConstantIds, given.numConstants)?;
    let places = read_all(given.pConstantValues.cast_const(), given.numConstants)?;
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    if !module.starts_with(&SPIR_V) {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the contract of entry points: a module is valid.
    let sizes = unsafe { opencl_cpu::constant_sizes(runtime()?, module, &numbers) };
    let sizes = sizes.map_err(|failure| refused(&failure))?;
    let values = numbers.into_iter().zip(places).zip(sizes);
    let value = |((number, place), size): ((u32, *const c_void), usize)| {
        let value = read_all(place.cast::<u8>(), size as u32)?;
        Ok((number, value.to_vec()))
    };
    values.map(value).collect()
}

/// Converts a refusal of the OpenCL runtime to a result code.
fn refused(failure: &Failure) -> ze_result_t {
    match failure.operation {
        "clSetProgramSpecializationConstant" => INVALID_ARGUMENT,
        "clCreateProgramWithBinary" => INVALID_NATIVE_BINARY,
        "clLinkProgram" => MODULE_LINK_FAILURE,
        _ => MODULE_BUILD_FAILURE,
    }
}

/// Reads all inputs of a module: a single one, or those of the program that is chained to the
/// description.
fn inputs(desc: &ze_module_desc_t) -> Result<Vec<Input<'_>>> {
    let mut next = desc.pNext.cast::<ze_base_desc_t>();
    while !next.is_null() {
        let base = read(next)?;
        if base.stype == ze_structure_type_t::ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC
            && !is_program_missing()
        {
            return inputs_of_program(desc, &read(next.cast())?);
        }
        next = base.pNext.cast();
    }
    let bytes = (desc.pInputModule, desc.inputSize);
    let input = Input::read(desc.format, bytes, desc.pBuildFlags, desc.pConstants)?;
    Ok(vec![input])
}

fn is_program_missing() -> bool {
    let name = ZE_MODULE_PROGRAM_EXP_NAME.to_str().unwrap_or_default();
    switches().missing(name)
}

fn inputs_of_program<'a>(
    desc: &ze_module_desc_t,
    program: &ze_module_program_exp_desc_t,
) -> Result<Vec<Input<'a>>> {
    if desc.format != ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV || program.count == 0 {
        return Err(INVALID_ARGUMENT);
    }
    let count = program.count;
    let sizes = read_all(program.inputSizes, count)?;
    let modules = read_all(program.pInputModules.cast_const(), count)?;
    let optional = |list: *const *const c_void| match list.is_null() {
        true => Ok((0..count).map(|_| std::ptr::null()).collect()),
        false => read_all(list, count),
    };
    let flags = optional(program.pBuildFlags.cast_const().cast())?;
    let constants = optional(program.pConstants.cast_const().cast())?;
    let one = |index: usize| {
        let bytes = (modules[index], sizes[index]);
        let (flags, constants) = (flags[index].cast(), constants[index].cast());
        Input::read(desc.format, bytes, flags, constants)
    };
    (0..count as usize).map(one).collect()
}

/// Builds a program, and stores the compiler's output in `log`.
fn build(desc: &ze_module_desc_t, log: &mut String) -> Result<Program> {
    let runtime = runtime()?;
    let inputs = inputs(desc)?;
    let code = |input| {
        let input: &Input<'_> = input;
        let options = &*input.flags;
        Ok(Code {
            image: input.image()?,
            options,
        })
    };
    let codes = inputs.iter().map(code).collect::<Result<Vec<_>>>()?;
    // SAFETY: the contract of entry points guarantees a valid module, and native binaries are this
    // driver's.
    let program = unsafe { Program::build(&runtime.device(), &codes, "") }.map_err(|failure| {
        *log = failure.log.clone();
        refused(&failure)
    })?;
    *log = program.log().to_owned();
    Ok(program)
}

fn put_log(
    context: &Arc<Context>,
    text: String,
    place: *mut ze_module_build_log_handle_t,
) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let context = Arc::clone(context);
    write(
        place,
        handles::create(Arc::new(BuildLog { context, text }))?,
    )
}

/// Returns bytes in the usual two steps: first the size, then the bytes.
fn give(bytes: &[u8], size: *mut usize, to: *mut u8) -> Result<()> {
    let room = read(size)?;
    if !to.is_null() {
        if room < bytes.len() {
            return Err(INVALID_SIZE);
        }
        // SAFETY: the contract of entry points: the buffer has room for that many bytes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    write(size, bytes.len())
}

entry! {
    fn zeModuleCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_module_desc_t,
        module: *mut ze_module_handle_t,
        log: *mut ze_module_build_log_handle_t,
    ) {
        let (context, device) = pair(context, device)?;
        let desc = read(desc)?;
        present(module)?;
        let mut text = String::new();
        let program = build(&desc, &mut text);
        put_log(&context, text, log)?;
        let program = Arc::new(program?);
        let names = program.kernel_names().map_err(|failure| refused(&failure))?;
        let names = names.into_iter().filter_map(|name| CString::new(name).ok());
        write(module, handles::create(Arc::new(Module {
            context,
            device,
            program,
            names: names.collect(),
            variables: Mutex::default(),
            use_count: UseCount::default(),
        }))?)
    }

    fn zeModuleDestroy(module: ze_module_handle_t) {
        let module = handles::take::<Module, _>(module, |_| Ok(()))?;
        if module.use_count.is_used() {
            misuse(Check::DestroyInUse, "the module still has kernels");
        }
        Ok(())
    }

    fn zeModuleGetNativeBinary(module: ze_module_handle_t, size: *mut usize, to: *mut u8) {
        let module = handles::get::<Module, _>(module)?;
        let binary = module.program.binary().map_err(|failure| refused(&failure))?;
        give(&[NATIVE, &binary].concat(), size, to)
    }

    fn zeModuleGetGlobalPointer(
        module: ze_module_handle_t,
        name: *const c_char,
        size: *mut usize,
        address: *mut *mut c_void,
    ) {
        let module = handles::get::<Module, _>(module)?;
        if name.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        // SAFETY: the contract of entry points: the string ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        let (start, len) = module.program.variable(name).ok_or(INVALID_GLOBAL_NAME)?;
        let mut variables = module.variables.lock().unwrap_or_else(PoisonError::into_inner);
        let variable = (start.expose_provenance(), len);
        if !variables.contains(&variable) {
            variables.push(variable);
        }
        if !size.is_null() {
            write(size, len)?;
        }
        match address.is_null() {
            true => Ok(()),
            false => write(address, start.cast()),
        }
    }

    fn zeModuleGetKernelNames(
        module: ze_module_handle_t,
        count: *mut u32,
        names: *mut *const c_char,
    ) {
        let module = handles::get::<Module, _>(module)?;
        let all: Vec<_> = module.names.iter().map(|name| name.as_ptr()).collect();
        enumerate(&all, count, names)
    }

    fn zeModuleBuildLogDestroy(log: ze_module_build_log_handle_t) {
        handles::take::<BuildLog, _>(log, |_| Ok(())).map(drop)
    }

    fn zeModuleBuildLogGetString(
        log: ze_module_build_log_handle_t,
        size: *mut usize,
        to: *mut c_char,
    ) {
        let log = handles::get::<BuildLog, _>(log)?;
        give(log.text.as_bytes_with_nul(), size, to.cast())
    }
}
