//! Keeps the C functions of crates below out of the plugin's symbols, and the plugin in its process.
//!
//! `object_store` takes `crc-fast` with its functions for C, and a cdylib exports those of every crate in it. A
//! process that loads two such plugins would have them twice; the contract asks for one symbol.
//!
//! A consumer may `dlclose` a plugin whose threads are still running, or whose thread-local values are still to be
//! dropped. With `nodelete` its code stays.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Those of archives, which crates are; the vtable's function is in the plugin's own object. Linkers of other
    // systems do not know this.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL,-z,nodelete");
    }
}
