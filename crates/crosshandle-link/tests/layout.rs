//! Compares the hand-written declarations of UCX with its headers, in a C program that the
//! machine's compiler builds.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

#[allow(dead_code)]
#[path = "../src/ucx/sys.rs"]
mod sys;

use sys::*;

/// The environment variable with the directory of `ucp/api/ucp.h`. `cargo xtask test` sets it.
const INCLUDE: &str = "LIBUCX_INCLUDE_DIR";

/// Returns the facts to compare: each C expression, and its value by the declarations.
fn facts() -> Vec<(String, i128)> {
    let mut facts = Vec::new();
    macro_rules! values {
        ($($name:ident)*) => {
            $(facts.push((stringify!($name).to_owned(), $name as i128));)*
        };
    }
    values! {
        UCS_OK UCS_INPROGRESS UCS_ERR_BUSY UCS_ERR_NO_MEMORY UCS_ERR_INVALID_PARAM UCS_ERR_INVALID_ADDR
        UCS_ERR_NOT_IMPLEMENTED UCS_ERR_OUT_OF_RANGE UCS_ERR_EXCEEDS_LIMIT UCS_ERR_UNSUPPORTED UCS_ERR_LAST UCP_API_MAJOR UCP_API_MINOR
        UCP_PARAM_FIELD_FEATURES UCP_PARAM_FIELD_NAME UCP_FEATURE_RMA UCP_FEATURE_WAKEUP
        UCP_WORKER_PARAM_FIELD_THREAD_MODE UCS_THREAD_MODE_SERIALIZED
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
        UCP_EP_PARAM_FIELD_ERR_HANDLER UCP_ERR_HANDLING_MODE_NONE UCP_ERR_HANDLING_MODE_PEER
        UCP_OP_ATTR_FIELD_FLAGS UCP_EP_CLOSE_FLAG_FORCE
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS UCP_MEM_MAP_PARAM_FIELD_LENGTH UCP_MEM_MAP_PARAM_FIELD_PROT
        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE UCP_ATTR_FIELD_MEMORY_TYPES UCP_EP_ATTR_FIELD_TRANSPORTS
        UCP_ENTITY_NAME_MAX UCS_MEMORY_TYPE_CUDA
        UCP_MEM_MAP_PROT_LOCAL_READ UCP_MEM_MAP_PROT_LOCAL_WRITE
        UCP_MEM_MAP_PROT_REMOTE_READ UCP_MEM_MAP_PROT_REMOTE_WRITE
    }
    fn size_of_field<R, T>(_: fn(&R) -> &T) -> i128 {
        size_of::<T>() as i128
    }
    macro_rules! record {
        ($name:ident: $($field:ident)*) => {{
            let name = stringify!($name);
            facts.push((format!("sizeof({name})"), size_of::<$name>() as i128));
            facts.push((format!("_Alignof({name})"), align_of::<$name>() as i128));
            $(
                let field = stringify!($field);
                let offset = offset_of!($name, $field) as i128;
                facts.push((format!("offsetof({name}, {field})"), offset));
                let size = size_of_field(|record: &$name| &record.$field);
                facts.push((format!("sizeof((({name}*)0)->{field})"), size));
            )*
        }};
    }
    record!(ucp_params_t: field_mask features request_size request_init request_cleanup tag_sender_mask
        mt_workers_shared estimated_num_eps estimated_num_ppn name node_local_id);
    record!(ucp_worker_params_t: field_mask thread_mode cpu_mask events user_data event_fd flags name
        am_alignment client_id);
    record!(ucp_err_handler_t: cb arg);
    record!(ucs_sock_addr_t: addr addrlen);
    record!(ucp_ep_params_t: field_mask address err_mode err_handler user_data flags sockaddr conn_request
        name local_sockaddr);
    record!(ucp_mem_map_params_t: field_mask address length flags prot memory_type exported_memh_buffer);
    record!(ucp_request_param_t: op_attr_mask flags request cb datatype user_data reply_buffer memory_type
        recv_info memh remote_datatype remote remote_count);
    record!(ucp_context_attr_t: field_mask request_size thread_mode memory_types name device_counter_size);
    record!(ucp_transport_entry_t: transport_name device_name);
    record!(ucp_transports_t: entries num_entries entry_size);
    record!(ucp_ep_attr_t: field_mask name local_sockaddr remote_sockaddr transports user_data);
    macro_rules! sizes {
        ($($name:ident)*) => {
            $(facts.push((format!("sizeof({})", stringify!($name)), size_of::<$name>() as i128));)*
        };
    }
    sizes!(ucs_status_t ucs_status_ptr_t ucp_context_h ucp_worker_h ucp_ep_h ucp_mem_h ucp_rkey_h);
    facts
}

