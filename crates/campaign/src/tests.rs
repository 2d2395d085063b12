//! Which records are found again, and which are not.

use super::*;
use midhop_experiment::record::{Environment, Record, Runner, SCHEMA, Series, Validity};
use midhop_experiment::{Plan, Scenario};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

const SCENARIO: &str = r#"title = "a file over a link"
duration = "20 s"
seeds = 2
[nodes]
client = {}
server = {}
[links.link]
between = ["client", "server"]
rate = "20 Mbit/s"
[transfers.file]
from = "server"
to = "client"
bytes = "100 kB"
[vary]
"links.link.rate" = ["20 Mbit/s", "10 Mbit/s"]
twice = { one = {}, other = {} }
"#;

/// Two rates, two cases that are the same, two seeds.
fn plans() -> Vec<Plan> {
    Scenario::parse("s.toml", SCENARIO).and_then(|it| it.plans()).expect("a scenario")
}

fn record(plan: &Plan) -> Record {
    Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        plan: plan.to_json().expect("JSON"),
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: Vec::new(),
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: vec![Series {
            quantity: "goodput".to_owned(),
            place: "file".to_owned(),
            flow: None,
            unit: "Mbit/s".to_owned(),
            time_s: vec![0.1],
            value: vec![3.0],
        }],
    }
}

fn origin(name: &str) -> Origin {
    Origin::new(Runner::Lab, Build(name.to_owned()))
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn a_key_is_of_what_would_run() {
    let plans = plans();
    let keys: Vec<Key> = plans.iter().map(|plan| Key::of(plan).expect("a key")).collect();
    // The last axis changes fastest, then come the seeds: rate 20 one, 20 other, 10 one, 10 other.
    assert_eq!((&keys[0], &keys[1]), (&keys[2], &keys[3]), "an axis that changes nothing");
    assert_eq!(keys[4..6], keys[6..8]);
    let mut distinct = keys.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "two rates with two seeds");
}

#[test]
fn a_build_is_its_files_content() {
    let directory = directory();
    let place = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        Build::of(&path).expect("read")
    };
    assert_eq!(place("one", "program"), place("copy", "program"));
    assert_ne!(place("one", "program"), place("other", "programme"));
    let missing = directory.path().join("none");
    assert!(Build::of(&missing).unwrap_err().to_string().contains("none"));
}

#[test]
fn lines_are_found_by_every_plan_that_is_theirs_and_no_other_builds() {
    let directory = directory();
    let path = directory.path().join("records.jsonl");
    let plans = plans();
    let open = |name| Lines::open(&path, origin(name)).expect("opened");
    let empty = open("ours");
    assert_eq!(empty.finished(&plans[0]), None);
    empty.keep(&plans[0], &mut record(&plans[0])).expect("kept");
    empty.keep(&plans[1], &mut record(&plans[1])).expect("kept");
    // As after a crash that cut the last line short.
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, &text[..text.len() - 20]).expect("cut");
    let ours = open("ours");
    // Requested twice, and by the case that is the same.
    for plan in [0, 0, 2] {
        let found = ours.finished(&plans[plan]).expect("kept");
        assert!(found.series.is_empty() && found.plan.is_null());
        assert_eq!(found.cell, plans[plan].cell());
    }
    assert!(ours.finished(&plans[1]).is_none() && ours.finished(&plans[4]).is_none());
    ours.keep(&plans[1], &mut record(&plans[1])).expect("kept");
    let again = open("ours");
    let both = [0, 1].map(|plan| again.finished(&plans[plan]).is_some());
    assert_eq!(both, [true, true], "the cut line swallows none");
    let other = open("other");
    assert!(plans.iter().all(|plan| other.finished(plan).is_none()));
}

#[test]
fn files_by_key_keep_plans_apart_and_give_way_to_another_build() {
    let directory = directory();
    let plans = plans();
    let store = |name: &str| Files::new(directory.path(), origin(name), Naming::ByKey);
    let ours = store("ours");
    for plan in &plans {
        assert_eq!(ours.finished(plan).is_some(), plan.number % 4 >= 2, "one, then the other");
        ours.keep(plan, &mut record(plan)).expect("kept");
    }
    assert_eq!(names(&directory).len(), 4, "{:?}", names(&directory));
    // Numbers do not matter: the same plan may have another number in another scenario.
    let moved = Plan { number: 77, ..plans[0].clone() };
    let found = ours.finished(&moved).expect("kept");
    assert_eq!((&found.cell, found.series.len()), (&plans[0].cell(), 1));
    let other = store("other");
    assert_eq!(other.finished(&plans[0]), None);
    other.keep(&plans[0], &mut record(&plans[0])).expect("kept");
    assert!(other.finished(&plans[0]).is_some());
    assert_eq!(ours.finished(&plans[0]), None);
    assert!(names(&directory).iter().all(|name| name.ends_with(".json")));
    let nowhere = Files::new(&directory.path().join("none"), origin("ours"), Naming::ByKey);
    let error = nowhere.keep(&plans[0], &mut record(&plans[0])).unwrap_err();
    assert!(error.to_string().starts_with("cannot write"), "{error}");
}

