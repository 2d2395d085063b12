//! Memory that outlives the process which writes it: words in a file that is in memory only (`memfd_create(2)`).
//!
//! Invariant: the file can neither shrink nor grow, so that no access of the mapping fails.
#![expect(unsafe_code, reason = "memory is mapped, and read as words")]

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The seals that keep an access of the mapping from failing.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Words that are 0 at first. Processes that share the mapping, or the descriptor, see each other's.
#[derive(Debug)]
pub struct SharedWords {
    file: OwnedFd,
    start: NonNull<c_void>,
    words: usize,
}

// SAFETY: the mapping belongs to the value until it is dropped, and all access to it is atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Memory of so many words. Pages that nobody has written take no memory.
    ///
    /// # Errors
    /// When there are none, or the kernel has no such memory.
    pub fn new(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let length = i64::try_from(bytes.get()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"midhop", flags)?;
        ftruncate(&file, length)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS | SealFlag::F_SEAL_SEAL))?;
        Self::map(file, bytes, words)
    }

    /// Words that another process has made. The end of a file that is no whole word is left out.
    ///
    /// # Errors
    /// When the file may shrink or grow, is too short for a word, or the kernel cannot map it.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS)?;
        if !SealFlag::from_bits_truncate(seals).contains(SEALS) {
            return Err(io::Error::other("the file may shrink or grow"));
        }
        let length = usize::try_from(fstat(&file)?.st_size).map_err(io::Error::other)?;
        let words = length / size_of::<AtomicU64>();
        let bytes = NonZeroUsize::new(words * size_of::<AtomicU64>());
        Self::map(file, bytes.ok_or(io::ErrorKind::InvalidInput)?, words)
    }

    fn map(file: OwnedFd, bytes: NonZeroUsize, words: usize) -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &file, 0) }?;
        Ok(Self { file, start, words })
    }
}

impl SharedWords {
    /// The start of the mapping, for code that lends parts of it as [bytes](crate::shared_pool).
    pub(crate) fn start(&self) -> NonNull<c_void> {
        self.start
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, is page-aligned, and lives as long as `self`. Any bytes are a valid
        // word, and other processes change them atomically as well.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no borrow of it outlives the value.
        let _ = unsafe { munmap(self.start, self.words * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_and_keep_what_is_written() -> io::Result<()> {
        let words = SharedWords::new(100_000)?;
        assert_eq!(words.len(), 100_000);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words[99_999].store(7, Relaxed);
        assert_eq!(words[99_999].load(Relaxed), 7);
        assert!(ftruncate(&words, 8).is_err(), "it cannot shrink below a reader");
        assert!(SharedWords::new(0).is_err());
        let again = SharedWords::open(words.as_fd().try_clone_to_owned()?)?;
        assert_eq!((again.len(), again[99_999].load(Relaxed)), (100_000, 7));
        Ok(())
    }
}
