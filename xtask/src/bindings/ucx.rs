//! The declarations of UCX in `crates/crosshandle-link`, from the headers of the wheel that the
//! tests use. The functions are fields of a structure, which a loaded library fills in.

use super::{Interface, Part};
use crate::python::Environment;
use crate::workspace::Workspace;
use crate::{Result, ucx};

/// The functions that a link calls.
const FUNCTIONS: &str = "ucp_config_(read|modify|release)|ucp_init_version|ucp_cleanup\
    |ucp_context_(print_info|query)|ucp_(get_version|request_free|request_check_status)\
    |ucp_worker_(create|destroy|get_address|release_address|get_efd|arm|progress)\
    |ucp_ep_(create|query|close_nbx|flush_nbx|rkey_unpack)|ucp_mem_(map|unmap)\
    |ucp_rkey_(pack|buffer_release|destroy)|ucp_(put|get)_nbx|ucs_status_string";

/// The constants that a link uses, except those of types that the functions name.
const CONSTANTS: &str = "UCP_API_(MAJOR|MINOR)|UCP_MEM_MAP_PROT_(LOCAL|REMOTE)_(READ|WRITE)";

/// The enumerations of the fields' values, which are integers in the structures.
const VALUES: &str = "ucp_(params_field|feature|worker_params_field|ep_params_field|op_attr_t\
    |ep_close_flags_t|mem_map_params_field|context_attr_field|ep_attr_field)|ucs_memory_type";

pub(super) fn interface(workspace: &Workspace, _: &Environment) -> Result<Interface> {
    Ok(Interface {
        name: "crosshandle-link",
        include: ucx::include(workspace)?,
        header: "ucp/api/ucp.h",
        options: &[
            "--generate=types,vars,functions",
            "--dynamic-loading=Functions",
            "--dynamic-link-require-all",
            "--wrap-unsafe-ops",
            "--with-derive-default",
        ],
        asserts_layout: true,
        flags: "uc[ps]_.*|UCP_MEM_MAP_PROT_.*",
        parts: vec![Part {
            name: "ucx/sys",
            about: "The part of UCP's interface that the link uses.",
            items: vec![
                format!("--allowlist-function={FUNCTIONS}"),
                format!("--allowlist-var={CONSTANTS}"),
                format!("--allowlist-type={VALUES}"),
            ],
            uses_api: false,
        }],
    })
}