#[test]
fn files_by_number_stand_in_the_order_of_their_scenario() {
    let directory = directory();
    let plans = plans();
    let store = Files::new(directory.path(), origin("ours"), Naming::ByNumber);
    for plan in &plans[..3] {
        store.keep(plan, &mut record(plan)).expect("kept");
    }
    fs::write(directory.path().join("0000.cwnd.csv"), "").expect("written");
    assert_eq!(names(&directory), ["0000.cwnd.csv", "0000.json", "0001.json", "0002.json"]);
    assert!(store.finished(&plans[2]).is_some());
    // Another plan with the same number, as after a change of the scenario.
    let other = Plan { number: 2, ..plans[4].clone() };
    assert_eq!(store.finished(&other), None);
    assert_eq!((store.others(&plans), store.others(&plans[..1])), (0, 2));
    store.clear().expect("removed");
    assert_eq!(names(&directory), ["0000.cwnd.csv"]);
}

#[test]
fn a_record_counts_by_what_made_it() {
    let directory = directory();
    let plan = &plans()[0];
    let ours = origin("ours").with("linux", Some("6.1")).with("patch", None);
    let kept = |origin: &Origin, record: Record| {
        let store = Files::new(directory.path(), ours.clone(), Naming::ByKey);
        store.keep(plan, &mut { record }).expect("kept");
        Files::new(directory.path(), origin.clone(), Naming::ByKey).finished(plan).is_some()
    };
    let on = |kernel: &str| {
        let mut record = record(plan);
        record.environment.versions.insert("linux".to_owned(), kernel.to_owned());
        record
    };
    assert!(kept(&ours, on("6.1")));
    assert!(!kept(&ours, on("6.12")), "another kernel");
    let mut patched = on("6.1");
    patched.environment.versions.insert("patch".to_owned(), "yes".to_owned());
    assert!(!kept(&ours, patched));
    let mut late = on("6.1");
    late.validity.faults.push("late".to_owned());
    assert!(!kept(&ours, late.clone()), "it is to be run again");
    let simulated = Origin::new(Runner::Sim, Build("ours".to_owned()));
    assert!(!kept(&simulated, on("6.1")), "another runner");
    Runner::Sim.name().clone_into(&mut late.environment.runner);
    assert!(kept(&simulated, late), "it would be the same again");
}

/// Gives a record. `lateness` decides by the plan's number and the parallel runs whether it is late.
struct Machine<'m> {
    running: &'m Mutex<Vec<usize>>,
    lateness: fn(u32, usize) -> bool,
    fails: fn(u32) -> bool,
}

#[derive(Debug)]
struct Failed {
    is_interruption: bool,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no record")
    }
}

impl Error for Failed {}

impl Executor for Machine<'_> {
    type Error = Failed;

    fn run(&self, plan: &Plan, _stop: &AtomicBool) -> Result<Record, Failed> {
        if (self.fails)(plan.number) {
            Err(Failed { is_interruption: false })
        } else {
            Ok(record(plan))
        }
    }

    fn cost(&self, _plan: &Plan) -> u64 {
        1
    }

    fn is_late(&self, plan: &Plan, _record: &Record) -> bool {
        let at_once = *locked(self.running).last().expect("a batch has begun");
        (self.lateness)(plan.number, at_once)
    }

    fn interrupted() -> Failed {
        Failed { is_interruption: true }
    }

    fn is_interruption(error: &Failed) -> bool {
        error.is_interruption
    }
}

/// The events of a campaign.
#[derive(Default)]
struct Notes {
    at_once: Mutex<Vec<usize>>,
    finished: Mutex<Vec<u32>>,
    again: Mutex<Vec<(usize, usize, usize)>>,
    stays: Mutex<Vec<usize>>,
    recorded: Mutex<Vec<(u32, bool)>>,
    repeats: Option<u32>,
    stop: AtomicBool,
    stops_after: Option<usize>,
}

impl Observer for Notes {
    fn begin(&self, _plans: &[&Plan], at_once: usize) {
        locked(&self.at_once).push(at_once);
    }

