//! The declarations in `crates/level-zero-sys`, from the headers of Debian's package.

use super::{Interface, ONLY_DECLARATIONS, Part};
use crate::python::Environment;
use crate::workspace::Workspace;
use crate::{Result, debian};

/// Types that only tracing layers need: the arguments of each function, and tables of callbacks.
const TRACING: &str = "_?ze_.*[^b]_params_t|_?ze_.*callbacks_t|ze_pfn.*Cb_t";

pub(super) fn interface(workspace: &Workspace, _: &Environment) -> Result<Interface> {
    let only_file = |header: &str| format!(r"--allowlist-file=.*/level_zero/{header}\.h");
    Ok(Interface {
        name: "level-zero-sys",
        include: debian::include(&debian::HEADERS.ensure(workspace)?),
        header: "level_zero/ze_ddi.h",
        options: &ONLY_DECLARATIONS,
        asserts_layout: false,
        flags: "_?ze_.*_flag_t",
        parts: vec![
            Part {
                name: "api",
                about: "The types and constants of `ze_api.h`.",
                items: vec![only_file("ze_api"), format!("--blocklist-type={TRACING}")],
                uses_api: false,
            },
            Part {
                name: "ddi",
                about: "The function pointers and tables of `ze_ddi.h`.",
                items: vec![only_file("ze_ddi")],
                uses_api: true,
            },
        ],
    })
}
