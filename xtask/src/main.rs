//! The project's own tasks, which run as `cargo xtask <task>`.
//!
//! | task | does |
//! |---|---|
//! | `test` | runs every check, with the test runner last |
//! | `style` | checks the English, the paths in pages, and the rules that Clippy cannot check |
//! | `bench` | runs the benchmarks, each compared with the raw technique |
//! | `figures` | writes the tables and plots of pages from the results in `benches/results` |
//! | `fuzz` | runs one fuzz target, on the stable toolchain |
//! | `soak` | kills and stops processes at random moments during attacks, for some minutes |
//! | `planted` | puts fixed bugs back, one at a time, and prints what finds each |
//! | `dpnp-tests` | runs a sample of dpnp's own tests over the host's Unified Runtime adapter |
//! | `engine-tests` | runs the Python package with real vLLM, Ray, transformers, SGLang and LMCache |
//! | `bindings` | generates the declarations of C interfaces from the stock headers, and `crosshandle.h` |
//! | `c-install` | installs the library, the headers, and the pkg-config and CMake files for C and C++ |
//! | `wheel` | builds the Python wheel, with the command and the adapters, in `target/wheels` |
//! | `release` | builds the files of a release twice, compares them, and installs each of them |
//! | `site` | builds the site from the pages, with a search and the Rust API, in `target/site` |
//! | `gpu-pack` | packs everything that a machine with GPUs needs into `target/gpu` |

mod bench;
mod bindings;
mod c_install;
mod clients;
mod debian;
mod dpnp;
mod engines;
mod figures;
mod fuzz;
mod gpu;
mod needs;
mod packages;
mod planted;
mod process;
mod progress;
mod python;
mod recordings;
mod release;
mod site;
mod soak;
mod step;
mod style;
mod supply_chain;
mod test;
mod tools;
mod ucx;
mod wheel;
mod workspace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// A result whose error is a text for the user of the task.
type Result<T, E = String> = std::result::Result<T, E>;

/// The project's own tasks.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check: format, structure, lints, docs, licences, examples, doc tests, fuzzing,
    /// tests.
    Test {
        /// Run only the format, the style, the lints, and the unit tests and conformance tests of
        /// the host device. Downloads nothing but crates.
        #[arg(long)]
        quick: bool,
    },
    /// Check the English of comments and pages, the paths, terms and tests that pages name, the
    /// graph of the crates, and the sizes of allocations in parsers.
    Style,
    /// Run the benchmarks: `bench host [--json] [--check] [--quick]`; `bench kernels`,
    /// `bench host --record RUNS [--only NAME]` runs several times and keeps the results;
    /// `bench cuda`, `bench ur`, `bench peers`, `bench python host|gpu|loader|stages`.
    Bench {
        /// Arguments for the benchmark program, which `host --help` lists.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Write the tables and plots of results in the pages again, from the files in
    /// `benches/results`.
    Figures,
    /// Run a fuzz target, or list the targets if none is named.
    Fuzz {
        /// The name of a file in `fuzz/fuzz_targets`, without `.rs`.
        target: Option<String>,
        /// Duration of the search for new inputs, in seconds.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Run only this input, to reproduce a crash.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "seconds",
            requires = "target"
        )]
        input: Option<PathBuf>,
    },
    /// Kill and stop processes at random moments during attacks, and check that nothing breaks or
    /// grows.
    Soak {
        /// Duration of the soak, in minutes.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
        minutes: u64,
        /// Device of all contexts.
        #[arg(long, default_value = "host")]
        device: String,
    },
    /// Put fixed bugs back, one at a time, and print what finds each bug and how soon.
    Planted {
        /// Run only bugs whose names contain this text.
        #[arg(default_value = "")]
        filter: String,
    },
    /// Run a sample of dpnp's own tests over the host's Unified Runtime adapter.
    DpnpTests {
        /// Run one test in this many (1 runs all).
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        every: u32,
        /// Run the tests over the stock OpenCL adapter instead, for comparison.
        #[arg(long)]
        stock: bool,
    },
    /// Run the Python package's tests with real engines. The first run installs about 8 GB.
    EngineTests {
        /// Run only tests whose names match this expression of pytest's `-k`.
        filter: Option<String>,
    },
    /// Generate the declarations in `crates/*-sys` and the header of the C interface again.
    Bindings {
        /// Change nothing, and compare the committed files with the generated ones.
        #[arg(long)]
        check: bool,
        /// Generate only `crosshandle.h`, which needs no stock headers.
        #[arg(long)]
        c_header: bool,
    },
    /// Build and install `libcrosshandle`, its headers, and its pkg-config and CMake files.
    CInstall {
        /// The directory in which programs will find the files.
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
        /// A directory in front of the prefix, into which the files are copied.
        #[arg(long)]
        destdir: Option<PathBuf>,
        /// Build without optimisation.
        #[arg(long)]
        debug: bool,
    },
    /// Build the Python wheel in `target/wheels`: the module, the command and the adapters.
    Wheel {
        /// Build the wheel without optimisation, and run its tests.
        #[arg(long)]
        test: bool,
        /// Build the wheel for aarch64, which zig links. This machine cannot run it.
        #[arg(long, conflicts_with = "test")]
        aarch64: bool,
    },
    /// Build the files of a release twice in `target/dist`, compare them, and install each of them.
    Release {
        /// Build even if the checkout is not ready for a release.
        #[arg(long)]
        rehearsal: bool,
        /// Only set the version of the next release, such as 0.2.0, in all files that name it, and
        /// date the list of changes.
        #[arg(long, value_name = "VERSION", conflicts_with = "rehearsal")]
        prepare: Option<String>,
    },
    /// Build the site in `target/site`: the pages with a search, and the documentation of Rust.
    Site {
        /// Open each page in headless Chromium, at the widths of a phone and a desktop and in both
        /// themes. Check its layout, its links and the search, and leave screenshots.
        #[arg(long)]
        check: bool,
    },
    /// Run the command, and draw its output as the pictures `docs/pictures/terminal-*.svg`.
    Recordings,
    /// Pack the programs that test GPUs into `target/gpu`, for a machine without Rust.
    GpuPack,
}

