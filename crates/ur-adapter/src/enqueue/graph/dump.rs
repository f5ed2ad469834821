//! Graphs in the DOT language.

use super::capture::Recorded;
use std::fmt::Write;
use unified_runtime_sys::ur_command_t;

/// Returns a graph in DOT form: its nodes, with their commands and queues, and its edges.
pub(super) fn dot(id: u64, recorded: Option<&Recorded>) -> String {
    let mut text = format!("digraph graph_{id} {{\n");
    let nodes = recorded.map_or(&[][..], |recorded| &recorded.nodes);
    for (index, node) in nodes.iter().enumerate() {
        let (name, queue) = (name_of(node.kind), node.queue);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  n{index} [label=\"{index}: {name}\\nqueue {queue}\"];"
        );
        for before in &node.after {
            let _ = writeln!(text, "  n{before} -> n{index};");
        }
    }
    text.push_str("}\n");
    text
}

/// Returns the label for a type of command.
fn name_of(kind: ur_command_t) -> &'static str {
    match kind {
        ur_command_t::UR_COMMAND_KERNEL_LAUNCH => "kernel launch",
        ur_command_t::UR_COMMAND_EVENTS_WAIT => "wait",
        ur_command_t::UR_COMMAND_EVENTS_WAIT_WITH_BARRIER => "barrier",
        ur_command_t::UR_COMMAND_USM_MEMCPY => "copy",
        ur_command_t::UR_COMMAND_USM_MEMCPY_2D => "2D copy",
        ur_command_t::UR_COMMAND_USM_FILL => "fill",
        ur_command_t::UR_COMMAND_USM_FILL_2D => "2D fill",
        ur_command_t::UR_COMMAND_USM_PREFETCH => "prefetch",
        ur_command_t::UR_COMMAND_USM_ADVISE => "advice",
        ur_command_t::UR_COMMAND_MEM_BUFFER_READ => "buffer read",
        ur_command_t::UR_COMMAND_MEM_BUFFER_WRITE => "buffer write",
        ur_command_t::UR_COMMAND_MEM_BUFFER_COPY => "buffer copy",
        ur_command_t::UR_COMMAND_MEM_BUFFER_FILL => "buffer fill",
        ur_command_t::UR_COMMAND_MEM_BUFFER_READ_RECT => "buffer read of a rectangle",
        ur_command_t::UR_COMMAND_MEM_BUFFER_WRITE_RECT => "buffer write of a rectangle",
        ur_command_t::UR_COMMAND_MEM_BUFFER_COPY_RECT => "buffer copy of a rectangle",
        ur_command_t::UR_COMMAND_MEM_IMAGE_READ => "image read",
        ur_command_t::UR_COMMAND_MEM_IMAGE_WRITE => "image write",
        ur_command_t::UR_COMMAND_MEM_IMAGE_COPY => "image copy",
        ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_READ => "variable read",
        ur_command_t::UR_COMMAND_DEVICE_GLOBAL_VARIABLE_WRITE => "variable write",
        ur_command_t::UR_COMMAND_ENQUEUE_COMMAND_BUFFER_EXP => "command buffer",
        ur_command_t::UR_COMMAND_ENQUEUE_GRAPH_EXP => "graph",
        _ => "command",
    }
}
