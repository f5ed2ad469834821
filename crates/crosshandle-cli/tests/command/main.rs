//! Tests of the real command, as its users run it: one file for each group of subcommands.

mod common;
mod demo;
mod event;
mod machine;
mod namespaces;
mod share;
