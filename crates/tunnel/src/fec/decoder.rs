//! The receiver's equations: which repairs have arrived, and which datagrams they recover.

use super::SPAN;
use super::encoder::add_symbol;
use super::field::{add_multiple, coefficient, inverse, scale};
use super::wire::{LENGTH_LEN, NUMBERS, Repair};
use bytes::Bytes;

/// Equations that may wait for others.
const EQUATIONS_MAX: usize = 64;

/// A datagram recovered behind so many newer ones is useless to QUIC. QUIC may have shortened the packet number to
/// one byte, which by then stands for another packet (RFC 9000 §17.1).
const LATE_MAX: u64 = 120;

/// A sum of unknown datagrams.
#[derive(Debug)]
struct Equation {
    /// The datagram that this equation solves for: its coefficient is one here and zero in every other equation.
    pivot: usize,
    /// By place.
    coefficients: [u8; SPAN],
    symbol: Vec<u8>,
}

/// The state of one of the last [`SPAN`] datagrams.
#[derive(Debug, Clone, Default)]
struct Place {
    /// Its number, counted from the first datagram received, without wrapping.
    number: u64,
    known: bool,
    datagram: Vec<u8>,
}

/// The last datagrams, and the equations that wait.
///
/// Invariant: equations contain only unknown datagrams of the span, and each has a pivot of its own.
#[derive(Debug)]
pub(super) struct Decoder {
    places: Vec<Place>,
    equations: Vec<Equation>,
    /// The newest datagram known, `None` before the first.
    newest: Option<u64>,
}

impl Decoder {
    pub fn new() -> Self {
        Self { places: vec![Place::default(); SPAN], equations: Vec::new(), newest: None }
    }

    /// A datagram has arrived. Passes the datagrams that it makes solvable to `give`.
    pub fn on_source(&mut self, number: u64, datagram: &[u8], give: impl FnMut(Bytes)) {
        self.advance(number);
        if !self.is_in_span(number) || self.is_known(number) {
            return;
        }
        self.learn(number, datagram);
        let at = place(number);
        let mut freed = Vec::new();
        let mut index = 0;
        while let Some(equation) = self.equations.get_mut(index) {
            let factor = std::mem::take(&mut equation.coefficients[at]);
            add_symbol(&mut equation.symbol, datagram, factor);
            // The equation with this pivot needs another one.
            if equation.pivot == at {
                freed.push(self.equations.swap_remove(index));
            } else {
                index += 1;
            }
        }
        freed.into_iter().for_each(|equation| self.insert(equation));
        self.solve(give);
    }

    /// A repair has arrived, whose last datagram is `last`.
    pub fn on_repair(&mut self, last: u64, repair: &Repair, give: impl FnMut(Bytes)) {
        self.advance(last);
        let Some(first) = (last + 1).checked_sub(repair.count.into()) else { return };
        if !self.is_in_span(first) {
            return;
        }
        // Nothing is missing: the repair is not needed.
        if (first..=last).all(|number| self.is_known(number)) {
            return;
        }
        let mut symbol = repair.symbol.to_vec();
        let mut coefficients = [0; SPAN];
        for number in first..=last {
            let factor = coefficient(repair.index, (number % u64::from(NUMBERS)) as u32);
            let known = &self.places[place(number)];
            if known.known {
                add_symbol(&mut symbol, &known.datagram, factor);
            } else {
                coefficients[place(number)] = factor;
            }
        }
        self.insert(Equation { pivot: 0, coefficients, symbol });
        self.solve(give);
    }

    /// Inserts an equation, reduced by the others.
    fn insert(&mut self, mut equation: Equation) {
        for other in &self.equations {
            equation.subtract(other);
        }
        let Some(pivot) = equation.coefficients.iter().position(|factor| *factor != 0) else {
            return;
        };
        equation.pivot = pivot;
        let factor = inverse(equation.coefficients[pivot]);
        scale(&mut equation.coefficients, factor);
        scale(&mut equation.symbol, factor);
        for other in &mut self.equations {
            other.subtract(&equation);
        }
        if self.equations.len() == EQUATIONS_MAX {
            // More is lost than will be repaired: drop the oldest equation.
            let number = |equation: &Equation| self.places[equation.pivot].number;
            let ages = self.equations.iter().map(number).zip(0..);
            if let Some((_, oldest)) = ages.min() {
                self.equations.swap_remove(oldest);
            }
        }
        self.equations.push(equation);
    }

