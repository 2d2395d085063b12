//! What is read of TOML, and what somebody who wrote it wrongly gets to read.

mod messages;
mod properties;
