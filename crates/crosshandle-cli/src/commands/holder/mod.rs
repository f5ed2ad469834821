//! The holder, and the commands that send it requests.

mod fence;
mod hold;
mod load;
mod metrics;
mod names;

pub(super) use fence::{AFTER_HELP as FENCE_AFTER_HELP, Args as FenceArgs, run as fence};
pub(super) use hold::{
    AFTER_HELP as HOLD_AFTER_HELP, Args as HoldArgs, SuccessorArgs, run as hold, succeed,
};
pub(super) use load::{Args as LoadArgs, VerifyArgs, run as load, verify};
pub(super) use names::{ListArgs, PinArgs, RemoveArgs, list, pin, remove};
