//! The holder, and the commands that ask it.

mod hold;
mod names;

pub(super) use hold::{
    AFTER_HELP as HOLD_AFTER_HELP, Args as HoldArgs, SuccessorArgs, run as hold, succeed,
};
pub(super) use names::{ListArgs, PinArgs, RemoveArgs, list, pin, remove};
