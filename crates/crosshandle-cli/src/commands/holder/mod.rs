//! The holder, and the commands that send it requests.

mod hold;
mod load;
mod metrics;
mod names;
mod revoke;

pub(super) use hold::{
    AFTER_HELP as HOLD_AFTER_HELP, Args as HoldArgs, SuccessorArgs, run as hold, succeed,
};
pub(super) use load::{Args as LoadArgs, VerifyArgs, run as load, verify};
pub(super) use names::{ListArgs, PinArgs, RemoveArgs, list, pin, remove};
pub(super) use revoke::{AFTER_HELP as REVOKE_AFTER_HELP, Args as RevokeArgs, run as revoke};
