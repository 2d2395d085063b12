//! Raw frames in and out of one device: AF_PACKET, in batches, with arrival stamps.
#![expect(unsafe_code, reason = "recvmmsg and sendmmsg work on arrays of raw headers")]

use super::frame::{Frame, Frames};
use midhop_units::Instant;
use nix::net::if_::if_nametoindex;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, mem, ptr};

/// Frames per system call.
const BATCH: usize = 32;
/// Room for frames that arrive while the emulator is not running.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;

// From linux/if_packet.h; libc does not carry them all.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A control message that holds one `timespec`, aligned as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A socket that sees every frame that a device receives and sends frames out of it.
pub(super) struct PacketSocket {
    fd: OwnedFd,
    /// Frames to receive into; taken out when filled, replaced from the pool.
    empty: Vec<Frame>,
    control: Box<[Control; BATCH]>,
    dropped: u64,
}

/// A frame and when the kernel got it.
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) frame: Frame,
}

impl PacketSocket {
    /// Opens a socket on a device of the namespace that this thread is in.
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        // SAFETY: socket takes no pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                // Protocol 0: nothing arrives before the bind below names the device.
                libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd was just made and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self {
            fd,
            empty: Vec::with_capacity(BATCH),
            control: Box::new([Control([0; 64]); BATCH]),
            dropped: 0,
        };
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        socket.set(libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1)?;
        socket.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        // Past the host's limit where we may, up to it where we may not.
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
        }
        if socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, RECEIVE_BUFFER).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_SNDBUF, RECEIVE_BUFFER)?;
        }
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address and its size belong together and outlive the call.
        let bound = unsafe {
            libc::bind(
                socket.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// Takes what has arrived, at most one batch, oldest first.
    ///
    /// `real_ahead_ns` is by how much the wall clock, which stamps arrivals, is ahead of `now`'s.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        real_ahead_ns: i128,
        frames: &Frames,
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<()> {
        while self.empty.len() < BATCH {
            self.empty.push(frames.take());
        }
        // SAFETY: an all-zero mmsghdr is valid: null pointers with zero lengths.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        for (((header, vector), frame), control) in
            headers.iter_mut().zip(&mut vectors).zip(&mut self.empty).zip(self.control.iter_mut())
        {
            let room = frame.room();
            *vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = control.0.len();
        }
        // SAFETY: each header points to one iovec over a frame's memory and to one control buffer;
        // vectors, frames and control buffers live, unmoved and unshared, until the call returns.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_TRUNC,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        };
        for (mut frame, header) in self.empty.drain(..count).zip(&headers) {
            let length = header.msg_len as usize;
            if length > frame.room().len() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a frame of {length} bytes is longer than the device allows"),
                ));
            }
            frame.set_len(length);
            let at = stamp(&header.msg_hdr).map_or(now, |real_ns| {
                let own = u64::try_from(real_ns - real_ahead_ns).unwrap_or(0);
                Instant::from_ns(own).min(now)
            });
            arrivals.push(Arrival { at, frame });
        }
        Ok(())
    }

    /// Sends frames, at most one batch, in order. Returns how many left.
    pub(super) fn send(&self, frames: &mut [Frame]) -> io::Result<usize> {
        // SAFETY: an all-zero mmsghdr is valid: null pointers with zero lengths.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        let count = frames.len().min(BATCH);
        for ((header, vector), frame) in headers.iter_mut().zip(&mut vectors).zip(frames) {
            let bytes = frame.bytes_mut();
            *vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers point to one iovec each over a frame's bytes; vectors
        // and frames live, unmoved, until the call returns; the kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count as libc::c_uint, 0)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Frames that the kernel dropped because the emulator did not take them in time, so far.
    pub(super) fn dropped(&mut self) -> io::Result<u64> {
        // `struct tpacket_stats`: packets, drops. Reading resets both.
        let mut statistics = [0_u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the buffer is as long as `length` says and outlives the call.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        self.dropped += u64::from(statistics[1]);
        Ok(self.dropped)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the value is an int, as these options ask, and outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The arrival stamp of a received message. Unit: nanoseconds of the wall clock.
fn stamp(message: &libc::msghdr) -> Option<i128> {
    // SAFETY: the kernel filled the control buffer of this message and set its length; the CMSG
    // macros stay inside it, and the data of a SCM_TIMESTAMPNS is one timespec.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = next.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_TIMESTAMPNS
            {
                let time: libc::timespec = ptr::read_unaligned(libc::CMSG_DATA(control).cast());
                return Some(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec));
            }
            next = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}
