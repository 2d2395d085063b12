//! Small fixed pieces of work, whose instructions `scripts/instructions` counts.
//!
//! On a machine with other users, measured time cannot show a change of 2 %; a count of
//! instructions can. `baseline.txt` beside this file has the earlier counts; `make
//! bench-instructions` shows both.
//!
//! Without a name, every case runs without counting, as a check that it works. `--list` prints the
//! names.

use midhop_congestion::{Ack, Algorithm, Controller, Established, Law, Loss, LostSegment};
use midhop_congestion::{Settings, build};
use midhop_experiment::Scenario;
use midhop_pep::fair_queue::{Account, FairQueue};
use midhop_sim::Options;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::hint::black_box;

/// A piece of work. Preparing it returns the part to count.
struct Case {
    name: String,
    prepare: Box<dyn Fn() -> Box<dyn FnOnce()>>,
}

impl Case {
    fn new<W: FnOnce() + 'static>(
        name: impl Into<String>,
        prepare: impl Fn() -> W + 'static,
    ) -> Self {
        Self { name: name.into(), prepare: Box::new(move || Box::new(prepare())) }
    }
}

/// The part to count, under this name in the program.
#[inline(never)]
fn counted(work: Box<dyn FnOnce()>) {
    work();
    // This prevents a tail call, so that counting ends with the work.
    black_box(());
}

const MSS: u64 = 1448;
const ACKS: u64 = 20_000;
const TURNS: u64 = 20_000;

fn controller(algorithm: Algorithm) -> Controller {
    let rate = matches!(algorithm, Algorithm::KnownRate).then_some(Rate::from_mbit_per_s(20));
    let law = Law::usual(algorithm, rate).expect("a rate is known where it must be");
    build(&Settings { paced: true, ..Settings::of(law) }).expect("every law takes the defaults")
}

/// Acknowledgements a millisecond apart over a path of 100 ms, one segment in a thousand lost.
fn acknowledge(control: &mut Controller) {
    let rtt = Duration::from_ms(100);
    control.on_established(&Established { now: Instant::START, rtt: Some(rtt) });
    for number in 0..ACKS {
        let now = Instant::START + rtt + Duration::from_ms(number);
        if number % 1000 == 999 {
            let (size, in_flight) = (Bytes::new(MSS), control.window());
            control.on_lost_segment(&LostSegment { now, size, ..LostSegment::default() });
            control.on_loss(&Loss { now, lost: size, in_flight });
        }
        control.on_ack(&Ack {
            now,
            acked: Bytes::new(MSS),
            rtt: Some(rtt),
            in_flight: Bytes::new(100 * MSS),
            round: number / 100,
            delivered: Bytes::new(number * MSS),
            delivery_rate: Some(Rate::from_mbit_per_s(12)),
            ..Ack::default()
        });
        black_box((control.window(), control.pacing_rate()));
    }
}

/// A run of the scenario beside this file.
fn run(name: &str, set: &'static [&'static str]) -> Case {
    const TEXT: &str = include_str!("scenario.toml");
    Case::new(name, || {
        let mut scenario = Scenario::parse("scenario.toml", TEXT).expect("a scenario");
        set.iter().for_each(|key| scenario.set(key).expect("a key"));
        let plan = scenario.plans().expect("plans").swap_remove(0);
        move || {
            let (record, _) = midhop_sim::run(&plan, &Options::default()).expect("a run");
            assert!(record.transfers[0].complete, "{:?}", record.transfers);
        }
    })
}

/// Turns of a hundred flows that always have data to write.
fn take_turns(queue: &mut FairQueue<usize>, accounts: &mut [Account]) {
    let mut next = 0;
    for (number, account) in accounts.iter_mut().enumerate() {
        queue.wait(account, &number);
    }
    for _ in 0..TURNS {
        if let Some(woken) = queue.spend(&mut accounts[next], 1 << 16) {
            queue.wait(&mut accounts[next], &next);
            next = woken;
        }
        queue.wait(&mut accounts[next], &next);
    }
}

fn cases() -> Vec<Case> {
    let laws = Algorithm::ALL.iter().map(|&algorithm| {
        Case::new(format!("congestion/{algorithm}"), move || {
            let mut control = controller(algorithm);
            move || acknowledge(&mut control)
        })
    });
    let turns = Case::new("pep/fair-queue", || {
        let mut accounts: Vec<Account> = (1..=100).map(Account::new).collect();
        move || take_turns(&mut FairQueue::default(), &mut accounts)
    });
    let runs = [
        run("tcp/clean", &["setup=direct", "channel=clean"]),
        run("tcp/lossy", &["setup=direct", "channel=lossy"]),
        run("relay/clean", &["setup=split", "channel=clean"]),
        run("tunnel/clean", &["setup=tunnel", "channel=clean"]),
        run("tunnel/repaired", &["setup=tunnel", "channel=lossy"]),
        run("tunnel/bbr3", &["setup=tunnel-bbr3", "channel=clean"]),
    ];
    laws.chain([turns]).chain(runs).collect()
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let cases = cases();
    if asked.iter().any(|word| word == "--list") {
        cases.iter().for_each(|case| println!("{}", case.name));
        return;
    }
    let named = asked.iter().find(|word| !word.starts_with('-'));
    let wanted = |case: &&Case| named.is_none_or(|name| case.name == *name);
    for case in cases.iter().filter(wanted) {
        counted((case.prepare)());
        println!("{}", case.name);
    }
}
