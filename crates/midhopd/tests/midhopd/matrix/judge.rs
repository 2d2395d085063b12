//! Runs set-ups and judges them. With the daemon a connection must have the same outcome as without
//! it, and be split or assisted. When the daemon was killed, and when it was stopped, the outcome
//! must be the same again.

use super::cases::{ALWAYS, Case, Probe};
use super::router::{Fate, Router};
use crate::program::{Running, Setup};
use crate::stage::Family;
use nix::sys::signal::Signal;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// Number of connections of which the median is taken.
const TIMES: usize = 5;

/// How the daemon treats flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Treatment {
    AfterConnect,
    Early,
    /// They pass by whole. Most of their acknowledgements are held for a while and leave by the
    /// daemon's own socket.
    Assist,
}

const TREATMENTS: [Treatment; 3] = [Treatment::AfterConnect, Treatment::Early, Treatment::Assist];

impl Treatment {
    fn name(self) -> &'static str {
        match self {
            Self::AfterConnect => "after-connect",
            Self::Early => "early",
            Self::Assist => "assist",
        }
    }

    /// The rest of the configuration, which begins in `[intercept]`.
    fn config(self) -> String {
        match self {
            Self::AfterConnect | Self::Early => format!("accept = \"{}\"\n", self.name()),
            Self::Assist => "[[rules]]\naction = \"assist\"\n\
                 [assist]\ninterfaces = [\"wan0\", \"wan1\"]\n\
                 [assist.ack_decimation]\nkeep_one_in = 3\nhold = \"5 ms\"\n\
                 [assist.ack_spacing]\nrate = \"100 Mbit/s\"\nrebuild = \"2896 B\"\n"
                .to_owned(),
        }
    }

    /// The daemon's counter of such flows.
    fn action(self) -> &'static str {
        match self {
            Self::AfterConnect | Self::Early => "split",
            Self::Assist => "assist",
        }
    }
}

/// A line of the table.
struct Row {
    case: &'static str,
    treatment: Treatment,
    family: Family,
    probe: Probe,
    without: Fate,
    with: Fate,
    /// Whether the daemon has treated it as configured.
    treated: bool,
    /// The duration of a handshake, without the daemon and with it.
    took: Option<[Duration; 2]>,
    killed: Fate,
    stopped: Fate,
    faults: Vec<String>,
}

