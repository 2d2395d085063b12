//! The integer laws by name, and vectors to compare any implementation of them with.
//!
//! A law here takes and returns plain 32-bit numbers, so that a program in another language (the BPF
//! programs of midhop-bpf) can run on the same inputs. A vector is one line of the files in
//! `vectors/`: `law inputs… = outputs…`; a remark follows `#`.

use crate::{hybla, hybla_linux, prr, vegas, westwood};

/// The files in `vectors/`, by name.
pub const FILES: [(&str, &str); 5] = [
    ("hybla.txt", include_str!("../vectors/hybla.txt")),
    ("hybla_linux.txt", include_str!("../vectors/hybla_linux.txt")),
    ("prr.txt", include_str!("../vectors/prr.txt")),
    ("vegas.txt", include_str!("../vectors/vegas.txt")),
    ("westwood.txt", include_str!("../vectors/westwood.txt")),
];

/// The most numbers that a law takes or returns.
pub const NUMBERS_MAX: usize = 8;

/// One law: a function from numbers to numbers.
#[derive(Debug, Clone, Copy)]
pub struct VectorLaw {
    /// Its name in the files, and of its BPF program.
    pub name: &'static str,
    /// How many numbers it takes.
    pub takes: usize,
    /// The law; reads the first [`takes`](Self::takes) numbers.
    pub evaluate: fn(&[u32; NUMBERS_MAX]) -> Vec<u32>,
}

/// Every law.
pub const LAWS: [VectorLaw; 27] = [
    VectorLaw { name: "hybla_rho", takes: 2, evaluate: |i| vec![hybla::rho_q10(i[0], i[1])] },
    VectorLaw { name: "hybla_power", takes: 1, evaluate: |i| vec![hybla::power_of_two_q16(i[0])] },
    VectorLaw { name: "hybla_gain", takes: 2, evaluate: |i| vec![hybla::gain_q10(i[0], i[1])] },
    VectorLaw { name: "hybla_grow", takes: 7, evaluate: hybla_grow },
    VectorLaw { name: "hybla_after_loss", takes: 1, evaluate: |i| vec![crate::reno::halve(i[0])] },
    VectorLaw {
        name: "hybla_bdp",
        takes: 3,
        evaluate: |i| vec![hybla::bdp(i[0].into(), i[1], i[2])],
    },
    VectorLaw {
        name: "hybla_queue_seen",
        takes: 2,
        evaluate: |i| vec![hybla::queue_seen(i[0], i[1]).into()],
    },
    VectorLaw { name: "hybla_min_rtt", takes: 6, evaluate: hybla_min_rtt },
    VectorLaw {
        name: "hybla_carried",
        takes: 3,
        evaluate: |i| vec![hybla::carried(i[0], i[1], i[2])],
    },
    VectorLaw { name: "hybla_carried_update", takes: 5, evaluate: hybla_carried_update },
    VectorLaw { name: "hybla_kept", takes: 2, evaluate: |i| vec![hybla::kept(i[0], i[1])] },
    VectorLaw {
        name: "hybla_fit",
        takes: 4,
        evaluate: |i| vec![hybla::fit(i[0], i[1], i[2], i[3] != 0)],
    },
    VectorLaw { name: "hybla_retreat", takes: 2, evaluate: |i| vec![hybla::retreat(i[0], i[1])] },
    VectorLaw {
        name: "hybla_tolerated",
        takes: 3,
        evaluate: |i| vec![hybla::tolerated(i[0], i[1], i[2]).into()],
    },
    VectorLaw {
        name: "hybla_pacing",
        takes: 3,
        evaluate: |i| vec![hybla::pacing_q10(i[0], i[1], i[2])],
    },
    VectorLaw { name: "prr_window", takes: 7, evaluate: prr_window },
    VectorLaw { name: "hybla_linux_rho", takes: 2, evaluate: hybla_linux_rho },
    VectorLaw {
        name: "hybla_linux_slow_start",
        takes: 2,
        evaluate: |i| vec![hybla_linux::Rho::new(i[0], i[1]).slow_start_increment()],
    },
    VectorLaw {
        name: "hybla_linux_avoidance",
        takes: 3,
        evaluate: |i| vec![hybla_linux::Rho::new(i[0], i[1]).avoidance_increment(i[2])],
    },
    VectorLaw { name: "hybla_linux_grow", takes: 6, evaluate: hybla_linux_grow },
    VectorLaw {
        name: "vegas_queued",
        takes: 3,
        evaluate: |i| vec![vegas::queued(i[0], i[1], i[2])],
    },
    VectorLaw { name: "vegas_decide", takes: 7, evaluate: vegas_decide },
    VectorLaw {
        name: "vegas_threshold",
        takes: 2,
        evaluate: |i| vec![vegas::threshold(i[0], i[1])],
    },
    VectorLaw { name: "westwood_filter", takes: 3, evaluate: westwood_filter },
    VectorLaw {
        name: "westwood_sample_due",
        takes: 2,
        evaluate: |i| vec![westwood::sample_due(i[0], i[1]).into()],
    },
    VectorLaw { name: "westwood_delivered", takes: 4, evaluate: westwood_delivered },
    VectorLaw {
        name: "westwood_window",
        takes: 3,
        evaluate: |i| vec![westwood::Filter { once: 0, twice: i[0] }.window(i[1], i[2])],
    },
];

