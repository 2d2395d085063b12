//! Congestion control as BPF struct_ops programs, prebuilt, with their loader.
