//! Linker options of the programs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A position-independent program contains a table of relocations: 0.5 MB of this one, a tenth
    // of that when packed. Debian 12 has the oldest C library that reads the packed form.
    let of_target =
        |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if of_target("OS") == "linux" && of_target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
