//! Bytes that flows of tunnels have read from their sockets and that the other end has not
//! confirmed, in memory that outlives the process.
//!
//! The owner of bytes is the flow's socket, by its cookie. The kernel reports how many bytes were
//! read: the last ones may still be in the room of their worker.

use super::register::Register;
use bytes::Bytes;
use midhop_linux::shared_pool::{LARGE, LeftBytes, PoolWriter, Room, SharedPool};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of all workers.
#[derive(Debug, Default)]
pub struct Store {
    /// None: the bytes do not outlive this process.
    pool: Option<Arc<SharedPool>>,
    left: Mutex<Vec<LeftBytes>>,
}

impl Store {
    /// The memory of a register, with what the previous process has left there.
    pub fn of(register: &Register) -> Self {
        let (pool, left) = register.pool().unzip();
        Self { pool, left: Mutex::new(left.unwrap_or_default()) }
    }

    /// The buffer that a worker reads into.
    pub fn scratch(&self) -> Scratch {
        self.pool.as_ref().and_then(SharedPool::room).map_or_else(Scratch::default, Scratch::Shared)
    }

    /// A writer of the bytes that the socket with this cookie sends. None: they do not outlive this
    /// process.
    pub fn writer(&self, cookie: u64) -> Option<PoolWriter> {
        Some(self.pool.as_ref()?.writer(cookie))
    }

    /// Takes what was left of a flow that has sent this many bytes: the last ones, as far as they
    /// are there.
    pub fn take(&self, owner: u64, sent: u64) -> VecDeque<Bytes> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        last_bytes(left.extract_if(.., |chunk| chunk.owner == owner).collect(), sent)
    }

    /// Frees the rest, when all flows that are continued have taken their bytes.
    pub fn forget(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        drop(left);
    }
}

/// The last bytes that were sent, as far as there is no gap in them. A room may contain more than
/// was sent, and bytes that are in a chunk as well.
fn last_bytes(mut chunks: Vec<LeftBytes>, sent: u64) -> VecDeque<Bytes> {
    let mut pieces = VecDeque::new();
    let mut first = sent;
    chunks.sort_unstable_by_key(|chunk| std::cmp::Reverse(chunk.offset));
    for LeftBytes { offset, bytes, .. } in chunks {
        let Some(count) = first.checked_sub(offset).and_then(|it| usize::try_from(it).ok()) else {
            continue;
        };
        match bytes.get(..count) {
            Some(_) => pieces.push_front(bytes.slice(..count)),
            None if bytes.is_empty() => continue,
            None => break,
        }
        first = offset;
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// The buffer that one worker reads into.
#[derive(Debug)]
pub enum Scratch {
    /// A buffer that does not outlive this process.
    Own(Box<[u8]>),
    /// A buffer that outlives this process.
    Shared(Room),
}

impl Scratch {
    /// Records the position, in what the owner sends, of the bytes that are read into it next,
    /// until it is [released](Self::release).
    pub fn note(&self, owner: u64, offset: u64) {
        if let Self::Shared(room) = self {
            room.note(owner, offset);
        }
    }

    /// The bytes were moved elsewhere: others read into the buffer.
    pub fn release(&self) {
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

    fn joined(chunks: &[LeftBytes], sent: u64) -> Vec<u8> {
        last_bytes(chunks.to_vec(), sent).iter().flatten().copied().collect()
    }

    #[test]
    fn the_last_bytes_are_those_without_a_gap() {
        let chunks = [left(6, b"ghi"), left(0, b"abc"), left(3, b"def")];
        assert_eq!(joined(&chunks, 9), b"abcdefghi");
        assert_eq!(joined(&chunks[..2], 9), b"abcghi"[3..], "what was before a gap is of no use");
        assert!(joined(&chunks, 10).is_empty(), "one was read that is nowhere");
        let with = |room| joined(&[&chunks[..], &[room]].concat(), 12);
        assert_eq!(with(left(9, b"jkl...")), b"abcdefghijkl", "read and not copied");
        assert_eq!(with(left(10, b"kl...")), b"kl", "there is a gap");
        let with = |room| joined(&[&chunks[..], &[room]].concat(), 9);
        assert_eq!(with(left(6, b"ghi...")), b"abcdefghi", "read and copied");
        assert_eq!(with(left(9, b"......")), b"abcdefghi", "nothing was read");
        assert_eq!(with(left(6, b"")), b"abcdefghi", "a chunk that has nothing yet");
        assert_eq!(joined(&[left(3, b"defghi"), left(6, b"ghi...")], 9), b"defghi");
        assert!(joined(&[], 5).is_empty());
    }

    #[test]
    fn what_was_read_and_not_copied_outlives_the_next_processes_too() -> std::io::Result<()> {
        let register = Register::new(2, 1)?;
        let all = [&[1; 100][..], b"read"].concat();
        let store = Store::of(&register);
        let mut writer = store.writer(7).expect("a pool");
        let copied = writer.write(0, &all[..100]);
        let (mut scratch, other) = (store.scratch(), store.scratch());
        scratch.note(7, 100);
        scratch[..4].copy_from_slice(&all[100..]);
        std::mem::forget((copied, writer, scratch, other, store));
        for _process in 0..3 {
            let store = Store::of(&register);
            // A new room, of this or another worker, contains nothing that another process has
            // read.
            let mut rooms = [store.scratch(), store.scratch()];
            rooms.iter_mut().for_each(|room| room.fill(9));
            let pieces = store.take(7, 104);
            assert_eq!(pieces.iter().flatten().copied().collect::<Vec<_>>(), all);
            std::mem::forget((pieces, rooms, store));
        }
        Ok(())
    }
}
