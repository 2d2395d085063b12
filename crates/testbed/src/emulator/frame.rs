//! Ethernet frames in reused memory.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

/// Bytes of an Ethernet header.
pub(super) const HEADER: usize = 14;

/// Memory of frames not in use.
type Free = Rc<RefCell<Vec<Box<[u8]>>>>;

/// One frame: memory for the longest frame, of which a part is in use. Dropping it returns its
/// memory to the pool.
#[derive(Debug)]
pub(super) struct Frame {
    memory: Box<[u8]>,
    length: usize,
    home: Free,
}

impl Frame {
    /// All the memory, to receive into.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Sets how much of the memory a received frame fills.
    ///
    /// # Panics
    /// When `length` is more than there is.
    pub(super) fn set_len(&mut self, length: usize) {
        assert!(length <= self.memory.len(), "a frame longer than its memory");
        self.length = length;
    }

    /// The frame's bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }

    /// The frame's bytes, read-only.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }

    /// Replaces the packet behind the Ethernet header. Returns false where it is too long for the
    /// memory.
    pub(super) fn replace_packet(&mut self, packet: &[u8]) -> bool {
        let end = HEADER + packet.len();
        let Some(room) = self.memory.get_mut(HEADER..end) else { return false };
        room.copy_from_slice(packet);
        self.length = end;
        true
    }

    /// The packet's length at the network layer, by which the link counts.
    pub(super) fn packet_len(&self) -> usize {
        self.length.saturating_sub(HEADER)
    }

    /// Whether this is a unicast IP packet. Links carry nothing else. Neighbours are set
    /// statically, so any other frame is the kernel's own. Such frames would draw from the link's
    /// randomness and make runs differ.
    pub(super) fn is_unicast_ip(&self) -> bool {
        let bytes = &self.memory[..self.length];
        let ip = matches!(bytes.get(12..HEADER), Some([0x08, 0x00] | [0x86, 0xdd]));
        ip && bytes[0] & 1 == 0
    }
}

impl Frame {
    /// Sets the CE codepoint if the packet is ECN-capable (RFC 3168 §5), and returns whether it
    /// did.
    pub(super) fn mark(&mut self) -> bool {
        match self.bytes_mut() {
            [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, packet @ ..] => mark_ipv4(packet),
            [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, packet @ ..] => mark_ipv6(packet),
            _ => false,
        }
    }
}

/// The last two bits of the second byte, which the header's checksum covers.
fn mark_ipv4(packet: &mut [u8]) -> bool {
    let Some(header) = packet.get_mut(..20) else { return false };
    if header[1] & 0b11 == 0 {
        return false;
    }
    let before = u16::from_be_bytes([header[0], header[1]]);
    header[1] |= 0b11;
    let after = u16::from_be_bytes([header[0], header[1]]);
    // RFC 1624 §3: HC' = ~(~HC + ~m + m').
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    true
}

/// Bits two and three of the second byte, which no checksum covers.
fn mark_ipv6(packet: &mut [u8]) -> bool {
    let Some(byte) = packet.get_mut(1) else { return false };
    let takes = *byte & 0b0011_0000 != 0;
    if takes {
        *byte |= 0b0011_0000;
    }
    takes
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        let mut copy = take(&self.home, self.memory.len());
        copy.memory[..self.length].copy_from_slice(&self.memory[..self.length]);
        copy.length = self.length;
        copy
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.home.borrow_mut().push(mem::take(&mut self.memory));
    }
}

/// Where frames come from. Grows to the most that were ever in flight and allocates no more after
/// that.
pub(super) struct Frames {
    free: Free,
    size: usize,
}

impl Frames {
    /// A pool for packets of up to `mtu` bytes.
    pub(super) fn new(mtu: usize) -> Self {
        Self { free: Free::default(), size: mtu + HEADER }
    }

    /// An empty frame.
    pub(super) fn take(&self) -> Frame {
        take(&self.free, self.size)
    }
}

fn take(free: &Free, size: usize) -> Frame {
    let memory = free.borrow_mut().pop().unwrap_or_else(|| vec![0; size].into_boxed_slice());
    Frame { memory, length: 0, home: free.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: &[u8]) -> Frame {
        let mut frame = Frames::new(1500).take();
        frame.room()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame
    }

    #[test]
    fn only_ip_to_one_station_is_carried() {
        let to = |first: u8, kind: [u8; 2]| {
            let mut bytes = vec![first, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            bytes.extend(kind);
            bytes.extend([0; 20]);
            frame(&bytes).is_unicast_ip()
        };
        assert!(to(0x02, [0x08, 0x00]));
        assert!(to(0x02, [0x86, 0xdd]));
        assert!(!to(0x02, [0x08, 0x06]), "ARP");
        assert!(!to(0x33, [0x86, 0xdd]), "multicast");
        assert!(!to(0xff, [0x08, 0x00]), "broadcast");
        assert!(!frame(&[2; 13]).is_unicast_ip(), "shorter than a header");
        assert!(!frame(&[]).is_unicast_ip());
    }

    /// The sum that is all ones over a header whose checksum is right.
    fn sum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn packets_whose_ends_take_marks_are_marked_and_stay_whole() {
        // An arbitrary header, with the checksum that fits it.
        let mut header =
            [0x45, 0, 5, 0xdc, 0x1c, 0x46, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 1, 2];
        for (ecn, after, marked) in [(0b01, 0b11, true), (0b10, 0b11, true), (0b00, 0b00, false)] {
            header[1] = 0b1011_1000 | ecn;
            header[10..12].fill(0);
            let checksum = !sum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            let mut bytes = vec![2; 12];
            bytes.extend([0x08, 0x00]);
            bytes.extend(header);
            let mut frame = frame(&bytes);
            assert_eq!(frame.mark(), marked);
            let packet = &frame.bytes_mut()[HEADER..];
            assert_eq!(packet[1], 0b1011_1000 | after);
            assert_eq!(sum(packet), 0xffff, "{ecn}");
        }
        let mut bytes = vec![2; 12];
        bytes.extend([0x86, 0xdd, 0x60, 0b0010_0101, 0, 0]);
        let mut six = frame(&bytes);
        assert!(six.mark());
        assert_eq!(six.bytes_mut()[HEADER + 1], 0b0011_0101);
        assert!(!frame(&bytes[..14]).mark() && !frame(&[]).mark(), "cut short");
    }

    #[test]
    fn memory_is_used_again_and_copies_are_equal() {
        let frames = Frames::new(1500);
        let mut first = frames.take();
        let address = first.room().as_ptr();
        drop(first);
        let mut again = frames.take();
        assert_eq!(again.room().as_ptr(), address);
        again.room()[..3].copy_from_slice(&[1, 2, 3]);
        again.set_len(3);
        let mut copy = again.clone();
        assert_eq!(copy.bytes_mut(), [1, 2, 3]);
        assert_ne!(copy.room().as_ptr(), again.room().as_ptr());
    }
}
