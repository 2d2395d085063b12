//! Memory that the kernel receives frames into (PACKET_RX_RING, `TPACKET_V2`).
//!
//! A ring can be larger than the socket buffer that an ordinary user may have, so that frames wait
//! in it while the emulator does not get the processor. Reading it takes no system call.
//!
//! Nothing limits the rate at which a host sends into a virtual pair. Packets that a real wire
//! would spread arrive at once: a whole window, where the acknowledgements came together. So a ring
//! has room for what may wait before its link. The link itself drops and counts what exceeds that.
#![expect(unsafe_code, reason = "the kernel and this process share the ring's memory")]

use super::frame::{Frame, Frames};
use midhop_linux::sockopt;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Frames that wait at least in a ring: 50 ms of full packets at 1 Gbit/s.
const SLOTS_MIN: usize = 4096;
/// Maximum number of slots in a ring. A power of two, and 64 MiB where packets are no longer than
/// 1.9 kB.
const SLOTS_MAX: usize = 32_768;
/// Unit in which the kernel allocates. Unit: bytes.
const BLOCK: usize = 64 << 10;
/// Space before the packet in a slot, rounded up: header, address, Ethernet header.
const OVERHEAD: usize = 128;

// From linux/if_packet.h.
const PACKET_RX_RING: libc::c_int = 5;
const PACKET_VERSION: libc::c_int = 10;
const TPACKET_V2: libc::c_int = 1;
const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;

/// `struct tpacket2_hdr`, behind its status word.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    length: u32,
    captured: u32,
    frame_offset: u16,
    packet_offset: u16,
    seconds: u32,
    nanoseconds: u32,
}

/// The ring of one socket.
pub(super) struct Ring {
    memory: NonNull<c_void>,
    length: NonZeroUsize,
    slot_size: usize,
    slots: usize,
    next: usize,
}

/// The contents of a slot.
pub(super) struct Taken {
    pub(super) frame: Frame,
    /// When the kernel got it, by the wall clock. Unit: nanoseconds.
    pub(super) real_ns: i128,
}

impl Ring {
    /// Gives a socket a ring for packets of up to `mtu` bytes. It has at least `burst` slots, but
    /// no more than [`SLOTS_MAX`].
    pub(super) fn open(socket: BorrowedFd<'_>, mtu: usize, burst: u64) -> io::Result<Self> {
        let burst = usize::try_from(burst).unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
        let slots = burst.next_power_of_two().clamp(SLOTS_MIN, SLOTS_MAX);
        sockopt::set_int(socket, libc::SOL_PACKET, PACKET_VERSION, TPACKET_V2)?;
        let slot_size = (mtu + OVERHEAD).next_power_of_two().max(2048);
        let block_size = BLOCK.max(slot_size);
        let bytes = slot_size * slots;
        // `struct tpacket_req`: the size of a block, blocks, the size of a slot, slots.
        let mut request = Vec::with_capacity(16);
        for field in [block_size, bytes / block_size, slot_size, slots] {
            let field = u32::try_from(field).map_err(|_| io::ErrorKind::InvalidInput)?;
            request.extend_from_slice(&field.to_ne_bytes());
        }
        sockopt::set(socket, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let memory = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, socket, 0) }?;
        let ring = Self { memory, length, slot_size, slots, next: 0 };
        // The rings of a few runs are gigabytes, and each program is started by a fork. The fork
        // would copy their page tables while other threads wait for memory.
        // SAFETY: the mapping is the one above; only a child would miss it, and none uses a ring.
        unsafe { madvise(memory, length.get(), MmapAdvise::MADV_DONTFORK) }?;
        Ok(ring)
    }

    /// Takes the oldest frame that waits, and gives its slot back to the kernel.
    ///
    /// # Errors
    /// When a frame is longer than `frames` have room for.
    pub(super) fn take(&mut self, frames: &Frames) -> io::Result<Option<Taken>> {
        // SAFETY: `next` is below `slots`, and the mapping holds that many slots of this size.
        let slot = unsafe { self.memory.byte_add(self.next * self.slot_size) };
        // SAFETY: a slot begins with its status word, aligned as the slot; the kernel changes it as an
        // atomic does, and nobody makes a plain reference to it.
        let status = unsafe { slot.cast::<AtomicU32>().as_ref() };
        if status.load(Ordering::Acquire) & STATUS_USER == 0 {
            return Ok(None);
        }
        // SAFETY: the status says that the slot is ours: the kernel has written its header, which lies
        // behind the status word, and does not touch it until the status is given back.
        let header = unsafe { slot.byte_add(size_of::<AtomicU32>()).cast::<Header>().read() };
        let (offset, length) = (usize::from(header.frame_offset), header.captured as usize);
        let mut frame = frames.take();
        let room = frame.room();
        if header.captured < header.length
            || length > room.len()
            || offset + length > self.slot_size
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a frame of {} bytes is longer than the device allows", header.length),
            ));
        }
        // SAFETY: offset and length lie within the slot (checked above), which is still ours; nobody
        // writes to it meanwhile.
        let bytes = unsafe {
            std::slice::from_raw_parts(slot.byte_add(offset).cast::<u8>().as_ptr(), length)
        };
        room[..length].copy_from_slice(bytes);
        frame.set_len(length);
        status.store(STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        let real_ns = i128::from(header.seconds) * 1_000_000_000 + i128::from(header.nanoseconds);
        Ok(Some(Taken { frame, real_ns }))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and no reference into it is left.
        let _ = unsafe { munmap(self.memory, self.length.get()) };
    }
}
