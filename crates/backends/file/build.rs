//! Hides the C functions of other crates from the plugin's symbols, and keeps the plugin loaded, as in
//! `crates/backends/s3/build.rs`. It is needed here too, because plugins that are built together share these crates.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL,-z,nodelete");
    }
}
