//! The bits of the firewall mark that are the daemon's own.
//!
//! Invariant: no packet leaves this host with one of them, and none of them replaces a bit that the
//! administrator's rules set.

/// Bits by meaning. A socket's mark names its leg, a packet's mark its destination on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// On sockets: a client's leg.
    pub client: u32,
    /// On sockets: a server's leg.
    pub server: u32,
    /// On packets, between the last chain of prerouting and the first of input: for a socket of this
    /// host.
    pub here: u32,
    /// On packets over the loopback: a SYN that was held.
    pub injected: u32,
    /// On held SYNs: connection tracking knows more of the flow than the packet contains.
    pub noted: u32,
    /// On sockets of servers' legs: the number of the interface on which the flow arrived, from 1.
    /// The bits are contiguous. There may be none.
    arrivals: u32,
}

impl Marks {
    /// Takes the five lowest bits of a mask, which has at least as many. The highest contiguous bits of the rest
    /// number interfaces.
    pub fn new(mask: u32) -> Self {
        let mut rest = mask;
        let mut next = || {
            let lowest = rest & rest.wrapping_neg();
            rest &= !lowest;
            lowest
        };
        let (client, server, here) = (next(), next(), next());
        let (injected, noted) = (next(), next());
        let above = rest.leading_zeros();
        let run = rest.checked_shl(above).unwrap_or(0).leading_ones();
        let arrivals = rest & !u32::MAX.checked_shr(above + run).unwrap_or(0);
        Self { client, server, here, injected, noted, arrivals }
    }

    /// All bits of the daemon.
    pub const fn all(self) -> u32 {
        self.client | self.server | self.here | self.injected | self.noted | self.arrivals
    }

    /// Whether a socket of the daemon may have this mark: it is a leg's mark, and not a packet's.
    pub const fn is_socket(self, mark: u32) -> bool {
        let meaning = mark & !self.arrivals & self.all();
        meaning == self.client || meaning == self.server
    }

    /// The mark of a held SYN that may pass by, on its way from one chain of postrouting to the next.
    pub const fn released(self) -> u32 {
        self.here
    }

    /// The mark of a held SYN whose flow passes by and is assisted, on its way from one chain of postrouting to the
    /// next.
    pub const fn assisted(self) -> u32 {
        self.here | self.client
    }

    /// The mark of packets of assisted flows that this host sends.
    pub const fn mended(self) -> u32 {
        self.injected | self.noted
    }

    /// The mark of an injected SYN that is to be answered with a reset.
    pub const fn refused(self) -> u32 {
        self.injected | self.server
    }

    /// The mark of a SYN to a server that the kernel retransmits while its client is held.
    pub const fn repeated(self) -> u32 {
        self.server | self.noted
    }

    /// The mark of a server's leg whose SYN was held with `mark` and arrived by the intercepted interface `index`.
    /// Routing rules see the administrator's bits.
    pub fn departing(self, mark: u32, index: Option<usize>) -> u32 {
        let arrival = index.and_then(|index| self.arrival(index)).map_or(0, |(number, _)| number);
        mark & !self.all() | self.server | arrival
    }

    /// The number of an interface among those intercepted, and the bits that hold such numbers. None where there are
    /// too few bits.
    pub fn arrival(self, index: usize) -> Option<(u32, u32)> {
        let shift = self.arrivals.trailing_zeros();
        let number = u32::try_from(index + 1).ok()?;
        let placed = number.checked_shl(shift)?;
        (self.arrivals != 0 && placed >> shift == number && placed & !self.arrivals == 0)
            .then_some((placed, self.arrivals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_bit_of_its_own_inside_the_mask() {
        for mask in [0x1f00_0000, 0x8421_0001, u32::MAX, 0xff00_0000] {
            let marks = Marks::new(mask);
            let five = [marks.client, marks.server, marks.here, marks.injected, marks.noted];
            assert_eq!(five.iter().fold(0, |all, bit| all | bit).count_ones(), 5, "{mask:#x}");
            assert_eq!(marks.all() & !mask, 0, "{mask:#x}");
        }
    }

    #[test]
    fn interfaces_have_numbers_where_there_are_bits() {
        assert_eq!(Marks::new(0x1f00_0000).arrival(0), None);
        let marks = Marks::new(0xff00_0000);
        assert_eq!(marks.arrival(0), Some((0x2000_0000, 0xe000_0000)));
        assert_eq!(marks.arrival(6), Some((0xe000_0000, 0xe000_0000)));
        assert_eq!(marks.arrival(7), None);
    }

    #[test]
    fn the_administrators_bits_go_on() {
        let marks = Marks::new(0x1f00_0000);
        assert_eq!(marks.departing(0x42 | marks.noted, Some(0)), 0x42 | marks.server);
    }
}