/// One line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// Its place: file and line, for messages.
    pub place: String,
    /// The law.
    pub law: String,
    /// Its inputs, zeros after.
    pub inputs: [u32; NUMBERS_MAX],
    /// Its outputs.
    pub outputs: Vec<u32>,
}

/// Reads the vectors of one file.
///
/// # Errors
/// The place and the text of the first line that is not a vector of a known law.
pub fn read(file: &str, text: &str) -> Result<Vec<Vector>, String> {
    let mut vectors = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            let place = format!("{file}:{}", number + 1);
            vectors.push(read_line(&place, line).ok_or_else(|| format!("{place}: {line}"))?);
        }
    }
    Ok(vectors)
}

fn read_line(place: &str, line: &str) -> Option<Vector> {
    let (left, right) = line.split_once('=')?;
    let (law, taken) = left.trim().split_once(' ')?;
    let numbers =
        |text: &str| text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    let taken = numbers(taken)?;
    let known = LAWS.iter().find(|known| known.name == law)?;
    if taken.len() != known.takes {
        return None;
    }
    let mut inputs = [0; NUMBERS_MAX];
    inputs[..taken.len()].copy_from_slice(&taken);
    let outputs = numbers(right)?;
    Some(Vector { place: place.to_owned(), law: law.to_owned(), inputs, outputs })
}

fn hybla_grow(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut window = hybla::Window {
        cwnd: i[0],
        ssthresh: i[1],
        cwnd_max: i[2],
        fraction_q20: i[3],
        rho_q10: i[4],
        gain_q10: i[5],
    };
    window.grow(i[6]);
    vec![window.cwnd, window.fraction_q20]
}

fn hybla_min_rtt(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut min = hybla::MinRtt { current_us: i[0], previous_us: i[1], started_ms: i[2] };
    let smallest = min.update(i[3], i[4], i[5]);
    vec![smallest, min.current_us, min.previous_us, min.started_ms]
}

fn hybla_carried_update(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut carried = hybla::Carried { current: i[0], previous: i[1], started_round: i[2] };
    let largest = carried.update(i[3], i[4]);
    vec![largest, carried.current, carried.previous, carried.started_round]
}

fn prr_window(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let prr = prr::Prr { from: i[0], to: i[1], delivered: i[2], sent: i[3] };
    vec![prr.window(i[4], i[5], i[6] != 0)]
}

fn hybla_linux_rho(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let rho = hybla_linux::Rho::new(i[0], i[1]);
    vec![rho.rho_3ls, rho.rho, rho.rho2_7ls]
}

fn hybla_linux_grow(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut window =
        hybla_linux::LinuxWindow { cwnd: i[2], cwnd_cnt: i[3], ssthresh: i[4], cents: i[5] };
    window.grow(hybla_linux::Rho::new(i[0], i[1]));
    vec![window.cwnd, window.cwnd_cnt, window.cents]
}

fn vegas_decide(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let thresholds = vegas::VegasThresholds { alpha: i[2], beta: i[3], gamma: i[4] };
    let decision = vegas::decide(i[0], i[1], thresholds, i[5], i[6]);
    vec![decision.cwnd, decision.ssthresh, decision.slow_start.into()]
}

fn westwood_filter(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut filter = westwood::Filter { once: i[0], twice: i[1] };
    filter.update(i[2]);
    vec![filter.once, filter.twice]
}

fn westwood_delivered(i: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut count = westwood::Count { una: i[0], accounted: i[1] };
    let delivered = count.delivered(i[2], i[3]);
    vec![delivered, count.una, count.accounted]
}
