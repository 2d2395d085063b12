//! Listeners for clients that ask for the proxy: HTTP CONNECT and SOCKS5.

pub mod handshake;
mod http;
mod socks;
