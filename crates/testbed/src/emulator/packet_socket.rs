//! Raw frames in and out of one device: AF_PACKET, in batches, with arrival stamps.
#![expect(unsafe_code, reason = "packet sockets and sendmmsg have no safe wrapper")]

use super::frame::{Frame, Frames};
use super::ring::{Ring, Taken};
use midhop_linux::sockopt;
use midhop_units::Instant;
use nix::net::if_::if_nametoindex;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, mem, ptr};

/// Frames per system call.
const BATCH: usize = 32;
/// Frames received before any is sent: the ring has to be emptied faster than it can fill.
const INTAKE: usize = 256;
/// Room for frames on their way to the far device. Unit: bytes.
const SEND_BUFFER: libc::c_int = 4 << 20;

// From linux/if_packet.h; libc does not carry them all.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket that sees every frame that a device receives and sends frames out of it.
pub(super) struct PacketSocket {
    fd: OwnedFd,
    ring: Ring,
    dropped: u64,
}

/// A frame and the time at which the kernel received it.
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) frame: Frame,
}

impl PacketSocket {
    /// Opens a socket on a device of the namespace that this thread is in, for packets of up to `mtu`
    /// bytes, `burst` of which may come at once.
    pub(super) fn open(interface: &str, mtu: usize, burst: u64) -> io::Result<Self> {
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
        let set = |level, option, value| sockopt::set_int(&fd, level, option, value);
        set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        set(libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1)?;
        // Beyond the host's limit where this is permitted, otherwise up to it.
        if set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER).is_err() {
            set(libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
        }
        let ring = Ring::open(fd.as_fd(), mtu, burst)?;
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address and its size belong together and outlive the call.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd, ring, dropped: 0 })
    }

    /// Takes what has arrived, at most one intake, oldest first.
    ///
    /// `real_ahead_ns`: how far the wall clock, which stamps arrivals, is ahead of the monotonic
    /// clock.
    pub(super) fn receive(
        &mut self,
        real_ahead_ns: i128,
        frames: &Frames,
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<()> {
        while arrivals.len() < INTAKE {
            let Some(Taken { frame, real_ns }) = self.ring.take(frames)? else { break };
            let own_ns = u64::try_from(real_ns - real_ahead_ns).unwrap_or(0);
            arrivals.push(Arrival { at: Instant::from_ns(own_ns), frame });
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

    /// Takes the socket's pending error, for example that the device is gone.
    ///
    /// # Errors
    /// That error.
    pub(super) fn check(&self) -> io::Result<()> {
        sockopt::take_error(&self.fd)?.map_or(Ok(()), Err)
    }

    /// Frames that the kernel dropped because the emulator did not take them in time, so far.
    pub(super) fn dropped(&mut self) -> io::Result<u64> {
        // `struct tpacket_stats`: packets, drops. Reading resets both.
        let mut statistics = [0; 8];
        sockopt::read(&self.fd, libc::SOL_PACKET, PACKET_STATISTICS, &mut statistics)?;
        let [.., a, b, c, d] = statistics;
        self.dropped += u64::from(u32::from_ne_bytes([a, b, c, d]));
        Ok(self.dropped)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
