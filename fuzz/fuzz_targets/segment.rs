//! The first packet of a flow comes from the wire as it is, cut wherever the queue cut it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midhopd::intercept::Segment;

fuzz_target!(|packet: &[u8]| {
    if let Some(segment) = Segment::parse(packet) {
        assert_eq!(segment.source.is_ipv4(), segment.destination.is_ipv4());
    }
});
