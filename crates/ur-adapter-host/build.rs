//! Link options of the shared library.

fn main() {
    // The loader closes adapters while their threads still run, so the code must stay loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
