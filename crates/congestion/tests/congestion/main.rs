//! Congestion control: its laws, its invariants, and what it reaches in a closed loop.

mod closed_loop;
mod properties;
mod vectors;
