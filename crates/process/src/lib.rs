//! What surrounds the proxy as a process: its [`configuration`] file, its log ([`logging`]), its [`privileges`], what it
//! confines itself to ([`confine`]), and what it sends the service manager ([`notify`]).
//!
//! Nothing here runs for a byte or a packet of a flow.

pub mod configuration;
pub mod confine;
pub mod logging;
pub mod notify;
pub mod privileges;
