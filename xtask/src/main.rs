//! Chores of the repository: the layer check and the BPF rebuild.

fn main() {}
