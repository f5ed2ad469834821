//! The header of the C interface, which cbindgen generates from `crates/crosshandle-c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{read, write};
use crate::Result;
use crate::step::Step;
use crate::tools;
use crate::workspace::Workspace;

const CRATE: &str = "crates/crosshandle-c";
const HEADER: &str = "include/crosshandle.h";

/// Generates the header. If `check` is true, it changes nothing. Returns the name of the committed
/// header if that differs.
pub(super) fn generate(workspace: &Workspace, check: bool) -> Result<Option<String>> {
    let cbindgen = tools::CBINDGEN.get(workspace)?;
    let source = workspace.root.join(CRATE);
    let generated = generated(workspace);
    write(&generated, b"")?;
    let mut command = Command::new(cbindgen);
    workspace.prepare(&mut command);
    command.args(["--quiet", "--config"]);
    command.arg(source.join("cbindgen.toml")).arg("--output");
    command.arg(&generated).arg(&source);
    Step::new(workspace, "generate crosshandle.h", command).run()?;
    let new = read(&generated)?;
    let committed = Path::new(CRATE).join(HEADER);
    let path = workspace.root.join(&committed);
    if path.is_file() && read(&path)? == new {
        return Ok(None);
    }
    if !check {
        write(&path, &new)?;
    }
    Ok(Some(committed.display().to_string()))
}

fn generated(workspace: &Workspace) -> PathBuf {
    let scratch = workspace.target.join("xtask").join("bindings");
    scratch.join("crosshandle-c").join("crosshandle.h")
}
