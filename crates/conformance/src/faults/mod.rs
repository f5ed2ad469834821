//! Faults at every step: processes of a workload are killed, stopped, or made to fail a system call, at
//! each of their steps.
//!
//! A *step* is a system call (`calls` lists them) or a store to shared memory (the library's feature
//! `fault-steps` announces each). The workers install a seccomp filter (`filter`) that hands each step
//! to the supervisor (`stage`), which grants one at a time: it holds the *baton*. So a workload
//! (`workload`) runs in the order that a seed chooses, and a case (`step::CaseId`) is played again by
//! its name. `play` judges what the survivors do; `sweep` lists and plays all cases.
//!
//! # What replays
//! The case names its step by the line of the workload, the process, the thread's role, the call, and
//! its place among the same calls of that line. A play that does not reach the step is a
//! *divergence*: it is tried again, and counted if it never gets there. Private locks and the
//! allocator's own calls are no steps, for they depend on the moment; timers still fire in real
//! time, so that a case may be reached in another order of the *other* threads.

mod bystanders;
mod calls;
mod command;
mod filter;
mod gpu_deaths;
mod play;
mod soak;
mod stage;
mod step;
mod sweep;
mod usage;
mod worker;
mod workload;

pub use command::{run, run_soak};
pub use filter::install_if_asked;
pub use gpu_deaths::run as run_gpu_deaths;
pub use play::programs::run_model_program;