    fn finished(&self, plan: &Plan, _failed: Option<&dyn fmt::Display>) {
        let mut finished = locked(&self.finished);
        finished.push(plan.number);
        if Some(finished.len()) == self.stops_after {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn unwritten(&self, _error: &StoreError) {}

    fn again(&self, late: usize, ran: usize, at_once: usize) {
        locked(&self.again).push((late, ran, at_once));
    }

    fn stays_late(&self, late: usize) {
        locked(&self.stays).push(late);
    }

    fn recorded(&self, plan: &Plan, _record: &Record, is_late: bool) {
        locked(&self.recorded).push((plan.number, is_late));
    }
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).expect("listed");
    let names = entries.map(|it| it.expect("listed").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Runs `plans`, four in parallel, into `store`. Returns for each whether it has a record, `None`
/// where it was interrupted.
fn campaign(
    plans: &[Plan],
    store: &Files,
    notes: &Notes,
    lateness: fn(u32, usize) -> bool,
    fails: fn(u32) -> bool,
) -> Ran<Option<bool>> {
    let machine = Machine { running: &notes.at_once, lateness, fails };
    let resumed = Resumed::of(plans, Some(store), |_, _| Some(true));
    let batches = vec![pace::Batch::whole(&resumed.left(), 4)];
    let (stop, store): (_, Option<&dyn Store>) = (&notes.stop, Some(store));
    let campaign =
        Campaign { executor: &machine, store, repeats: notes.repeats, stop, observer: notes };
    campaign.run(resumed, batches, |_, outcome| match outcome {
        Ok(_) => Some(true),
        Err(error) => (!error.is_interruption).then_some(false),
    })
}

#[test]
fn late_runs_go_again_with_fewer_and_the_last_attempt_stays() {
    let directory = directory();
    let plans = distinct();
    let store = Files::new(directory.path(), origin("ours"), Naming::ByNumber);
    let notes = Notes::default();
    // The first is in time only when run alone, the second never, the others always.
    let lateness = |number, at_once| number == 1 || (number == 0 && at_once > 1);
    let ran = campaign(&plans, &store, &notes, lateness, |_| false);
    assert_eq!((ran.results, ran.unwritten), (vec![Some(true); 4], 0));
    assert_eq!(*locked(&notes.at_once), [4, 2, 1, 1, 1]);
    assert_eq!(*locked(&notes.again), [(2, 4, 2), (2, 2, 1), (1, 2, 1), (1, 1, 1)]);
    let times = locked(&notes.finished).iter().fold(BTreeMap::new(), |mut times, number| {
        *times.entry(*number).or_insert(0) += 1;
        times
    });
    assert_eq!(times, BTreeMap::from([(0, 3), (1, 5), (2, 1), (3, 1)]));
    assert_eq!(names(&directory).len(), 4, "what is late in the end is kept");
    assert_eq!(*locked(&notes.stays), [1]);
}

#[test]
fn late_runs_go_again_no_more_often_than_allowed() {
    let directory = directory();
    let plans = distinct();
    let store = Files::new(directory.path(), origin("ours"), Naming::ByNumber);
    let notes = Notes { repeats: Some(2), ..Notes::default() };
    let ran = campaign(&plans, &store, &notes, |number, _| number == 1, |number| number == 3);
    assert_eq!(ran.results, [Some(true), Some(true), Some(true), Some(false)]);
    assert_eq!(*locked(&notes.at_once), [4, 2, 1]);
    assert_eq!(*locked(&notes.stays), [1]);
    let mut recorded = locked(&notes.recorded).clone();
    recorded.sort_unstable();
    assert_eq!(recorded, [(0, false), (1, true), (1, true), (1, true), (2, false)]);
    assert_eq!(names(&directory).len(), 3);
}

#[test]
fn what_an_interrupted_campaign_has_finished_is_not_run_again() {
    let directory = directory();
    let plans = distinct();
    let store = Files::new(directory.path(), origin("ours"), Naming::ByKey);
    // How many of the four begin depends on the machine; none begins twice.
    let stopped = Notes { stops_after: Some(1), ..Notes::default() };
    let ran = campaign(&plans, &store, &stopped, |_, _| false, |number| number == 3);
    let finished = ran.results.iter().filter(|it| **it == Some(true)).count();
    assert_eq!(names(&directory).len(), finished);
    let notes = Notes::default();
    let ran = campaign(&plans, &store, &notes, |_, _| false, |number| number == 3);
    assert_eq!(ran.results, [Some(true), Some(true), Some(true), Some(false)]);
    assert_eq!(locked(&notes.finished).len(), 4 - finished);
}

/// Four plans with keys of their own.
fn distinct() -> Vec<Plan> {
    let own = plans().into_iter().filter(|plan| plan.number % 4 < 2);
    own.enumerate().map(|(number, plan)| Plan { number: number as u32, ..plan }).collect()
}
