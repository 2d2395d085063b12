//! The state of a connection that moves to another machine, as that machine receives it.

use midhop_linux::tcp_repair::{DecodeError, TcpSnapshot};

/// Unit: bytes. The longest queue that is accepted.
const QUEUE_BYTES_MAX: usize = 2048;

/// An accepted snapshot is written again byte for byte, and none of its queues is longer than allowed.
pub fn snapshot(data: &[u8]) {
    match TcpSnapshot::decode(data, QUEUE_BYTES_MAX) {
        Ok(snapshot) => {
            assert_eq!(snapshot.encode(), data);
            assert!(snapshot.queued_bytes() <= 2 * QUEUE_BYTES_MAX);
        }
        Err(DecodeError::TooLong { bytes, bytes_max }) => assert!(bytes > bytes_max),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without these a fuzzer would first have to find a whole connection.
    #[test]
    fn its_corpus_has_connections() {
        for connection in [
            &include_bytes!("../../../fuzz/corpus/snapshot/v4")[..],
            &include_bytes!("../../../fuzz/corpus/snapshot/v6")[..],
            &include_bytes!("../../../fuzz/corpus/snapshot/ended")[..],
            &include_bytes!("../../../fuzz/corpus/snapshot/acknowledged")[..],
            &include_bytes!("../../../fuzz/corpus/snapshot/plain")[..],
        ] {
            if let Err(error) = TcpSnapshot::decode(connection, QUEUE_BYTES_MAX) {
                panic!("{error}");
            }
        }
    }
}