    /// Delivers the datagrams whose equations are solved.
    fn solve(&mut self, mut give: impl FnMut(Bytes)) {
        let mut index = 0;
        while let Some(equation) = self.equations.get(index) {
            if !equation.is_solved() {
                index += 1;
                continue;
            }
            let equation = self.equations.swap_remove(index);
            // A valid datagram has a valid length, and only zeros behind it.
            let Some((length, rest)) = equation.symbol.split_first_chunk() else { continue };
            let length = usize::from(u16::from_be_bytes(*length));
            if length == 0 || length > rest.len() || rest[length..].iter().any(|byte| *byte != 0) {
                continue;
            }
            let number = self.places[equation.pivot].number;
            self.learn(number, &rest[..length]);
            if number + LATE_MAX >= self.newest.unwrap_or(0) {
                let mut symbol = Bytes::from(equation.symbol);
                give(symbol.split_off(LENGTH_LEN).slice(..length));
            }
        }
    }

    fn learn(&mut self, number: u64, datagram: &[u8]) {
        let place = &mut self.places[place(number)];
        place.known = true;
        place.datagram.clear();
        place.datagram.extend_from_slice(datagram);
    }

    /// Moves the span forward to end at `number`.
    fn advance(&mut self, number: u64) {
        let from = match self.newest {
            Some(newest) if number <= newest => return,
            Some(newest) if number - newest < SPAN as u64 => newest + 1,
            // So far ahead that no stored datagram helps. The first datagram starts with an empty span.
            _ => {
                self.equations.clear();
                (number + 1).saturating_sub(SPAN as u64)
            }
        };
        self.newest = Some(number);
        for number in from..=number {
            self.forget(place(number));
            let place = &mut self.places[place(number)];
            place.number = number;
            place.known = false;
        }
    }

    /// A datagram is too old to wait for: eliminates it from all equations by means of one of them.
    fn forget(&mut self, at: usize) {
        let names_it = |equation: &Equation| equation.coefficients[at] != 0;
        let own = |equation: &Equation| equation.pivot == at;
        let found = self.equations.iter().position(own);
        let Some(index) = found.or_else(|| self.equations.iter().position(names_it)) else {
            return;
        };
        let mut gone = self.equations.swap_remove(index);
        let factor = inverse(gone.coefficients[at]);
        scale(&mut gone.coefficients, factor);
        scale(&mut gone.symbol, factor);
        gone.pivot = at;
        for equation in &mut self.equations {
            equation.subtract(&gone);
        }
    }

    fn is_in_span(&self, number: u64) -> bool {
        self.places[place(number)].number == number
    }

    fn is_known(&self, number: u64) -> bool {
        self.places[place(number)].known
    }
}

impl Equation {
    /// Subtracts a multiple of `other`, so that the pivot of `other` disappears here.
    fn subtract(&mut self, other: &Self) {
        let factor = self.coefficients[other.pivot];
        if factor == 0 {
            return;
        }
        add_multiple(&mut self.coefficients, &other.coefficients, factor);
        if self.symbol.len() < other.symbol.len() {
            self.symbol.resize(other.symbol.len(), 0);
        }
        add_multiple(&mut self.symbol, &other.symbol, factor);
    }

    /// Whether it contains only its pivot.
    fn is_solved(&self) -> bool {
        self.coefficients.iter().filter(|factor| **factor != 0).count() == 1
    }
}

