//! Sets the link options of the shared library.

fn main() {
    // The loader closes the adapter while threads of the adapter still run, so the code must not be
    // unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
