//! Synthetic records: invented but plausible figures of the GEO demo, for tests of the report only.
//! Nothing here was measured.

use midhop_experiment::record::{
    Environment, FlowResult, Lateness, LegResult, LimitResult, LinkResult, ObjectResult, Record,
    SCHEMA, Series, TransferResult, Validity,
};
use midhop_units::{Bytes, Duration, Rate, Seed};
use std::collections::BTreeMap;

pub const TITLE: &str = "Synthetic sample: GEO, one proxy at the gateway against none";
const LOSSES: [(&str, f64); 3] = [("0 %", 0.0), ("0.1 %", 0.001), ("1 %", 0.01)];
const SETUPS: [&str; 4] = ["cubic", "bbr", "midhop-hybla-plus", "midhop-bbr"];
const LOADS: [&str; 3] = ["page", "file", "flows"];
const LIMIT_MBIT: f64 = 19.3;

/// A small generator, so that the samples are the same on every machine (xorshift64*).
struct Draw(u64);

impl Draw {
    /// Uniform between −1 and 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        bits as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// The 36 cells of the demo, each with the seeds 1 to `seeds`, in the order of a scenario's file.
pub fn records(seeds: u64) -> Vec<Record> {
    let mut all = Vec::new();
    for (loss_place, (label, loss)) in LOSSES.iter().enumerate() {
        for load in LOADS {
            for (setup_place, setup) in SETUPS.iter().enumerate() {
                for seed in 1..=seeds {
                    let mut draw = Draw(
                        seed * 7_919 + loss_place as u64 * 104_729 + setup_place as u64 * 31 + 17,
                    );
                    all.push(record(label, *loss, load, setup_place, setup, seed, &mut draw));
                }
            }
        }
    }
    all
}

fn record(
    label: &str,
    loss: f64,
    load: &str,
    setup_place: usize,
    setup: &str,
    seed: u64,
    draw: &mut Draw,
) -> Record {
    let rate = steady_mbit(setup_place, loss) * (1.0 + 0.04 * draw.next());
    let ramp_s = [4.0, 3.0, 1.3, 1.6][setup_place] * (1.0 + 0.1 * draw.next());
    let bytes = match load {
        "page" => 4_955_000.0,
        "file" => 5_000_000.0,
        _ => rate * 1e6 / 8.0 * (20.0 - ramp_s),
    };
    let objects = if load == "page" { 7 } else { 0 };
    let idle = f64::from(objects) * if setup_place < 2 { 0.9 } else { 0.6 };
    let took = if load == "flows" { 20.0 } else { 0.6 + ramp_s + idle + bytes * 8e-6 / rate };
    let complete = took <= 75.0;
    let took = took.min(75.0);
    let arrived = if complete { bytes } else { bytes * 0.6 };
    let ideal = arrived * 8e-6 / LIMIT_MBIT + 0.6 + f64::from(objects) * 0.6;
    let proxied = setup_place >= 2;
    let flow_count = if load == "flows" { 4 } else { 1 };
    let flows = (0..flow_count)
        .map(|id| flow(id, flow_count, took, arrived, complete, loss, setup, proxied))
        .collect();
    let transfer = TransferResult {
        name: load.to_owned(),
        complete,
        took: Duration::from_s_f64(took),
        bytes: Bytes::new(arrived as u64),
        goodput: Rate::from_bits_per_s((arrived * 8.0 / took) as u64),
        limit: Some(LimitResult {
            goodput: Rate::from_bits_per_s((LIMIT_MBIT * 1e6) as u64),
            time: Duration::from_s_f64(ideal),
            efficiency: ideal / took,
            drawn: None,
        }),
        restarts: Default::default(),
        flows,
        objects: (0..objects)
            .map(|id| ObjectResult {
                id,
                flow: 0,
                bytes: Bytes::new(bytes as u64 / 7),
                start: Duration::from_s_f64(f64::from(id) * took / 7.0),
                first_byte: Duration::from_s_f64(f64::from(id) * took / 7.0 + 0.6),
                end: Duration::from_s_f64(f64::from(id + 1) * took / 7.0),
            })
            .collect(),
    };
    Record {
        schema: SCHEMA,
        title: TITLE.to_owned(),
        cell: BTreeMap::from([
            ("links.satellite.down.loss".to_owned(), label.to_owned()),
            ("load".to_owned(), load.to_owned()),
            ("setup".to_owned(), setup.to_owned()),
        ]),
        seed: Seed(seed),
        plan: serde_json::json!({
            "title": TITLE,
            "seed": seed,
            "duration": "75 s",
            "links": [{ "name": "satellite", "down": { "rate": "20 Mbit/s", "delay": "295 ms", "loss": loss } }],
            "peps": match proxied {
                true => serde_json::json!({ "gateway": { "congestion": setup } }),
                false => serde_json::json!({ "client": {} }),
            },
        }),
        environment: Environment {
            runner: "lab".to_owned(),
            versions: BTreeMap::from([
                ("linux".to_owned(), "6.18.0".to_owned()),
                ("midhop".to_owned(), "0.1.0".to_owned()),
                ("midhopd".to_owned(), "0.1.0".to_owned()),
            ]),
            processors: 2,
            load: 0.4 + 0.2 * draw.next(),
            privileged: true,
            started_unix_s: 1_795_294_140 + seed,
            took: Duration::from_s_f64(took + 1.5),
        },
        validity: Validity::default(),
        transfers: vec![transfer],
        links: links(arrived, loss, took),
        legs: if proxied { legs(arrived, loss, flow_count) } else { Vec::new() },
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: series(load, flow_count, took, rate, ramp_s, objects, proxied, draw),
    }
}

fn steady_mbit(setup_place: usize, loss: f64) -> f64 {
    let at = |clean: f64, some: f64, much: f64| {
        if loss == 0.0 {
            clean
        } else if loss < 0.005 {
            some
        } else {
            much
        }
    };
    match setup_place {
        0 => at(15.0, 2.1, 0.45),
        1 => at(17.5, 15.8, 9.6),
        2 => at(18.8, 17.4, 12.0),
        _ => at(18.6, 18.2, 16.4),
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "a flow of a made-up record has that many properties"
)]
fn flow(
    id: u32,
    count: u32,
    took: f64,
    bytes: f64,
    complete: bool,
    loss: f64,
    setup: &str,
    proxied: bool,
) -> FlowResult {
    let share = bytes / f64::from(count);
    let hash = complete.then(|| format!("{:032x}", share as u128 * 0x9e37_79b9_7f4a_7c15));
    FlowResult {
        id,
        client_port: 40_000 + id as u16,
        server_port: 5_001,
        start: Duration::ZERO,
        end: Duration::from_s_f64(took),
        bytes: Bytes::new(share as u64),
        goodput: Rate::from_bits_per_s((share * 8.0 / took) as u64),
        hash_sent: hash.clone(),
        hash_received: hash,
        retransmissions: if proxied { 0 } else { (share / 1448.0 * loss * 1.1) as u64 },
        rtt_min: Some(if proxied { Duration::from_us(9_700) } else { Duration::from_us(600_300) }),
        congestion: if setup == "cubic" { "cubic" } else { "bbr" }.to_owned(),
        error: (!complete).then(|| "the run ended before the last byte".to_owned()),
        phases: None,
    }
}

fn links(bytes: f64, loss: f64, took: f64) -> Vec<LinkResult> {
    let packets = (bytes / 1448.0) as u64;
    let lost = (packets as f64 * loss) as u64;
    vec![LinkResult {
        name: "satellite".to_owned(),
        direction: "down".to_owned(),
        packets_in: packets + lost,
        bytes_in: (packets + lost) * 1500,
        packets_out: packets,
        bytes_out: packets * 1500,
        drops: if lost > 0 { BTreeMap::from([("loss".to_owned(), lost)]) } else { BTreeMap::new() },
        marks: 0,
        bytes_sent: (packets + lost) * 1500,
        capacity_bytes: None,
        span: Duration::from_s_f64(took),
        queue_bytes_max: 612_000,
        lateness: Some(Lateness {
            packets,
            p50: Duration::from_us(17),
            p99: Duration::from_us(120),
            max: Duration::from_us(840),
            stood_still: Duration::ZERO,
        }),
        cpu: Some(Duration::from_s_f64(took * 0.03)),
    }]
}

/// The two sides of the gateway's proxy: it receives from the server and sends over the satellite.
fn legs(bytes: f64, loss: f64, flows: u32) -> Vec<LegResult> {
    let leg = |link: &str, bytes: f64, retransmissions: f64, rtt_min: Duration| LegResult {
        node: "gateway".to_owned(),
        link: link.to_owned(),
        tunnel: None,
        connections: u64::from(flows),
        bytes: Bytes::new(bytes as u64),
        retransmissions: retransmissions as u64,
        rtt_min: Some(rtt_min),
        phases: None,
    };
    vec![
        leg("internet", 400.0, 0.0, Duration::from_us(9_700)),
        leg("satellite", bytes, bytes / 1448.0 * loss, Duration::from_us(590_400)),
    ]
}

#[expect(clippy::too_many_arguments, reason = "the curves of a made-up record depend on all of it")]
fn series(
    load: &str,
    flows: u32,
    took: f64,
    rate: f64,
    ramp_s: f64,
    objects: u32,
    proxied: bool,
    draw: &mut Draw,
) -> Vec<Series> {
    let time_s: Vec<f64> = (1..=(took * 10.0) as u32).map(|tick| f64::from(tick) * 0.1).collect();
    let mut curve = |quantity: &str,
                     place: &str,
                     flow: Option<u32>,
                     unit: &str,
                     law: &dyn Fn(f64, f64) -> f64| {
        Series {
            quantity: quantity.to_owned(),
            place: place.to_owned(),
            flow,
            unit: unit.to_owned(),
            time_s: time_s.clone(),
            value: time_s.iter().map(|&time| law(time, draw.next()).max(0.0)).collect(),
        }
    };
    let pause = |time: f64| {
        let phase = time / took * f64::from(objects);
        if objects > 0 && phase.fract() < 0.12 { 0.1 } else { 1.0 }
    };
    let shape = |time: f64| (1.0 - (-(time - 0.6).max(0.0) / ramp_s * 2.0).exp()) * pause(time);
    let tooth = |time: f64| 0.75 + 0.25 * ((time * 0.45).fract());
    let mut all = vec![curve("goodput", load, None, "Mbit/s", &|time, noise| {
        (rate * shape(time) * (1.0 + 0.06 * noise)).min(LIMIT_MBIT)
    })];
    let rtt = if proxied { 9.7 } else { 600.0 };
    let waiting = if proxied { 0.6 } else { rate * 12.0 };
    for flow in 0..flows {
        let window = rate * 1e6 / 8.0 * rtt / 1e3 / f64::from(flows) + 14_480.0;
        all.push(curve("cwnd", load, Some(flow), "B", &|time, _| {
            window * shape(time) * tooth(time + f64::from(flow) * 0.7) * 1.2 + 14_480.0
        }));
        all.push(curve("rtt", load, Some(flow), "ms", &|time, noise| {
            rtt + waiting * shape(time) * tooth(time) * (1.0 + 0.1 * noise)
        }));
        all.push(curve("delivery_rate", load, Some(flow), "Mbit/s", &|time, noise| {
            rate / f64::from(flows) * shape(time) * (1.0 + 0.1 * noise)
        }));
    }
    if proxied {
        let bdp = rate * 1e6 / 8.0 * 0.59 + 14_480.0;
        let place = "gateway.satellite";
        all.push(curve("cwnd", place, None, "B", &|time, _| {
            bdp * shape(time) * tooth(time) * 1.2 + 14_480.0
        }));
        all.push(curve("rtt", place, None, "ms", &|time, noise| {
            590.0 + rate * 9.0 * shape(time) * tooth(time) * (1.0 + 0.1 * noise)
        }));
        all.push(curve("cwnd", "gateway.internet", None, "B", &|_, _| 14_480.0));
        all.push(curve("rtt", "gateway.internet", None, "ms", &|_, noise| 9.8 + 0.1 * noise));
    }
    all.push(curve("queue", "satellite.down", None, "bytes", &|time, noise| {
        rate * 30_000.0 * shape(time) * tooth(time) * (1.0 + 0.2 * noise)
    }));
    all.push(curve("queue", "satellite.up", None, "bytes", &|_, noise| 700.0 * (1.0 + noise)));
    all
}

/// The record of one cell of the demo, which a test modifies.
pub fn one() -> Record {
    let mut all = records(1);
    all.swap_remove(0)
}
