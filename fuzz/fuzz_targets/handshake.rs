//! A client of the explicit mode may send anything, in pieces of any size: HTTP CONNECT by the first
//! byte's lowest bit, SOCKS5 else.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midhopd::explicit::handshake::{Handshake, Protocol};

/// More than any handshake may need; what is kept beyond it would be memory for a stranger.
const KEPT_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((choice, input)) = data.split_first() else { return };
    let protocol = if choice & 1 == 1 { Protocol::HttpConnect } else { Protocol::Socks5 };
    let piece = usize::from(choice >> 1).max(1);
    let mut handshake = Handshake::new(protocol);
    for bytes in input.chunks(piece) {
        if !handshake.wants_input() {
            break;
        }
        handshake.handle_input(bytes);
        while handshake.poll_output().is_some() {}
    }
    handshake.handle_timeout();
    while handshake.poll_output().is_some() {}
    assert!(handshake.into_rest().len() <= input.len().min(KEPT_MAX));
});
