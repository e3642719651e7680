//! Compiles the kernels as C, and sets the name and the lifetime of a driver's library.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cuda");
    println!("cargo:rerun-if-changed=c");
    for kernel in ["walk.cu", "crc32c.cu"] {
        println!("cargo:rerun-if-changed={}", kernels.join(kernel).display());
    }
    let mut build = cc::Build::new();
    build.file("c/kernels.c").include(kernels).warnings(false);
    // Undefined behavior stops the process (SIGILL). gcc before 13 has another name for that.
    let traps = ["-fsanitize-trap=undefined", "-fsanitize-undefined-trap-on-error"];
    let supported = |flag: &&str| build.is_flag_supported(flag).unwrap_or(false);
    if let Some(trap) = traps.into_iter().find(supported) {
        build.flag("-fsanitize=undefined").flag(trap);
    }
    build.compile("kernels");

    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Streams are threads, which keep running after a program closes the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
