//! Tests of the queries of the installed runtime. The tests of the host backend and of the
//! simulated Level Zero driver run kernels and use images.

use opencl_cpu::{Argument, Code, Image, Parameter, Program, Runtime};
use std::ffi::CStr;
use std::sync::Arc;

const SOURCE: &str = "
    kernel void fill(global uint *to, uint value, uint count) {
        size_t i = get_global_id(0);
        if (i < count)
            to[i] = value;
    }
    kernel void reverse(global uint *data, local uint *part) {
        size_t i = get_local_id(0), n = get_local_size(0);
        part[i] = data[get_global_id(0)];
        barrier(CLK_LOCAL_MEM_FENCE);
        data[get_global_id(0)] = part[n - 1 - i];
    }
";

fn runtime() -> &'static Runtime {
    Runtime::get().unwrap_or_else(|reason| panic!("{reason}"))
}

fn build(runtime: &'static Runtime, source: &str) -> Result<Arc<Program>, opencl_cpu::Failure> {
    let code = Code {
        image: Image::Source(source),
        options: "",
    };
    // SAFETY: the code is source, and no binary.
    unsafe { Program::build(&runtime.device(), &[code], "") }.map(Arc::new)
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn refusals_say_why() {
    let runtime = runtime();
    let refused = build(runtime, "kernel void wrong(").err().unwrap();
    assert!(!refused.log.is_empty(), "{refused}");
    let program = build(runtime, SOURCE).unwrap();
    let mut names = program.kernel_names().unwrap();
    names.sort();
    assert_eq!(names, ["fill", "reverse"]);
    assert!(program.kernel(c"nothing").err().unwrap().is_unknown_name());
    let fill = program.kernel(c"fill").unwrap();
    assert_eq!((fill.info().parameters, &*fill.info().name), (3, "fill"));
    let short = [
        Argument::Address(0),
        Argument::Value(&[1]),
        Argument::Value(&[1; 4]),
    ];
    let (index, failure) = fill.check_arguments(short.into_iter()).unwrap_err();
    assert!(
        index == 1 && failure.is_wrong_argument(),
        "{index} {failure}"
    );
    let few = [Argument::Address(0)];
    assert_eq!(fill.check_arguments(few.into_iter()).unwrap_err().0, 1);
    let right = [
        Argument::Address(0),
        Argument::Value(&[1; 4]),
        Argument::Value(&[1; 4]),
    ];
    fill.check_arguments(right.into_iter()).unwrap();
}

#[test]
#[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]
fn parameters_and_constants_are_found_by_trying() {
    let runtime = runtime();
    let program = build(runtime, SOURCE).unwrap();
    let kinds = |kernel: &CStr| {
        let kernel = program.kernel(kernel).unwrap();
        let all = (0..=kernel.info().parameters).map(|index| kernel.parameter(index));
        all.collect::<Vec<_>>()
    };
    let (value, address) = (Some(Parameter::Value), Some(Parameter::Address));
    assert_eq!(kinds(c"fill"), [address, value, value, None]);
    assert_eq!(kinds(c"reverse"), [address, Some(Parameter::Local), None]);
    let fill = program.kernel(c"fill").unwrap();
    fill.check_argument(1, Argument::Value(&[0; 4])).unwrap();
    for wrong in [
        Argument::Value(&[0; 3]),
        Argument::Address(0),
        Argument::Local(4),
    ] {
        assert!(
            fill.check_argument(1, wrong)
                .unwrap_err()
                .is_wrong_argument()
        );
    }
    let module = include_bytes!("../../conformance/kernels/kernels.spv");
    // SAFETY: the module passed the assembler's validator.
    let sizes = |numbers: &[u32]| unsafe { opencl_cpu::constant_sizes(runtime, module, numbers) };
    assert_eq!(sizes(&[0]), Ok(vec![4]));
    assert!(sizes(&[0, 1]).is_err());
}
