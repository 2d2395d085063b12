//! The controllers in a closed loop: what rates and queues they reach, and how they respond to losses, silences and
//! changes of the path.

mod bbr_v1;
mod bbr_v3;
mod committed;
mod driven;
mod dvegas;
mod known_rate;
mod late_hosts;
mod path;
mod pulse;
mod sharing;
mod starts;
mod steady_state;
mod vivace;