/// Tries set-ups, this many `at_a_time`, and prints a table. Panics if one of them differs from the
/// result without the daemon.
pub fn run(cases: &[Case], at_a_time: usize) {
    let rows = Mutex::new(Vec::new());
    let each = |case| TREATMENTS.map(|treatment| (case, treatment));
    let tries = Mutex::new(cases.iter().enumerate().flat_map(each));
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let next = tries.lock().expect("a lock").next();
                    let Some(((number, case), treatment)) = next else { return };
                    let tried = tried(case, treatment);
                    rows.lock().expect("a lock").push((number, treatment, tried));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("a lock");
    rows.sort_by_key(|(number, treatment, _)| (*number, *treatment));
    let rows: Vec<Row> = rows.into_iter().flat_map(|(.., rows)| rows).collect();
    println!("{}", Table(&rows));
    let faults: Vec<String> = rows
        .iter()
        .flat_map(|row| row.faults.iter().map(move |fault| format!("{}: {fault}", row.name())))
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn tried(case: &Case, treatment: Treatment) -> Vec<Row> {
    let Some(router) = Router::set(case) else { return Vec::new() };
    let setup = Setup::new(&format!(
        "[daemon]\nworkers = 1\ndrain = \"1 s\"\n[intercept]\ninterfaces = [{}]\n{}",
        case.interfaces,
        treatment.config()
    ));
    let before = router.traces();
    let families = [Family::V4, Family::V6];
    let probes = ALWAYS.iter().chain(case.probes).copied();
    let tries: Vec<(Family, Probe)> = probes
        .flat_map(|probe| families.map(|family| (family, probe)))
        .filter(|(family, probe)| {
            *family == Family::V4 || !matches!(probe, Probe::Forwarded(_) | Probe::Hairpin(_))
        })
        .collect();
    let fates = |patient: &dyn Fn(usize) -> bool| -> Vec<Fate> {
        let each = tries.iter().enumerate();
        each.map(|(at, (family, probe))| router.try_out(*family, *probe, patient(at)).0).collect()
    };
    let without = fates(&|_| false);
    let patient = |at: usize| without[at] != Fate::Failed(ErrorKind::TimedOut);
    let plain = latencies(&router, &tries, &without);
    let running = Running::start(&router.stage, &setup);
    let mut with = Vec::new();
    let mut treated = Vec::new();
    for (at, (family, probe)) in tries.iter().enumerate() {
        let before = total(&router, treatment);
        with.push(router.try_out(*family, *probe, patient(at)).0);
        treated.push(total(&router, treatment) > before);
    }
    let through = latencies(&router, &tries, &without);
    running.signal(Signal::SIGKILL);
    running.end();
    let killed = fates(&patient);
    let running = Running::start(&router.stage, &setup);
    running.signal(Signal::SIGTERM);
    running.end();
    let stopped = fates(&patient);
    let after = router.traces();
    let mut rows: Vec<Row> = (0..tries.len())
        .map(|at| Row {
            case: case.name,
            treatment,
            family: tries[at].0,
            probe: tries[at].1,
            without: without[at].clone(),
            with: with[at].clone(),
            treated: treated[at],
            took: plain[at].zip(through[at]).map(|(plain, through)| [plain, through]),
            killed: killed[at].clone(),
            stopped: stopped[at].clone(),
            faults: Vec::new(),
        })
        .collect();
    for row in &mut rows {
        row.judge(case);
    }
    let left = difference(&before, &after);
    if !left.is_empty() {
        rows[0].faults.push(format!("left behind:\n{left}"));
    }
    rows
}

/// The median of several handshakes, if there is one.
fn latencies(router: &Router, tries: &[(Family, Probe)], fates: &[Fate]) -> Vec<Option<Duration>> {
    let middle = |(family, probe): &(Family, Probe)| {
        let mut took: Vec<Duration> =
            (0..TIMES).map(|_| router.try_out(*family, *probe, true).1).collect();
        took.sort_unstable();
        took[TIMES / 2]
    };
    let connected = |fate: &Fate| matches!(fate, Fate::Connected { .. });
    tries.iter().zip(fates).map(|(own, fate)| connected(fate).then(|| middle(own))).collect()
}

/// Number of flows that the daemon has treated as configured.
fn total(router: &Router, treatment: Treatment) -> u64 {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:9310")?;
        stream.set_read_timeout(Some(crate::stage::PATIENCE))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let text = router.stage.gateway.run(ask).expect("entering").expect("the admin server");
    let line = format!("midhop_flows_started_total{{action=\"{}\"}} ", treatment.action());
    let value = text.lines().find_map(|own| own.strip_prefix(&line));
    value
        .and_then(|value| value.trim().parse::<f64>().ok())
        .map(|value| value as u64)
        .unwrap_or_else(|| panic!("no count in:\n{text}"))
}

impl Row {
    fn judge(&mut self, case: &Case) {
        let mut faults = Vec::new();
        // With early acceptance the proxy can only reset later, and the client may be at any point
        // by then.
        let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::NotConnected];
        let as_refused = self.treatment == Treatment::Early
            && self.without == Fate::Failed(ErrorKind::ConnectionRefused)
            && reset.iter().any(|kind| self.with == Fate::Failed(*kind));
        if self.with != self.without && !as_refused {
            faults.push(format!("{} without, {} with it", self.without, self.with));
        }
        let connected = matches!(self.without, Fate::Connected { .. });
        if connected && !self.treated && case.passes.is_none() {
            faults.push(format!("not counted as {}", self.treatment.action()));
        }
        for (when, fate) in [("killed", &self.killed), ("stopped", &self.stopped)] {
            if *fate != self.without {
                faults.push(format!("{} without, {fate} after it was {when}", self.without));
            }
        }
        self.faults.extend(faults);
    }

    fn name(&self) -> String {
        format!("{} {} {:?} {:?}", self.case, self.treatment.name(), self.family, self.probe)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { seen, port_kept: true } => write!(f, "as {seen}"),
            Self::Connected { seen, port_kept: false } => write!(f, "as {seen}, new port"),
            Self::Failed(ErrorKind::TimedOut) => f.write_str("dropped"),
            Self::Failed(ErrorKind::ConnectionRefused) => f.write_str("refused"),
            Self::Failed(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                f.write_str("reset")
            }
            Self::Failed(kind) => write!(f, "{kind}"),
        }
    }
}

struct Table<'a>(&'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            "set-up",
            "flows",
            "family",
            "probe",
            "without",
            "with",
            "",
            "ms without",
            "ms with",
            "killed, stopped",
            "",
        ];
        let mut lines = vec![columns.map(str::to_owned)];
        for row in self.0 {
            let ms = |at: usize| {
                row.took
                    .map_or(String::new(), |took| format!("{:.2}", took[at].as_secs_f64() * 1e3))
            };
            let same = |fate: &Fate| {
                if *fate == row.without { "same".to_owned() } else { fate.to_string() }
            };
            lines.push([
                row.case.to_owned(),
                row.treatment.name().to_owned(),
                format!("{:?}", row.family),
                format!("{:?}", row.probe),
                row.without.to_string(),
                row.with.to_string(),
                if row.treated { row.treatment.action() } else { "" }.to_owned(),
                ms(0),
                ms(1),
                format!("{}, {}", same(&row.killed), same(&row.stopped)),
                if row.faults.is_empty() { "" } else { "FAULT" }.to_owned(),
            ]);
        }
        let width = |at: usize| lines.iter().map(|line| line[at].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        let faults = self.0.iter().filter(|row| !row.faults.is_empty()).count();
        writeln!(f, "{} of {} as without midhopd", self.0.len() - faults, self.0.len())
    }
}

fn difference(before: &str, after: &str) -> String {
    let lost = before.lines().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.lines().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    lost.chain(new).collect::<Vec<_>>().join("\n")
}
