//! What the restart of a proxy costs its live flows: an upgrade of midhopd beside the seamless reload
//! of HAProxy and the hot restart of Envoy, under the same load on the same stage.
//!
//! The peers hand over their listeners. Their old process keeps its flows, and the old program, until
//! they end or until it is made to end. midhopd hands over the flows.

mod programs;

use crate::records;
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, stop_listening, until, until_within};
use crate::strangers::resident;
use crate::survival::relayed;
use crate::upgrade::{Finally, longest_waits};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use programs::{Kind, Program, is_gone, limit_s};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Clients that connect anew, one connection after the other, during a restart.
const PROBES: usize = 4;

/// How a flow was lost, as the end saw it that noticed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Reset,
    Closed,
    Silent,
}

struct Flow {
    client: TcpStream,
    server: TcpStream,
    lost: Option<Loss>,
}

impl Flow {
    /// Four bytes in one direction, and four back. False: the flow is lost.
    fn word(&mut self) -> bool {
        if self.lost.is_none() {
            let passed = say(&mut self.client, &mut self.server)
                .and_then(|()| say(&mut self.server, &mut self.client));
            self.lost = passed.err().map(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Loss::Closed,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Loss::Silent,
                _ => Loss::Reset,
            });
        }
        self.lost.is_none()
    }
}

fn say(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    from.write_all(b"word")?;
    let mut received = [0; 4];
    to.read_exact(&mut received)?;
    assert_eq!(&received, b"word", "bytes are not as sent");
    Ok(())
}

/// A connection that began during the restart: the time until its first word was back, or until it
/// failed.
struct Probe {
    waited: Duration,
    failed: Option<ErrorKind>,
}

fn ask(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"word")?;
    stream.read_exact(&mut [0; 4])?;
    Ok(stream)
}