fn place(number: u64) -> usize {
    (number % SPAN as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::encoder::Encoder;
    use crate::fec::tally::Sequence;
    use crate::fec::wire::Packet;
    use midhop_units::Instant;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// One direction without a clock: what is sent, and what the receiver recovers.
    struct Way {
        encoder: Encoder,
        sequence: Sequence,
        decoder: Decoder,
        sent: u32,
        given: Vec<Bytes>,
    }

    /// All different, and of any length.
    fn datagram(number: u32, len: usize) -> Vec<u8> {
        let own = number.to_be_bytes();
        own.into_iter().chain((0..len).map(|at| (at as u32 * 31 + number * 7) as u8)).collect()
    }

    impl Way {
        fn new() -> Self {
            Self {
                encoder: Encoder::default(),
                sequence: Sequence::default(),
                decoder: Decoder::new(),
                sent: 0,
                given: Vec::new(),
            }
        }

        fn source(&mut self, len: usize) -> Bytes {
            self.sent += 1;
            self.encoder.take(Instant::START, &datagram(self.sent - 1, len))
        }

        fn repair(&mut self) -> Bytes {
            self.encoder.repair().expect("a window").written()
        }

        fn come(&mut self, packet: &Bytes) {
            let given = &mut self.given;
            match Packet::parse(packet.clone()).expect("a packet") {
                Packet::Source { number, datagram } => {
                    let Some(number) = self.sequence.admit(number) else { return };
                    self.decoder.on_source(number, &datagram, |bytes| given.push(bytes));
                }
                Packet::Repair(repair) => {
                    let last = (repair.first + u32::from(repair.count) - 1) % NUMBERS;
                    let Some(last) = self.sequence.admit(last) else { return };
                    self.decoder.on_repair(last, &repair, |bytes| given.push(bytes));
                }
                other => panic!("{other:?}"),
            }
            assert!(self.decoder.equations.len() <= EQUATIONS_MAX);
            for equation in &self.decoder.equations {
                assert_eq!(equation.coefficients[equation.pivot], 1);
                let names = |other: &&Equation| other.coefficients[equation.pivot] != 0;
                assert_eq!(self.decoder.equations.iter().filter(names).count(), 1);
                let known =
                    |(at, factor): (usize, &u8)| *factor != 0 && self.decoder.places[at].known;
                assert!(!equation.coefficients.iter().enumerate().any(known));
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_specification() {
        let mut way = Way::new();
        for len in [0, 2, 1] {
            way.source(len);
        }
        // Calculated independently of this code; coefficients 0x1b, 0x54, 0xa1 and 0x54, 0x1b, 0x1d.
        let first = b"\xa0\0\0\x03\0\0\x96\0\0\0\x0b\x31\xb7";
        let second = b"\xa0\0\0\x03\x01\0\x7e\0\0\0\x21\xe7\x1d";
        assert_eq!((way.repair().as_ref(), way.repair().as_ref()), (&first[..], &second[..]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn any_loss_within_the_redundancy_is_repaired(
            lens in proptest::collection::vec(0_usize..60, 1..121),
            repairs in 1_usize..65,
            losses in proptest::collection::vec(any::<prop::sample::Index>(), 0..64),
            order in any::<u64>(),
            start in 0_u32..200,
        ) {
            let mut way = Way::new();
            // Starts anywhere in the number space, behind an earlier window.
            for _ in 0..start {
                let packet = way.source(5);
                way.come(&packet);
            }
            way.encoder.begin_again();
            let mut packets: Vec<Bytes> = lens.iter().map(|len| way.source(*len)).collect();
            packets.extend((0..repairs).map(|_| way.repair()));
            // Up to as many datagrams as there are repairs may be lost, in any combination.
            let mut lost = BTreeSet::new();
            for index in losses.iter().take(repairs) {
                lost.insert(index.index(packets.len()));
            }
            let mut left: Vec<usize> = (0..packets.len()).filter(|at| !lost.contains(at)).collect();
            // The rest may arrive in any order.
            left.sort_by_key(|at| (*at as u64 + 1).wrapping_mul(order | 1) >> 32);
            left.iter().for_each(|at| way.come(&packets[*at]));
            let given: BTreeSet<Vec<u8>> = way.given.iter().map(|bytes| bytes.to_vec()).collect();
            for at in lost.into_iter().filter(|at| *at < lens.len()) {
                let missing = datagram(start + at as u32, lens[at]);
                prop_assert!(given.contains(&missing), "{} of {}", at, lens.len());
            }
        }

        #[test]
        fn nothing_is_given_back_that_was_not_sent(
            steps in proptest::collection::vec((0_usize..40, 0_u8..10, 0_u8..10, 0_usize..4), 1..600),
            every in 2_usize..12,
        ) {
            let mut way = Way::new();
            let mut late: Vec<(usize, Bytes)> = Vec::new();
            for (step, (len, fate, of_repair, delay)) in steps.iter().copied().enumerate() {
                let mut packets = vec![(way.source(len), fate)];
                if step % every == 0 {
                    packets.push((way.repair(), of_repair));
                }
                for (packet, fate) in packets {
                    match fate {
                        0 | 1 => {}
                        // Late, or there twice.
                        2 => late.push((step + delay * delay * 20, packet)),
                        3 => {
                            way.come(&packet);
                            late.push((step + delay, packet));
                        }
                        _ => way.come(&packet),
                    }
                }
                let due: Vec<Bytes> =
                    late.extract_if(.., |(at, _)| *at <= step).map(|(_, packet)| packet).collect();
                due.iter().for_each(|packet| way.come(packet));
            }
            for bytes in &way.given {
                let number = u32::from_be_bytes(*bytes.first_chunk().expect("a number"));
                let len = steps[number as usize].0;
                prop_assert_eq!(bytes.to_vec(), datagram(number, len));
            }
        }
    }
}
