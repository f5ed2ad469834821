//! Measures how long changes and opens take at a holder with many names and long labels.
//!
//! `cargo run --release -p crosshandle --example holder_changes [NAMES [LABEL_BYTES]]`

use crosshandle::holder::{HoldOptions, Holder, ServeOptions, serve, serve_as_successor};
use crosshandle::{Context, ContextOptions, Device};
use std::ffi::OsString;
use std::time::{Duration, Instant};

const ROLE: &str = "CROSSHANDLE_EXAMPLE_ROLE";
const ROUNDS: usize = 500;

fn main() -> crosshandle::Result<()> {
    let program = std::env::current_exe().expect("this program");
    let directory = std::env::temp_dir().join(format!("xh-changes-{}", std::process::id()));
    match std::env::var(ROLE).as_deref() {
        Ok("successor") => {
            let options = ServeOptions::new().successor(program, [] as [OsString; 0]);
            return serve_as_successor(options, || ());
        }
        Ok(directory) => {
            let arguments = [format!("{ROLE}=successor").into(), program.into_os_string()];
            let options = ServeOptions::new()
                .socket_dir(directory)
                .successor("/usr/bin/env", arguments);
            return serve(options, || ());
        }
        Err(_) => {}
    }
    let number = |index, default| {
        let argument = std::env::args().nth(index);
        argument.map_or(default, |text| text.parse().expect("a number"))
    };
    let (names, label): (usize, usize) = (number(1, 2_000), number(2, 4_000));
    let mut child = std::process::Command::new(program)
        .env(ROLE, &directory)
        .spawn()
        .expect("a holder");
    let holder = Holder::new().socket_dir(&directory);
    let measured = measure(&holder, &directory, names, label);
    if measured.is_err() {
        let _ = child.kill();
    }
    child.wait().expect("our child");
    let _ = std::fs::remove_dir_all(&directory);
    measured
}

fn measure(
    holder: &Holder,
    directory: &std::path::Path,
    names: usize,
    label: usize,
) -> crosshandle::Result<()> {
    while !holder.status().is_ok_and(|status| status.is_safe) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let options = ContextOptions::new().pooling(false).socket_dir(directory);
    let context = Context::with_options(&Device::find("host")?, options)?;
    let mut took = Vec::new();
    for number in 0..names {
        let memory = context.allocate(4096)?;
        let options = HoldOptions::new().label("x".repeat(label));
        let begin = Instant::now();
        holder.hand_over(&format!("name-{number}"), &[("memory", &memory)], options)?;
        took.push(begin.elapsed());
    }
    report("hand-overs", took);
    let (mut changes, mut opens) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("name-{}", round * 7 % names);
        let begin = Instant::now();
        holder.pin(&name, round % 2 == 0)?;
        changes.push(begin.elapsed());
        let begin = Instant::now();
        holder.open(&name)?;
        opens.push(begin.elapsed());
    }
    report("changes", changes);
    report("opens", opens);
    for held in holder.list()? {
        holder.pin(&held.name, false)?;
    }
    holder.stop()
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    println!(
        "{what}: median {:?}, p99 {:?}, greatest {:?} of {}",
        at(50),
        at(99),
        at(100),
        took.len()
    );
}