/// Does some work while clients connect anew to a server whose address the work is given.
fn probed<T>(stage: &Stage, work: impl FnOnce(SocketAddr) -> T) -> (T, Vec<Probe>) {
    let listener = stage.listen(Family::V4);
    let address = listener.local_addr().expect("an address");
    let over = AtomicBool::new(false);
    scope(|scope| {
        let (listener, over) = (&listener, &over);
        let finally = Finally(|| {
            over.store(true, Relaxed);
            stop_listening(listener.try_clone().expect("a descriptor"));
        });
        scope.spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                scope.spawn(move || {
                    let mut word = [0; 4];
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    while let Ok(length @ 1..) = stream.read_once(&mut word) {
                        if stream.write_all(&word[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let probe = move || {
            let mut probes = Vec::new();
            while !over.load(Relaxed) {
                let begun = Instant::now();
                let failed = ask(address).err().map(|error| error.kind());
                probes.push(Probe { waited: begun.elapsed(), failed });
                sleep(Duration::from_millis(5));
            }
            probes
        };
        let client = &stage.client;
        let probing: Vec<_> = (0..PROBES)
            .map(|_| scope.spawn(move || client.run(probe).expect("entering the client")))
            .collect();
        let done = work(address);
        over.store(true, Relaxed);
        let probes = probing.into_iter().flat_map(|it| it.join().expect("probes")).collect();
        drop(finally);
        (done, probes)
    })
}

/// Unit: ms. Median, 99 % and most.
fn quantiles(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    [last / 2, last * 99 / 100, last]
        .map(|at| times.get(at).map_or(f64::NAN, |it| (it.as_secs_f64() * 1e4).round() / 10.0))
}

fn of_probes(probes: &[Probe]) -> Value {
    json!({
        "tried": probes.len(),
        "failed": probes.iter().filter(|it| it.failed.is_some()).count(),
        "failures": probes.iter().filter_map(|it| Some(it.failed?.to_string())).collect::<Vec<_>>(),
        "wait_ms": quantiles(probes.iter().map(|it| it.waited).collect()),
    })
}

/// The number of flows that still carry a word in both directions. They are asked in parallel: the
/// answer is about one moment.
fn alive(flows: &mut [Flow]) -> usize {
    scope(|scope| {
        let asking: Vec<_> = flows
            .chunks_mut(50)
            .map(|part| {
                scope.spawn(|| part.iter_mut().map(Flow::word).filter(|alive| *alive).count())
            })
            .collect();
        asking.into_iter().map(|it| it.join().expect("words")).sum()
    })
}

/// One restart. `None`, with a clear message, if the program is not available.
fn restarted(kind: Kind, count: usize) -> Option<Value> {
    let stage = Stage::set().expect("a place for it");
    let mut program = Program::start(kind, &stage, count)?;
    let listener = stage.listen(Family::V4);
    let flow = |(client, server)| Flow { client, server, lost: None };
    let mut flows: Vec<_> = (0..count).map(|_| flow(relayed(&stage, &listener))).collect();
    let busy = count / 2;
    let old = program.relaying();
    assert_eq!(program.carried(&old), count, "the program relays all flows");

    let (usual, usual_probes) =
        probed(&stage, |_| longest_waits(&mut flows[..busy], Flow::word, || {}));
    let mut served_after = Duration::ZERO;
    let (waits, probes) = probed(&stage, |address| {
        longest_waits(&mut flows[..busy], Flow::word, || {
            let ordered = Instant::now();
            program.restart();
            until("the next program serves", || {
                let Ok(new) = stage.client.run(|| ask(address)).expect("entering") else {
                    return false;
                };
                let mut next = program.relaying();
                next.retain(|number| !old.contains(number));
                let serves = program.carried(&next) > 0;
                drop(new);
                serves
            });
            served_after = ordered.elapsed();
        })
    });
    let by_old = program.carried(&old);
    let old_kib: u64 =
        old.iter().filter(|number| !is_gone(**number)).map(|number| resident(*number)).sum();
    let alive_after = alive(&mut flows);

    // The busy ones stay busy until the old process has gone.
    longest_waits(&mut flows[..busy], Flow::word, || match kind.limit() {
        Some(limit) => until_within(limit + PATIENCE, "the old process goes", || {
            old.iter().all(|number| is_gone(*number))
        }),
        None => sleep(Duration::from_secs(limit_s() + 2)),
    });
    let alive_later = alive(&mut flows);
    let by_old_later = program.carried(&old);
    let lost = |how| flows.iter().filter(|flow| flow.lost == Some(how)).count();
    Some(json!({
        "program": kind.name(),
        "flows": count,
        "busy": busy,
        "alive_after": alive_after,
        "with_old_process_after": by_old,
        "old_process_kib": old_kib,
        "alive_later": alive_later,
        "with_old_process_later": by_old_later,
        "reset": lost(Loss::Reset),
        "closed": lost(Loss::Closed),
        "silent": lost(Loss::Silent),
        "next_serves_after_ms": (served_after.as_secs_f64() * 1e3).round(),
        "wait_ms": quantiles(waits),
        "usual_wait_ms": quantiles(usual),
        "new": of_probes(&probes),
        "usual_new": of_probes(&usual_probes),
        "load": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    }))
}

/// The columns of the table, and where each is in a record.
const COLUMNS: [(&str, &[&str]); 11] = [
    ("program", &["/program"]),
    ("flows", &["/flows"]),
    ("alive after the restart", &["/alive_after"]),
    ("of these with the old process", &["/with_old_process_after"]),
    ("its memory, KiB", &["/old_process_kib"]),
    ("alive after the limit", &["/alive_later"]),
    ("reset, closed, silent", &["/reset", "/closed", "/silent"]),
    (
        "longest wait of a busy flow: median, 99 %, most, ms",
        &["/wait_ms/0", "/wait_ms/1", "/wait_ms/2"],
    ),
    ("in another second", &["/usual_wait_ms/0", "/usual_wait_ms/1", "/usual_wait_ms/2"]),
    (
        "new connections: failed, tried, longest, ms",
        &["/new/failed", "/new/tried", "/new/wait_ms/2"],
    ),
    ("in another second", &["/usual_new/failed", "/usual_new/tried", "/usual_new/wait_ms/2"]),
];

fn table(records: &[Value]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let cell = |record: &Value, places: &[&str]| {
        let values = places.iter().map(|place| match record.pointer(place) {
            Some(Value::String(text)) => text.clone(),
            value => value.map_or_else(String::new, Value::to_string),
        });
        values.collect::<Vec<_>>().join(", ")
    };
    let mut text = row(COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect());
    text += &row(vec!["---".to_owned(); COLUMNS.len()]);
    for record in records {
        text += &row(COLUMNS.iter().map(|(_, places)| cell(record, places)).collect());
    }
    text
}

/// The figures of `make bench-survival` on restarts: half of many flows are busy with short messages
/// while the program is replaced.
#[test]
#[ignore = "takes a minute: make bench-survival"]
fn figures() {
    let number = |name: &str, usual: usize| {
        std::env::var(name).map_or(usual, |count| count.parse().expect("a number"))
    };
    let (flows, rounds) =
        (number("MIDHOP_SURVIVAL_FLOWS", 1000), number("MIDHOP_SURVIVAL_ROUNDS", 1));
    // Both ends of each flow, and both connections of a peer that inherits this limit.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let wanted = 4 * flows as u64 + 1024;
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).expect("more open files");
    }
    let mut records = Vec::new();
    for _ in 0..rounds {
        for record in Kind::ALL.into_iter().filter_map(|kind| restarted(kind, flows)) {
            println!("{record}");
            records::record("restarts", record.clone());
            records.push(record);
        }
    }
    println!("{}", table(&records));
    let ours = records.iter().filter(|record| record["program"] == Kind::Midhopd.name());
    for record in ours {
        assert_eq!(record["alive_later"], flows, "midhopd has lost flows");
    }
}
