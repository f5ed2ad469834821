//! Runs the suite on the host, with one test per case.

use crosshandle_conformance::{Devices, Outcome, find, for_each_case, run};
use std::path::Path;

const PEER: &str = env!("CARGO_BIN_EXE_crosshandle-peer");

fn check(name: &str) {
    let case = find(name).expect("the list has it");
    let host = Devices {
        own: "host".into(),
        peer: "host".into(),
    };
    match run(case, &host, Path::new(PEER)) {
        Ok(Outcome::Passed(notes)) => println!("{notes}"),
        Ok(Outcome::Unavailable(reason)) => println!("not possible on this machine: {reason}"),
        Ok(Outcome::Skipped(capability)) => panic!("the host lacks {capability}"),
        Err(failure) => panic!("{failure}"),
    }
}

macro_rules! tests {
    ($($topic:ident { $($rule:ident)* })*) => {
        $(mod $topic {
            $(tests!(@$topic $rule);)*
        })*
    };
    (@kernels $rule:ident) => {
        tests!(@@kernels $rule #[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]);
    };
    (@graphs kernels_compute_in_turns) => {
        tests!(@@graphs kernels_compute_in_turns
            #[ignore = "needs an OpenCL runtime; `cargo xtask test` runs it"]);
    };
    (@$topic:ident $rule:ident) => {
        tests!(@@$topic $rule);
    };
    (@@$topic:ident $rule:ident $(#[$ignore:meta])?) => {
        #[test]
        $(#[$ignore])?
        fn $rule() {
            super::check(concat!(stringify!($topic), "::", stringify!($rule)));
        }
    };
}

for_each_case!(tests);
