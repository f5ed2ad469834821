//! `crosshandle inspect HANDLE`.

use crate::failure::Result;
use crate::origin::handle_text;
use crate::output;
use crosshandle::handle::{AnyHandle, Explanation};
use serde_json::json;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of anything, or `-` for the first line of standard input
    handle: String,
    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let handle: AnyHandle = handle_text(&args.handle)?.parse()?;
    let explanation = handle.explain(Some(crosshandle::host_identity()));
    if args.json {
        return output::json(&as_json(&explanation));
    }
    output::line(explanation)
}

fn as_json(of: &Explanation) -> serde_json::Value {
    let memory = of.memory.as_ref().map(|memory| {
        json!({
            "segment": memory.segment,
            "segment_length": memory.segment_length,
            "offset": memory.offset,
            "length": memory.length,
            "read_only": memory.read_only,
        })
    });
    json!({
        "kind": of.kind,
        "version": of.version,
        "handle_size": of.handle_size,
        "backend": of.backend,
        "device": of.device,
        "host": of.host,
        "same_host": of.same_host,
        "exporter": of.exporter,
        "exporter_pid": of.exporter_pid,
        "record": of.record,
        "generation": of.generation,
        "memory": memory,
        "opening": of.opening,
    })
}
