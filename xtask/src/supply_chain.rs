//! Checks licences, duplicate and forbidden crates, sources, and known vulnerabilities.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, fuzz, tools};

/// Checks the dependencies of the workspace and of the fuzz targets against `deny.toml`. Returns
/// the reason if a part could not be checked.
pub(crate) fn check(workspace: &Workspace) -> Result<Option<String>> {
    let program = tools::DENY.get(workspace)?;
    let mut manifests = vec![("workspace", workspace.root.join("Cargo.toml"))];
    if !fuzz::targets(workspace)?.is_empty() {
        manifests.push(("fuzz", fuzz::manifest(workspace)));
    }

    for (name, manifest) in &manifests {
        let mut command = deny(workspace, &program, manifest);
        command.args([
            "check",
            "--hide-inclusion-graph",
            "licenses",
            "bans",
            "sources",
        ]);
        Step::new(workspace, format!("dependencies of {name}"), command).run()?;
    }

    // Not every machine can reach the repository with the database of vulnerabilities.
    let mut fetch = deny(workspace, &program, &manifests[0].1);
    fetch.args(["fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0");
    let limit = Duration::from_secs(120);
    let unreachable = Step::new(workspace, "advisory database", fetch)
        .limit(limit)
        .run_optional()?;
    if let Some(reason) = unreachable {
        return Ok(Some(format!(
            "known vulnerabilities (cargo deny fetch db): {reason}"
        )));
    }
    for (name, manifest) in &manifests {
        let mut command = deny(workspace, &program, manifest);
        command.args([
            "check",
            "--disable-fetch",
            "--hide-inclusion-graph",
            "advisories",
        ]);
        Step::new(workspace, format!("advisories of {name}"), command).run()?;
    }
    Ok(None)
}

fn deny(workspace: &Workspace, program: &PathBuf, manifest: &Path) -> Command {
    let mut command = Command::new(program);
    workspace.prepare(&mut command);
    command.args(["--locked", "--manifest-path"]).arg(manifest);
    command
        .arg("--config")
        .arg(workspace.root.join("deny.toml"));
    command
}
