//! Creates UCX contexts. A context selects the transports and devices for workers.

use super::library::{self, Ucx};
use super::sys::*;
use super::worker::Settings;
use crate::error::{Error, Result};
use std::ffi::CString;
use std::ptr;

/// Returns the names of the transports that UCX finds on this machine, parsed from UCX's printed
/// description of a context.
pub(super) fn transports() -> Result<Vec<String>> {
    let ucx = library::get()?;
    let context = new_context(ucx, &Settings::default())?;
    let (mut text, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the C stream writes to `text` and `len`, which have the right types and outlive the
    // stream. The C library allocates the text, which is freed once. The context is destroyed once.
    let printed = unsafe {
        let file = libc::open_memstream(&mut text, &mut len);
        if !file.is_null() {
            (ucx.call.ucp_context_print_info)(context, file.cast());
            libc::fclose(file);
        }
        (ucx.call.ucp_cleanup)(context);
        let printed = match text.is_null() {
            true => String::new(),
            false => {
                String::from_utf8_lossy(std::slice::from_raw_parts(text.cast(), len)).into_owned()
            }
        };
        libc::free(text.cast());
        printed
    };
    Ok(transports_in(&printed))
}

/// Parses the resource lines, such as `#      resource 0 :  md 0  dev 0  flags -- tcp/eth0`.
fn transports_in(printed: &str) -> Vec<String> {
    let resources = printed.lines().filter(|line| line.contains("resource "));
    let mut names: Vec<String> = resources
        .filter_map(|line| line.split_whitespace().next_back()?.split_once('/'))
        .map(|(transport, _)| transport.to_owned())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(super) fn new_context(ucx: &Ucx, settings: &Settings) -> Result<ucp_context_h> {
    let call = &ucx.call;
    let text = |text: &str| {
        CString::new(text).map_err(|_| Error::invalid("a name for UCX contains a zero byte"))
    };
    let mut values = Vec::new();
    if let Some(interface) = &settings.interface {
        values.push((c"NET_DEVICES".to_owned(), text(interface)?));
    }
    if let Some(transports) = &settings.transports {
        values.push((c"TLS".to_owned(), text(transports)?));
    }
    let mut config = ptr::null_mut();
    // SAFETY: the names and values are C strings, all pointers are valid during the calls, and the
    // configuration is released once.
    unsafe {
        ucx.check(
            "ucp_config_read",
            (call.ucp_config_read)(ptr::null(), ptr::null(), &mut config),
        )?;
        let mut set = Ok(());
        for (name, value) in &values {
            let status = (call.ucp_config_modify)(config, name.as_ptr(), value.as_ptr());
            set = set.and(ucx.check("ucp_config_modify", status));
        }
        let params = ucp_params_t {
            field_mask: (UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME).into(),
            features: (UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP).into(),
            name: c"crosshandle".as_ptr(),
            ..Default::default()
        };
        let mut context = ptr::null_mut();
        let made = set.and_then(|()| {
            let status = (call.ucp_init_version)(
                UCP_API_MAJOR,
                UCP_API_MINOR,
                &params,
                config,
                &mut context,
            );
            ucx.check("ucp_init_version", status)
        });
        (call.ucp_config_release)(config);
        made.map(|()| context)
    }
}
