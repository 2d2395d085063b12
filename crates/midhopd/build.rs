//! How the programs are linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program that may be loaded anywhere has a list of what to move: 0.8 MB of this one, a tenth of that when packed.
    // The oldest C library that reads it is Debian 12's.
    let of_target =
        |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if of_target("OS") == "linux" && of_target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
