//! Tests that run the real command as users do, one file for each group of subcommands.

mod channel;
mod common;
mod demo;
mod documents;
mod event;
mod holder;
mod hostile;
mod limits;
mod link;
mod machine;
mod metrics;
mod namespaces;
mod observe;
mod share;
mod stuck;
