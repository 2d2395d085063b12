//! How TOML is read, and the messages for mistakes in it.

mod messages;
mod properties;
