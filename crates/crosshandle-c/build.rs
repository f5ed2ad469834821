//! Sets the link options of the shared library.

fn main() {
    // A program may close the library while the library's threads still run, so the code must not
    // be unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
