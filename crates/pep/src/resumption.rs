//! Where a direction of a flow continues after its proxy has died.
//!
//! A proxy that dies leaves two sockets, and perhaps a pipe between them. Whoever has their descriptors can continue
//! the flow. The counts are the kernel's, so they are right at whatever instruction the proxy died. The proxy must have
//! kept two rules:
//!
//! - it never holds the only copy of a byte: a byte leaves the sender's receive queue only into the pipe, or after
//!   the far socket has taken it;
//! - it copies bytes past the pipe only while the pipe is empty.

/// How far a direction had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Unit: bytes. Taken from the sender's receive queue.
    pub read: u64,
    /// Unit: bytes. In the pipe.
    pub piped: u64,
    /// Unit: bytes. Taken by the far socket.
    pub written: u64,
}

/// Bytes are missing, or their order is not known: the flow cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("of {} bytes that were read, {} were written and {} wait", .0.read, .0.written, .0.piped)]
pub struct Broken(pub Progress);

impl Progress {
    /// Unit: bytes. The bytes at the head of the sender's receive queue that were written already, and must be dropped.
    ///
    /// # Errors
    /// When the counts cannot be those of a proxy that kept the rules.
    pub fn written_and_unread(self) -> Result<u64, Broken> {
        let ahead = (self.written.checked_add(self.piped)).and_then(|to| to.checked_sub(self.read));
        match ahead {
            Some(bytes) if bytes == 0 || self.piped == 0 => Ok(bytes),
            _ => Err(Broken(self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One step of a proxy that keeps the rules.
    #[derive(Debug, Clone)]
    enum Call {
        /// Look at some bytes, write some of them, and take those from the queue.
        Copy { seen: u64, taken: u64 },
        /// From the queue into the pipe.
        In(u64),
        /// From the pipe into the far socket.
        Out(u64),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let call = prop_oneof![
            (1..100_u64, 0..100_u64).prop_map(|(seen, taken)| Call::Copy { seen, taken }),
            (0..100_u64).prop_map(Call::In),
            (0..100_u64).prop_map(Call::Out),
        ];
        prop::collection::vec(call, 0..40)
    }

    proptest! {
        /// Wherever it dies, what the far end has, what waits and what is left to read make up the stream.
        #[test]
        fn no_byte_is_lost_or_doubled_wherever_it_dies(calls in calls()) {
            const SENT: u64 = 1000;
            let mut at = Progress { read: 0, piped: 0, written: 0 };
            let mut deaths = vec![at];
            for call in calls {
                match call {
                    Call::Copy { seen, taken } if at.piped == 0 => {
                        let taken = taken.min(seen).min(SENT - at.read);
                        at.written += taken;
                        deaths.push(at);
                        at.read += taken;
                    }
                    Call::Copy { .. } => {}
                    Call::In(bytes) => {
                        let bytes = bytes.min(SENT - at.read);
                        at.read += bytes;
                        at.piped += bytes;
                    }
                    Call::Out(bytes) => {
                        let bytes = bytes.min(at.piped);
                        at.piped -= bytes;
                        at.written += bytes;
                    }
                }
                deaths.push(at);
            }
            for death in deaths {
                let dropped = death.written_and_unread().expect("the rules were kept");
                let left = SENT - death.read - dropped;
                prop_assert_eq!(death.written + death.piped + left, SENT);
            }
        }
    }

    #[test]
    fn what_breaks_the_rules_is_found() {
        let lost = Progress { read: 10, piped: 3, written: 6 };
        assert_eq!(lost.written_and_unread(), Err(Broken(lost)));
        let out_of_order = Progress { read: 10, piped: 3, written: 9 };
        assert_eq!(out_of_order.written_and_unread(), Err(Broken(out_of_order)));
        let endless = Progress { read: 10, piped: u64::MAX, written: 9 };
        assert_eq!(endless.written_and_unread(), Err(Broken(endless)));
    }
}
