//! Pages as users load them: size, number of objects, time to parse and to read.
//!
//! Source: the web browsing model of IEEE 802.16m-08/004, "IEEE 802.16m Evaluation Methodology Document"
//! (2009), section 10.1, which is that of 3GPP2 C.R1002-0, "cdma2000 Evaluation Methodology" (2004), and
//! of 3GPP R1-070674 (2007). There: main objects lognormal (mu 8.37, sigma 1.37, 100 B to 2 MB), embedded
//! objects lognormal (mu 6.17, sigma 2.36, 50 B to 2 MB), their number a Pareto law (shape 1.1, least 2,
//! cut off at 55) less 2, parsing exponential (mean 0.13 s), reading exponential (mean 30 s). The means
//! printed beside them are 10,710 B, 7,758 B and 5.64; the laws as printed, drawn again outside of their
//! bounds, have 11.0 kB, 8.3 kB and 5.64, and 5.2 objects once their number is rounded to an
//! integer.
//!
//! The model has the measured properties: reading times and sizes with heavy tails (B. Mah, "An
//! Empirical Model of HTTP Network Traffic", INFOCOM 1997; P. Barford and M. Crovella, "Generating
//! Representative Web Workloads", SIGMETRICS 1998), pages of a main object and embedded ones (H.-K.
//! Choi and J. Limb, "A Behavioral Model of Web Traffic", ICNP 1999). Differs: connections are used
//! as in current browsers; users begin at random moments of a first reading time, not all at once.

use crate::random::Random;
use midhop_units::Duration;

/// Mean time that a user reads a page.
const READING: Duration = Duration::from_s(30);
/// Mean time that a main object takes to be parsed.
const PARSING: Duration = Duration::from_ms(130);
/// Parallel connections of one page.
pub const CONNECTIONS: usize = 6;
/// The largest object. Unit: bytes.
const OBJECT_MAX: f64 = 2e6;

/// How long a user reads a page.
pub fn reading(random: &mut Random) -> Duration {
    random.time(READING, None)
}

/// How long a main object is parsed.
pub fn parsing(random: &mut Random) -> Duration {
    random.time(PARSING, None)
}

/// The size of a page's main object. Unit: bytes.
pub fn main_object(random: &mut Random) -> u64 {
    random.lognormal(8.37, 1.37, 100.0, OBJECT_MAX) as u64
}

/// The size of an embedded object. Unit: bytes.
fn embedded_object(random: &mut Random) -> u64 {
    random.lognormal(6.17, 2.36, 50.0, OBJECT_MAX) as u64
}

/// The sizes of a page's embedded objects, of which the last is requested first. Unit: bytes.
pub fn embedded_objects(random: &mut Random) -> Vec<u64> {
    let count = embedded_count(random);
    (0..count).map(|_| embedded_object(random)).collect()
}

fn embedded_count(random: &mut Random) -> usize {
    random.pareto_cut(1.1, 2.0, 55.0) as usize - 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::Seed;

    #[test]
    fn pages_are_as_the_model_has_them() {
        let mut random = Random::new(Seed(3), "pages");
        let draws = 200_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Random) -> f64| {
            (0..draws).map(|_| draw(&mut random)).sum::<f64>() / f64::from(draws)
        };
        let main = mean(&mut |random| main_object(random) as f64);
        assert!((10_700.0..11_300.0).contains(&main), "{main}");
        let embedded = mean(&mut |random| embedded_object(random) as f64);
        assert!((7_700.0..8_700.0).contains(&embedded), "{embedded}");
        let count = mean(&mut |random| embedded_count(random) as f64);
        assert!((5.1..5.3).contains(&count), "{count}");
        let most = (0..draws).map(|_| embedded_count(&mut random)).max();
        assert_eq!(most, Some(53));
    }
}
