//! The transparent performance-enhancing proxy.

fn main() {}
