//! Tests of the contents of programs: variables, kernels and images.

use super::*;
use crosshandle::kernel::Program;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn variables_are_memory() {
    let fixture = fixture();
    let factor = fixture.program.variable("factor").unwrap();
    assert_eq!(factor.len(), 4);
    fixture
        .queue
        .submit(Command::fill(factor, &10_u32.to_ne_bytes()).unwrap())
        .unwrap();
    let memory = fixture.memory(&[4; COUNT]);
    let arguments = KernelArguments::new()
        .with(&memory.all())
        .value(2_u32)
        .value(COUNT as u32);
    let shape = LaunchShape::covering(COUNT, 128).unwrap();
    fixture
        .queue
        .submit(launch(&fixture.kernel("scale"), shape, arguments))
        .unwrap();
    assert_eq!(fixture.read(&memory), vec![42; COUNT]);
    for name in ["fill", "no", "", "a\0b"] {
        let missing = fixture.program.variable(name);
        assert!(
            matches!(missing, Err(Error::NoSymbol(_))),
            "{name:?}: {missing:?}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_say_what_they_need() {
    let fixture = fixture();
    let kernel = fixture.kernel("saxpy");
    let properties = kernel.properties();
    eprintln!("{properties:?}");
    eprintln!("{:?}", fixture.context.device().kernels());
    assert_eq!(kernel.name(), "saxpy");
    assert!((1..=1024).contains(&properties.block_threads) && properties.registers > 0);
    if let Some(parameters) = &properties.parameters {
        let sizes: Vec<_> = parameters.iter().map(|it| (it.offset, it.size)).collect();
        assert_eq!(sizes, [(0, 8), (8, 8), (16, 4), (20, 4)]);
    }
    let block = kernel.suggested_block(0).unwrap();
    assert!(block >= 32 && block <= properties.block_threads, "{block}");
    assert!(kernel.concurrent_blocks(block, 0).unwrap() > 0);
    for name in ["factor", "Saxpy", "", "saxpy\0"] {
        let missing = fixture.program.kernel(name);
        assert!(
            matches!(missing, Err(Error::NoSymbol(_))),
            "{name:?}: {missing:?}"
        );
    }
    assert_ne!(fixture.program.native().raw(), 0);
    // SAFETY: the program stays loaded as long as the fixture exists.
    let adopted = unsafe {
        Program::adopt(
            &fixture.context,
            fixture.program.native(),
            Ownership::Borrowed,
        )
    };
    assert!(adopted.unwrap().kernel("fill").is_ok());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_no_program_is_refused_with_the_compilers_words() {
    let fixture = fixture();
    let load = |text: &str| Program::new(&fixture.context, ProgramImage::text(text));
    let broken = IMAGE.replace("st.global.u32 [%d2], %r5;", "st.nowhere [%d2], %r5;");
    match load(&broken) {
        Err(Error::Program { log, name, .. }) => {
            eprintln!("{name}: {log}");
            assert!(log.contains("line") || log.contains("nowhere"), "{log}");
        }
        other => panic!("{other:?}"),
    }
    let refused = load("hello");
    assert!(matches!(refused, Err(Error::Program { .. })), "{refused:?}");
    let unknown = load(&IMAGE.replace("sm_70", "sm_999"));
    assert!(matches!(unknown, Err(Error::Program { .. })), "{unknown:?}");
    for bytes in [&b"hello"[..], b"\x7FELF", b""] {
        // SAFETY: the image is refused before the driver gets it.
        let image = unsafe { ProgramImage::binary(bytes) };
        let refused = Program::new(&fixture.context, image);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    }
    assert!(Program::with_options(&fixture.context, &[], &ProgramOptions::new()).is_err());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn programs_are_linked_from_several_images() {
    let fixture = fixture();
    let head = ".version 7.0\n.target sm_70\n.address_size 64\n";
    let callee = format!(
        "{head}.visible .func (.param .u32 out) twice(.param .u32 in)\n{{ .reg .b32 %r<2>; \
         ld.param.u32 %r0, [in]; add.u32 %r1, %r0, %r0; st.param.u32 [out], %r1; ret; }}\n"
    );
    let caller = format!(
        "{head}.extern .func (.param .u32 out) twice(.param .u32 in);\n\
         .visible .entry call(.param .u64 to)\n{{ .reg .b32 %r<2>; .reg .b64 %d<2>; \
         mov.u32 %r0, %tid.x; {{ .param .u32 a; .param .u32 b; st.param.u32 [a], %r0; \
         call.uni (b), twice, (a); ld.param.u32 %r1, [b]; }} ld.param.u64 %d0, [to]; \
         cvta.to.global.u64 %d0, %d0; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1; \
         st.global.u32 [%d0], %r1; ret; }}\n"
    );
    let images = [ProgramImage::text(&caller), ProgramImage::text(&callee)];
    let options = ProgramOptions::new().max_registers(32);
    let program = Program::with_options(&fixture.context, &images, &options).unwrap();
    let memory = fixture.memory(&[0; 32]);
    let arguments = KernelArguments::new().with(&memory.all());
    let shape = LaunchShape::new([1; 3], [32, 1, 1]);
    fixture
        .queue
        .submit(launch(&program.kernel("call").unwrap(), shape, arguments))
        .unwrap();
    let wanted: Vec<u32> = (0..32).map(|number| 2 * number).collect();
    assert_eq!(fixture.read(&memory), wanted);
    let alone = Program::with_options(&fixture.context, &images[..1], &options);
    assert!(matches!(alone, Err(Error::Program { .. })), "{alone:?}");
}
