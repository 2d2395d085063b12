//! Namespaces, link emulator, load generator and runner.