fn main() -> ExitCode {
    soak::compile_if_asked();
    let task = Cli::parse().task;
    let outcome = Workspace::find().and_then(|workspace| match task {
        Task::Test { quick: false } => test::run(&workspace),
        Task::Test { quick: true } => test::run_quick(&workspace),
        Task::Style => style::run(&workspace),
        Task::Bench { args } => bench::run(&workspace, &args),
        Task::Figures => figures::run(&workspace),
        Task::Fuzz { target: None, .. } => fuzz::list(&workspace),
        Task::Fuzz {
            target: Some(target),
            seconds,
            input,
        } => match input {
            Some(input) => fuzz::reproduce(&workspace, &target, &input),
            None => fuzz::run(&workspace, &target, seconds),
        },
        Task::Soak { minutes, device } => soak::run(&workspace, minutes, &device),
        Task::Planted { filter } => planted::run(&workspace, &filter),
        Task::DpnpTests { every, stock } => dpnp::run(&workspace, every, stock),
        Task::EngineTests { filter } => engines::run(&workspace, filter.as_deref()),
        Task::Bindings {
            check,
            c_header: true,
        } => bindings::run_c_header(&workspace, check),
        Task::Bindings { check, .. } => bindings::run(&workspace, check),
        Task::CInstall {
            prefix,
            destdir,
            debug,
        } => {
            let place = c_install::Place {
                prefix,
                destdir,
                build: match debug {
                    true => c_install::Build::Debug,
                    false => c_install::Build::Bench,
                },
            };
            c_install::run(&workspace, &place)
        }
        Task::Wheel {
            test: false,
            aarch64,
        } => wheel::build(&workspace, aarch64),
        Task::Wheel { test: true, .. } => wheel::test(&workspace).map(step::report_skipped),
        Task::Release {
            prepare: Some(version),
            ..
        } => release::prepare(&workspace, &version),
        Task::Release { rehearsal, .. } => release::run(&workspace, rehearsal),
        Task::Site { check } => site::build(&workspace, check),
        Task::Recordings => recordings::run(&workspace),
        Task::GpuPack => gpu::pack(&workspace),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
