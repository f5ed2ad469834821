//! Runs the suite on the host, with one test per case.

use crosshandle::Device;
use crosshandle_conformance::{Devices, Outcome, find, for_each_case, run};
use std::path::Path;

const PEER: &str = env!("CARGO_BIN_EXE_crosshandle-peer");

/// Capabilities that the host lacks if no OpenCL runtime is installed.
const MAY_LACK: [&str; 1] = ["kernels"];

fn check(name: &str) {
    let case = find(name).expect("the list has it");
    let host = Devices {
        own: "host".into(),
        peer: "host".into(),
    };
    match run(case, &host, Path::new(PEER)) {
        Ok(Outcome::Passed(notes)) => println!("{notes}"),
        Ok(Outcome::Unavailable(reason)) => println!("not possible on this machine: {reason}"),
        Ok(Outcome::Skipped(capability)) if MAY_LACK.contains(&capability) => {
            let missing = Device::find("host").and_then(|host| host.kernels().copied());
            let reason = missing.expect_err("the host runs kernels, but the cases were skipped");
            println!("the host lacks {capability}: {reason}");
        }
        Ok(Outcome::Skipped(capability)) => panic!("the host has {capability}"),
        Err(failure) => panic!("{failure}"),
    }
}

macro_rules! tests {
    ($($topic:ident { $($rule:ident)* })*) => {
        $(mod $topic {
            $(#[test]
            fn $rule() {
                super::check(concat!(stringify!($topic), "::", stringify!($rule)));
            })*
        })*
    };
}

for_each_case!(tests);
