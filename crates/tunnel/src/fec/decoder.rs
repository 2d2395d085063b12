//! The receiver's equations: which repairs have arrived, and which datagrams they recover.

use super::SPAN;
use super::encoder::add_symbol;
use super::field::{add_multiple, coefficient, inverse, scale};
use super::wire::{LENGTH_LEN, NUMBERS, Repair};
use bytes::Bytes;

/// Sums that may wait for others.
const EQUATIONS_MAX: usize = 64;

/// What comes back behind so many newer ones is of no use to QUIC: it may have shortened the datagram's
/// number to a byte, which names another by then (RFC 9000 §17.1).
const LATE_MAX: u64 = 120;

/// A sum of datagrams that are all unknown.
#[derive(Debug)]
struct Equation {
    /// The datagram for which it stands: its coefficient is one here and zero in every other equation.
    pivot: usize,
    /// By place.
    coefficients: [u8; SPAN],
    symbol: Vec<u8>,
}

/// What is known of one of the last [`SPAN`] datagrams.
#[derive(Debug, Clone, Default)]
struct Place {
    /// Which one stands here. Counted from the first that came, without end.
    number: u64,
    known: bool,
    datagram: Vec<u8>,
}

/// The last datagrams, and the sums that wait.
///
/// Invariant: equations name none but unknown datagrams of the span, and each has a pivot of its own.
#[derive(Debug)]
pub(super) struct Decoder {
    places: Vec<Place>,
    equations: Vec<Equation>,
    /// The newest datagram heard of, `None` before the first.
    newest: Option<u64>,
}

impl Decoder {
    pub fn new() -> Self {
        Self { places: vec![Place::default(); SPAN], equations: Vec::new(), newest: None }
    }

    /// A datagram has come. What it lets out of the sums is handed to `give`.
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
            // What stood for this datagram looks for another.
            if equation.pivot == at {
                freed.push(self.equations.swap_remove(index));
            } else {
                index += 1;
            }
        }
        freed.into_iter().for_each(|equation| self.insert(equation));
        self.solve(give);
    }

    /// A sum has come, whose last datagram is `last`.
    pub fn on_repair(&mut self, last: u64, repair: &Repair, give: impl FnMut(Bytes)) {
        self.advance(last);
        let Some(first) = (last + 1).checked_sub(repair.count.into()) else { return };
        if !self.is_in_span(first) {
            return;
        }
        // Nothing is missing: nothing is to be summed up.
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

    /// Takes an equation, less what the others say already.
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
            // More is lost than will be repaired: what has waited longest goes.
            let number = |equation: &Equation| self.places[equation.pivot].number;
            let ages = self.equations.iter().map(number).zip(0..);
            if let Some((_, oldest)) = ages.min() {
                self.equations.swap_remove(oldest);
            }
        }
        self.equations.push(equation);
    }

    /// Hands out what stands alone.
    fn solve(&mut self, mut give: impl FnMut(Bytes)) {
        let mut index = 0;
        while let Some(equation) = self.equations.get(index) {
            if !equation.is_solved() {
                index += 1;
                continue;
            }
            let equation = self.equations.swap_remove(index);
            // Whether it is a datagram shows in its length and in what must be nothing behind it.
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

    /// Makes room for all up to `number`.
    fn advance(&mut self, number: u64) {
        let from = match self.newest {
            Some(newest) if number <= newest => return,
            Some(newest) if number - newest < SPAN as u64 => newest + 1,
            // So far ahead that nothing of what is here helps. The first comes with a span that has
            // nothing in it.
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

    /// A datagram is too old to be waited for: what one equation says of it is taken out of the others.
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
    /// Takes out of this what `other` stands for.
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

    /// Whether nothing but its pivot is in it.
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

    /// One direction without a clock: what is sent, and what comes out of it.
    struct Way {
        encoder: Encoder,
        sequence: Sequence,
        decoder: Decoder,
        sent: u32,
        given: Vec<Bytes>,
    }

    /// No two alike, and of any length.
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
        // Calculated apart from this code; coefficients 0x1b, 0x54, 0xa1 and 0x54, 0x1b, 0x1d.
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
            // Anywhere among the numbers, with a window before that is no part of it.
            for _ in 0..start {
                let packet = way.source(5);
                way.come(&packet);
            }
            way.encoder.begin_again();
            let mut packets: Vec<Bytes> = lens.iter().map(|len| way.source(*len)).collect();
            packets.extend((0..repairs).map(|_| way.repair()));
            // As many as there are repairs may go, whichever they are.
            let mut lost = BTreeSet::new();
            for index in losses.iter().take(repairs) {
                lost.insert(index.index(packets.len()));
            }
            let mut left: Vec<usize> = (0..packets.len()).filter(|at| !lost.contains(at)).collect();
            // And the rest may come in any order.
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
