//! Keeps the C functions of crates below out of the plugin's symbols, and the plugin in its process, as in
//! `crates/backends/s3/build.rs`: where all plugins are built at once, they share those crates.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL,-z,nodelete");
    }
}