#[test]
fn sizes_offsets_and_values_are_those_of_the_headers() {
    let test = "sizes_offsets_and_values_are_those_of_the_headers";
    let Some(include) = layout_check::include_dir(INCLUDE, "ucp/api/ucp.h", test) else {
        return;
    };
    let facts = facts();
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <ucp/api/ucp.h>\nint main(void) {\n",
    );
    for (expression, _) in &facts {
        source += &format!("printf(\"%lld\\n\", (long long)({expression}));\n");
    }
    source += "return 0;\n}\n";
    let theirs = run(&include, &source);
    assert_eq!(theirs.len(), facts.len());
    for ((expression, ours), theirs) in facts.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{expression}");
    }
    println!("compared: {} facts", facts.len());
}

/// Every called function has the type that the headers declare. The program assigns each function
/// to a pointer of that type, so the compiler compares them.
#[test]
fn functions_have_the_types_of_the_headers() {
    let test = "functions_have_the_types_of_the_headers";
    let Some(include) = layout_check::include_dir(INCLUDE, "ucp/api/ucp.h", test) else {
        return;
    };
    let library = include_str!("../src/ucx/library.rs");
    let start = library.find("functions! {").unwrap();
    let block = &library[start..];
    let mut checks = String::from("#include <ucp/api/ucp.h>\n");
    let mut count = 0;
    for line in block.lines().skip(1).take_while(|line| *line != "}") {
        let (name, kind) = line
            .trim()
            .trim_end_matches(',')
            .split_once(": fn(")
            .unwrap();
        let (arguments, result) = kind.split_once(')').unwrap();
        let result = result
            .trim()
            .strip_prefix("-> ")
            .map_or("void".to_owned(), c_type);
        let arguments: Vec<_> = arguments.split(", ").map(c_type).collect();
        checks += &format!(
            "{result} (*own_{name})({}) = {name};\n",
            arguments.join(", ")
        );
        count += 1;
    }
    checks += "int main(void) { return 0; }\n";
    assert!(count > 20);
    // Only compiled, because there is no library to link with.
    compile(&include, &checks, &["-c", "-Werror"]);
}

/// Returns the C form of a Rust type.
fn c_type(rust: &str) -> String {
    if let Some(to) = rust.strip_prefix("*const ") {
        return match to.starts_with('*') {
            true => format!("{} const *", c_type(to)),
            false => format!("const {} *", c_type(to)),
        };
    }
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(to));
    }
    match rust {
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned",
        "c_void" => "void",
        "usize" => "size_t",
        "u64" => "uint64_t",
        other => other,
    }
    .to_owned()
}

fn scratch() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_PKG_NAME"));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Compiles a program, and returns its path.
fn compile(include: &Path, source: &str, options: &[&str]) -> PathBuf {
    let name = format!("layout-{}", options.len());
    let (path, program) = (scratch().join(format!("{name}.c")), scratch().join(&name));
    std::fs::write(&path, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-std=gnu11", "-I"])
        .arg(include)
        .args(options);
    let output = command.arg(&path).arg("-o").arg(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    program
}

fn run(include: &Path, source: &str) -> Vec<i128> {
    let output = Command::new(compile(include, source, &[]))
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}
