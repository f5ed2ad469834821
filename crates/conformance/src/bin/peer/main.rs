//! The peer process of the conformance suite, which executes commands line by line.
//!
//! `crosshandle-peer DEVICE [SOCKET_DIRECTORY]` reads requests from standard input. A request
//! consists of a number, a command, words and `key=value` options. The peer replies with the number
//! and `ok WORDS…` or `err KIND MESSAGE`. If `&` precedes the number, the request is executed on a
//! thread of its own, and the line `begun THREAD` comes before the reply.
//!
//! `crosshandle-peer write MODEL BYTE [claim]` and `crosshandle-peer follow MODEL BYTE` are
//! separate programs. The first one updates a model in place, and the second one reads it at the
//! same time.

mod awaited;
mod channels;
mod device_code;
mod diversion;
mod events;
mod filter;
mod graphs;
mod kernels;
mod memory;
mod physical;
mod process;
mod queues;
mod request;
mod state;
mod stranger;

use request::{CommandError, Reply, Request};
use state::PeerState;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(device) = arguments.next() else {
        eprintln!("usage: crosshandle-peer DEVICE [SOCKET_DIRECTORY]");
        return ExitCode::from(2);
    };
    // The peer is killed with the suite, even if it is stopped and cannot notice the end of its
    // input.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if let Err(error) = crosshandle_conformance::faults::install_if_asked() {
        eprintln!("counting steps: {error}");
        return ExitCode::FAILURE;
    }
    if device == "exec" {
        // The command line is `exec PROGRAM ARGUMENTS…`, which starts another program.
        let Some(program) = arguments.next() else {
            return ExitCode::from(2);
        };
        let error = std::process::Command::new(program).args(arguments).exec();
        eprintln!("starting a program: {error}");
        return ExitCode::FAILURE;
    }
    let rest: Vec<_> = arguments.collect();
    let words: Vec<_> = std::iter::once(&device)
        .chain(&rest)
        .map(String::as_str)
        .collect();
    if let Some(code) = crosshandle_conformance::faults::run_model_program(&words) {
        return code;
    }
    let state = Arc::new(PeerState::new(device, rest.into_iter().next()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (own_thread, line) = match line.strip_prefix('&') {
            Some(rest) => (true, rest.to_owned()),
            None => (false, line),
        };
        let Some((number, question)) = line.split_once(' ') else {
            eprintln!("not a question: {line:?}");
            return ExitCode::from(2);
        };
        let (number, question) = (number.to_owned(), question.to_owned());
        if !own_thread {
            answer(&state, &number, &question);
            continue;
        }
        let state = Arc::clone(&state);
        let (name, refused) = (format!("op-{number}"), number.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            say(&format!("{number} begun {}", process::thread()));
            answer(&state, &number, &question);
        });
        if let Err(error) = thread {
            say(&format!("{refused} err Io {error}"));
        }
    }
    ExitCode::SUCCESS
}

fn answer(state: &Arc<PeerState>, number: &str, question: &str) {
    let result = Request::parse(question).and_then(|request| {
        // A tracer follows the command from one trap to the other.
        let is_traced = request.option("trap").is_some();
        if is_traced {
            process::trap()?;
        }
        let result = execute(state, &request);
        if is_traced {
            process::trap()?;
        }
        result
    });
    match result {
        Ok(words) => say(format!("{number} ok {}", words.join(" ")).trim_end()),
        Err(CommandError { kind, message }) => {
            // A reply must be one line.
            let message = message.replace('\n', " ");
            say(&format!("{number} err {kind} {message}"));
        }
    }
}

fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Reply {
    let topics = [
        process::execute,
        memory::execute,
        events::execute,
        awaited::execute,
        diversion::execute,
        queues::execute,
        channels::execute,
        device_code::execute,
        kernels::execute,
        graphs::execute,
        physical::execute,
    ];
    topics
        .iter()
        .find_map(|topic| topic(state, request))
        .or_else(|| filter::execute(request))
        .or_else(|| stranger::execute(request))
        .unwrap_or_else(|| {
            Err(CommandError::usage(format!(
                "no command {:?}",
                request.command
            )))
        })
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // If the suite has ended, no process reads the line, and this process ends with its input.
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}
