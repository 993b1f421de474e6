//! Compiles the C++ part against the headers of the torch that `torch-sys` found.

use std::{env, path::PathBuf};

fn main() {
    // torch-sys tells where the libraries are; the headers lie beside them, on every platform's wheel.
    let libraries = PathBuf::from(env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is"));
    let include = libraries.with_file_name("include");
    for path in ["shim", "../relevo-abi/include"] {
        println!("cargo::rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include(include.join("torch/csrc/api/include"))
        .include(include)
        .include("../relevo-abi/include")
        // torch's own headers warn.
        .warnings(false)
        .file("shim/shim.cpp")
        .compile("relevo_torch_shim");
}
