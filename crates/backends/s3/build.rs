//! Hides the C functions of other crates from the plugin's symbols, and keeps the plugin loaded.
//!
//! `object_store` depends on `crc-fast` with its C functions, and a cdylib exports those of every crate in it. A
//! process that loads two such plugins would have them twice, and the contract asks for a single symbol.
//!
//! A consumer may `dlclose` a plugin while its threads are still running, or before thread-local values are dropped.
//! `nodelete` keeps the code mapped.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // This excludes symbols of archives, which crates are. The vtable's function is in the plugin's own object. Linkers
    // of other systems do not have this option.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL,-z,nodelete");
    }
}
