//! A matrix of router set-ups.

pub mod cases;
pub mod judge;
mod router;
