//! The controllers in a closed loop: what they reach, what queue they keep, what they do about losses,
//! silences and a path that changes.

mod bbr_v1;
mod bbr_v3;
mod committed;
mod driven;
mod dvegas;
mod known_rate;
mod path;
mod pulse;
mod sharing;
mod starts;
mod steady_state;
mod vivace;
