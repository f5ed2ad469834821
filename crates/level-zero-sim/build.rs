//! Build script that sets the linker options of the driver.

fn main() {
    // The driver starts threads, so the loader must never unload its code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
