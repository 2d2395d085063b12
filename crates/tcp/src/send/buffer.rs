//! The data that the application has offered: offsets and lengths, no bytes.

/// The stream from the application, in positions of the sequence space.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// The position after the last byte offered.
    end: u64,
    /// How many bytes may be offered and not acknowledged.
    pub limit: u64,
    closed: bool,
    /// The application wanted more room than there was.
    pub starved: bool,
}

impl Stream {
    pub fn new(limit: u64) -> Self {
        Self { end: 1, limit, closed: false, starved: false }
    }

    /// Takes as many of `bytes` as there is room for, given the acknowledged position.
    pub fn write(&mut self, bytes: u64, una: u64) -> u64 {
        if self.closed {
            return 0;
        }
        let taken = bytes.min(self.room(una));
        self.end += taken;
        self.starved = taken < bytes;
        taken
    }

    pub fn room(&self, una: u64) -> u64 {
        self.limit.saturating_sub(self.end - una.clamp(1, self.end))
    }

    /// Whether enough room is free for an event: a third, as in Linux.
    pub fn has_room_again(&self, una: u64) -> bool {
        self.starved && self.room(una) >= self.limit.div_ceil(3)
    }

    pub fn close(&mut self) {
        self.closed = true;
        self.starved = false;
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The position after the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The position after the FIN, or after the last byte if there is none.
    pub fn end_with_fin(&self) -> u64 {
        self.end + u64::from(self.closed)
    }
}
