//! Congestion control: its laws, what always holds, and what it reaches in a closed loop.

mod closed_loop;
mod properties;
mod vectors;
