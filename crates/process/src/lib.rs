//! The proxy's process: its [`configuration`] file, its log ([`logging`]), its [`privileges`], its
//! confinement ([`confine`]), and its messages to the service manager ([`notify`]).
//!
//! Nothing here is called per byte or per packet of a flow.

pub mod configuration;
pub mod confine;
pub mod logging;
pub mod notify;
pub mod privileges;
