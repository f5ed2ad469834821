//! How the driver is linked.

fn main() {
    // It has threads, so it must not be unloaded under them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
