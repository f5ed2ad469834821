//! `crosshandle inspect HANDLE`.

use crate::failure::Result;
use crate::input::handle_text;
use crate::output;
use crosshandle::handle::{AnyHandle, Explanation};
use serde_json::json;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Handle of any object, or `-` for the first line of standard input
    handle: String,
    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let handle: AnyHandle = handle_text(&args.handle)?.parse()?;
    let explanation = handle.explain(Some(crosshandle::report::host_identity()));
    if args.json {
        return output::json(&as_json(&explanation));
    }
    output::lines(explanation)
}

fn as_json(explanation: &Explanation) -> serde_json::Value {
    let memory = explanation.memory.as_ref().map(|memory| {
        json!({
            "segment": memory.segment,
            "offset": memory.offset,
            "length": memory.length,
            "read_only": memory.read_only,
        })
    });
    json!({
        "kind": explanation.kind,
        "version": explanation.version,
        "handle_size": explanation.handle_size,
        "backend": explanation.backend,
        "device": explanation.device,
        "host": explanation.host,
        "same_host": explanation.same_host,
        "exporter": explanation.exporter,
        "exporter_pid": explanation.exporter_pid,
        "context": explanation.context,
        "record": explanation.record,
        "generation": explanation.generation,
        "memory": memory,
        "opening": explanation.opening,
    })
}
