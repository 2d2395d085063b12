//! What flows of tunnels have read from their sockets and the other end has not confirmed, in memory that outlives the
//! process.
//!
//! The owner of bytes is the flow's socket, by its cookie. How many bytes were read is the kernel's to report: the last
//! ones may be in the room of their worker still.

use super::register::Register;
use bytes::Bytes;
use midhop_linux::shared_pool::{LARGE, LeftBytes, LeftPool, PoolWriter, Room, SharedPool};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of all workers.
#[derive(Debug, Default)]
pub struct Store {
    /// None: nothing outlives this process.
    pool: Option<Arc<SharedPool>>,
    left: Mutex<LeftPool>,
}

impl Store {
    /// That of a register, with what a process before this one has left there.
    pub fn of(register: &Register) -> Self {
        let (pool, left) = register.pool().unzip();
        Self { pool, left: Mutex::new(left.unwrap_or_default()) }
    }

    /// Where a worker reads into.
    pub fn scratch(&self) -> Scratch {
        self.pool.as_ref().and_then(SharedPool::room).map_or_else(Scratch::default, Scratch::Shared)
    }

    /// A writer of what the socket of this cookie sends. None: nothing outlives this process.
    pub fn writer(&self, cookie: u64) -> Option<PoolWriter> {
        Some(self.pool.as_ref()?.writer(cookie))
    }

    /// Takes what was left of a flow that has sent so many bytes: its last ones, as far as they are there. What is in a
    /// room is written, so that it outlives this process, too.
    pub fn take(&self, writer: &mut PoolWriter, sent: u64) -> VecDeque<Bytes> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = writer.owner();
        let chunks = left.chunks.extract_if(.., |chunk| chunk.owner == owner).collect();
        let room = left.rooms.iter_mut().find(|room| room.owner == owner);
        let room = room.and_then(|room| {
            let count = usize::try_from(sent.checked_sub(room.offset)?).ok()?;
            let bytes = room.bytes.get(..count).filter(|bytes| !bytes.is_empty())?;
            Some(LeftBytes { bytes: writer.write(room.offset, bytes)?, ..*room })
        });
        last_bytes(chunks, room, sent)
    }

    /// All flows that go on have theirs: the rest is free.
    pub fn forget(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        drop(left);
    }
}

/// The last bytes of what was sent, as far as there is no gap in them.
fn last_bytes(mut chunks: Vec<LeftBytes>, room: Option<LeftBytes>, sent: u64) -> VecDeque<Bytes> {
    let mut pieces = VecDeque::new();
    let mut first = sent;
    // What was read last may not have been copied, and is whole in the room.
    if let Some(LeftBytes { offset, bytes, .. }) = room {
        pieces.push_front(bytes);
        first = offset;
    }
    chunks.sort_unstable_by_key(|chunk| std::cmp::Reverse(chunk.offset));
    for LeftBytes { offset, bytes, .. } in chunks {
        // A chunk may have what the room has, too.
        let Some(count) = first.checked_sub(offset).and_then(|it| usize::try_from(it).ok()) else {
            continue;
        };
        match bytes.len() {
            0 => {}
            length if length >= count => {
                pieces.push_front(bytes.slice(..count));
                first = offset;
            }
            _gap => break,
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Where one worker reads into.
#[derive(Debug)]
pub enum Scratch {
    /// What nothing outlives.
    Own(Box<[u8]>),
    /// What outlives this process.
    Shared(Room),
}

impl Scratch {
    /// What is read into it next has this place in what the owner sends, until that is [copied](Self::is_copied).
    pub fn note(&self, owner: u64, offset: u64) {
        if let Self::Shared(room) = self {
            room.note(owner, offset);
        }
    }

    /// What was read is elsewhere, and others read into it.
    pub fn is_copied(&self) {
        if let Self::Shared(room) = self {
            room.note(0, 0);
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::Own(vec![0; LARGE].into_boxed_slice())
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(room) => room,
        }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(room) => room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(offset: u64, bytes: &'static [u8]) -> LeftBytes {
        LeftBytes { owner: 1, offset, bytes: Bytes::from_static(bytes) }
    }

    fn joined(chunks: &[LeftBytes], room: Option<LeftBytes>, sent: u64) -> Vec<u8> {
        last_bytes(chunks.to_vec(), room, sent).iter().flatten().copied().collect()
    }

    #[test]
    fn the_last_bytes_are_those_without_a_gap() {
        let chunks = [left(6, b"ghi"), left(0, b"abc"), left(3, b"def")];
        assert_eq!(joined(&chunks, None, 9), b"abcdefghi");
        assert_eq!(joined(&chunks[..2], None, 9), b"ghi", "what was before a gap is of no use");
        assert!(joined(&chunks, None, 10).is_empty(), "one was read that is nowhere");
        // Read and not copied; copied, and there still; copied into a part of a chunk.
        let room = left(9, b"jkl");
        assert_eq!(joined(&chunks, Some(room.clone()), 12), b"abcdefghijkl");
        assert_eq!(joined(&chunks, Some(left(6, b"ghi")), 9), b"abcdefghi");
        assert_eq!(joined(&[left(3, b"defghi")], Some(left(6, b"ghi")), 9), b"defghi");
        assert_eq!(joined(&[], Some(room), 12), b"jkl");
        assert!(joined(&[], None, 5).is_empty());
    }

    #[test]
    fn what_was_read_and_not_copied_outlives_the_nextprocess_too() -> std::io::Result<()> {
        let register = Register::new(1, 1)?;
        for process in 0..3 {
            let store = Store::of(&register);
            let mut writer = store.writer(7).expect("a pool");
            let mut pieces = store.take(&mut writer, 104);
            let mut scratch = store.scratch();
            if process == 0 {
                pieces.extend(writer.write(0, &[1; 100]));
                scratch.note(7, 100);
                scratch[..4].copy_from_slice(b"read");
            }
            let found: Vec<u8> = pieces.iter().flatten().copied().collect();
            let all = [&[1; 100][..], b"read"].concat();
            assert_eq!(found, all[..if process == 0 { 100 } else { 104 }]);
            if process == 1 {
                scratch.note(8, 0);
            }
            std::mem::forget((pieces, scratch, writer, store));
        }
        Ok(())
    }
}
