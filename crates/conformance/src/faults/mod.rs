//! Fault injection at every step. Processes of a workload are killed, stopped, or made to fail a
//! system call, at each of their steps.
//!
//! A *step* is a system call (listed in `calls`) or a store to shared memory, which a library built
//! with `--cfg fault_steps` announces. Each worker installs a seccomp filter (`filter`) that
//! reports its steps to the supervisor (`stage`). The supervisor grants one step at a time. The
//! thread whose step was granted holds the *baton*. So a workload (`workload`) runs in an order
//! that a seed determines, and a case (`step::CaseId`) can be repeated by its name. `play` judges
//! the behavior of the survivors. `sweep` lists and plays all cases.
//!
//! # What a repetition reproduces
//! A case identifies its step by the line of the workload, the process, the thread's role, the
//! call, and the number of the call among the same calls of that line. If a play does not reach the
//! step, that is a *divergence*. The play is then repeated, and the divergence is counted if no
//! repetition reaches the step. Private locks and the allocator's own calls are not steps, because
//! they depend on timing. Timers still expire in real time, so *other* threads may run in a
//! different order.

mod bystanders;
mod calls;
mod channel_kills;
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

pub(crate) use channel_kills::sample as sample_channel_kills;
pub use channel_kills::{Options as ChannelKills, run_channel_kills};
pub use command::{Options, Plays, run, run_soak};
pub use filter::install_if_asked;
pub use gpu_deaths::{Options as GpuDeaths, run as run_gpu_deaths};
pub use play::programs::run_model_program;
