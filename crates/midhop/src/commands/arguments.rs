//! Values that several commands accept, with checks that they are valid.

use midhop_config::address as written;
use std::net::{IpAddr, SocketAddr};

/// An address without a port.
pub fn address(text: &str) -> Result<IpAddr, String> {
    written::address(text).map_err(|error| error.one_line())
}

/// An address with a port.
pub fn endpoint(text: &str) -> Result<SocketAddr, String> {
    written::endpoint(text).map_err(|error| error.one_line())
}

/// Runs at a time.
pub fn jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("`--jobs` must be at least 1".to_owned()),
        Ok(jobs) => Ok(jobs),
        Err(error) => Err(format!("{error}")),
    }
}

/// The confidence of intervals. Range: more than 0, less than 1.
pub fn confidence(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(level) if level > 0.0 && level < 1.0 => Ok(level),
        Ok(_) => Err("more than 0 and less than 1, such as 0.95 or 0.98".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}
