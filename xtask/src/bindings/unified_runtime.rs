//! The declarations in `crates/unified-runtime-sys`, from the headers of the stock runtime.

use super::{Interface, ONLY_DECLARATIONS, Part};
use crate::Result;
use crate::python::Environment;
use crate::workspace::Workspace;

/// Types for tracing: structures with the arguments of each function, and the numbers of the
/// functions.
const PARAMS: &str = "ur_.*_params_t|ur_function_t";

pub(super) fn interface(_: &Workspace, environment: &Environment) -> Result<Interface> {
    let only_file = |header: &str| format!(r"--allowlist-file=.*/unified-runtime/{header}\.h");
    Ok(Interface {
        name: "unified-runtime-sys",
        include: environment.include(),
        header: "unified-runtime/ur_ddi.h",
        options: &ONLY_DECLARATIONS,
        asserts_layout: false,
        flags: "ur_.*_flag_t",
        parts: vec![
            Part {
                name: "api",
                about: "The types and constants of `ur_api.h`.",
                items: vec![only_file("ur_api"), format!("--blocklist-type={PARAMS}")],
                uses_api: false,
            },
            Part {
                name: "ddi",
                about: "The function pointers and tables of `ur_ddi.h`.",
                items: vec![only_file("ur_ddi")],
                uses_api: true,
            },
            Part {
                name: "params",
                about: "The arguments of each function as tracing layers see them, of `ur_api.h`.",
                items: vec![format!("--allowlist-type={PARAMS}")],
                uses_api: true,
            },
        ],
    })
}
