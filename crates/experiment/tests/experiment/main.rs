//! Scenarios, plans and records: how they are read, resolved and refused.

mod agents;
mod cities;
mod drawn;
mod measured;
mod messages;
mod naive;
mod physics;
mod properties;
mod repair_agents;
mod resolve;
mod scenarios;
mod tcp;
mod traffic;
mod vary_option;
