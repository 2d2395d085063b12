//! The client's end: opens the connections of a run, drives them in parallel, makes the report.

use super::clock;
use super::connection::Connection;
use super::error::{FlowError, MeterError};
use super::flow::{FlowOutcome, Item, Run};
use super::message::{Amount, Direction, Fetch, Log};
use super::options::{Connections, MeterOptions, Progress, Workload};
use super::report;
use super::series::Capacity;
use super::socket;
use super::wire::{ControlFrame, PREFACE};
use midhop_experiment::measured::MeterReport;
use midhop_units::Bytes;
use std::future::ready;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long each of the server's logs may take to arrive. The first one waits behind what an upload
/// has left in the queues: 100 packets before 60 kbit/s take 20 s.
const FETCH: Duration = Duration::from_secs(45);
/// Most logs that a fetch takes in: one per connection.
const LOGS_MAX: usize = super::FLOWS_MAX as usize;

/// Carries out `options` and gives the report. Flows that fail are part of the report.
///
/// All sockets belong to the network namespace in which the runtime's threads were made.
///
/// # Errors
/// When nothing could be measured, because an address or a congestion control is missing or the
/// server refused.
///
/// # Panics
/// Outside a tokio runtime with I/O and time enabled.
pub async fn run(
    options: &MeterOptions,
    progress: Arc<Progress>,
) -> Result<MeterReport, MeterError> {
    options.check()?;
    socket::raise_file_limit();
    let addresses = resolve(options).await?;
    check_congestion(options, &addresses)?;
    let epoch = options.epoch.unwrap_or_else(clock::now);
    let begin = (epoch + options.start_delay).max(clock::now());
    let run = Arc::new(Run {
        session: random()?,
        addresses,
        bind: options.bind,
        direction: options.direction,
        congestion: options.congestion.clone(),
        gaps: options.gaps,
        interval_ns: options.interval.map(|interval| interval.as_ns()).filter(|&ns| ns > 0),
        capacity: Capacity::among(options.connections()),
        seed: options.seed,
        deadline: options.time_limit.map(|limit| begin + limit),
        until: None,
        restarts: options.restarts,
        next_flow: AtomicU32::new(options.connections_planned()),
        clock: clock::name(),
        progress,
    });
    tokio::time::sleep_until(clock::on_tokio(begin)).await;
    let mut outcomes = drive(&run, &options.workload).await?;
    outcomes.sort_by_key(|outcome| outcome.flow);
    let refusal = outcomes.iter().find_map(|outcome| match &outcome.error {
        Some(FlowError::Refused(refusal)) => Some(refusal.clone()),
        _ => None,
    });
    if let Some(refusal) = refusal {
        return Err(MeterError::Refused(refusal));
    }
    let mut warnings = Vec::new();
    let met = outcomes.iter().any(|outcome| outcome.client_port != 0);
    let logs = if met { fetch(&run).await } else { Ok(Vec::new()) };
    let logs = logs.unwrap_or_else(|error| {
        warnings.push(format!(
            "the server's samples are missing, its retransmissions count as none: {error}"
        ));
        Vec::new()
    });
    Ok(report::assemble(options, epoch, outcomes, &logs, warnings))
}

async fn resolve(options: &MeterOptions) -> Result<Vec<SocketAddr>, MeterError> {
    let found = tokio::net::lookup_host((options.host.as_str(), options.port))
        .await
        .map_err(|source| MeterError::Resolve { host: options.host.clone(), source })?;
    let addresses: Vec<SocketAddr> = found
        .filter(|address| options.bind.is_none_or(|local| local.is_ipv4() == address.is_ipv4()))
        .collect();
    if addresses.is_empty() {
        return Err(MeterError::NoAddress { host: options.host.clone() });
    }
    Ok(addresses)
}

/// Checks the congestion control with the kernel before there is any traffic, so that there is one
/// error and not one per flow.
fn check_congestion(options: &MeterOptions, addresses: &[SocketAddr]) -> Result<(), MeterError> {
    let (Direction::Up, Some(name), Some(address)) =
        (options.direction, &options.congestion, addresses.first())
    else {
        return Ok(());
    };
    let domain = socket2::Domain::for_address(*address);
    let probe = socket2::Socket::new(domain, socket2::Type::STREAM, None)
        .map_err(|source| MeterError::Local { doing: "make a socket", source })?;
    socket::set_congestion(&probe, name).map_err(|source| MeterError::Congestion {
        name: name.clone(),
        available: socket::available_congestion(),
        source,
    })
}

/// A random number that no other run has.
pub(super) fn random() -> Result<u64, MeterError> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| MeterError::Local { doing: "read /dev/urandom", source })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The objects of a page, handed out in order.
struct Queue {
    objects: Vec<Bytes>,
    next: AtomicUsize,
}

impl Queue {
    fn next(&self) -> Option<(u32, Item)> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let amount = Amount::Bytes(self.objects.get(index)?.get());
        let id = u32::try_from(index).ok()?;
        Some((id, Item::new(Some(id), amount)))
    }
}

async fn drive(run: &Arc<Run>, workload: &Workload) -> Result<Vec<FlowOutcome>, MeterError> {
    let mut tasks: JoinSet<Vec<FlowOutcome>> = JoinSet::new();
    match workload {
        Workload::Flows { count, each } => {
            for flow in 0..*count {
                let run = Arc::clone(run);
                let item = Item::new(None, *each);
                tasks.spawn(async move { run.flow_and_again(flow, item, || ready(None)).await });
            }
        }
        Workload::Page { objects, parallel, connections } => {
            let queue = Arc::new(Queue { objects: objects.clone(), next: AtomicUsize::new(0) });
            let workers = (*parallel).min(u32::try_from(objects.len()).unwrap_or(*parallel));
            for worker in 0..workers {
                let (run, queue, connections) = (Arc::clone(run), Arc::clone(&queue), *connections);
                tasks.spawn(async move { page(&run, &queue, worker, connections).await });
            }
        }
    }
    let mut outcomes = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(|error| MeterError::Local {
            doing: "drive a flow",
            source: io::Error::other(error),
        })?;
        outcomes.extend(ended);
    }
    Ok(outcomes)
}

/// One of the parallel connections of a page.
async fn page(run: &Run, queue: &Queue, worker: u32, connections: Connections) -> Vec<FlowOutcome> {
    let mut outcomes = Vec::new();
    while let Some((id, item)) = queue.next() {
        let more = match connections {
            Connections::New => run.flow_and_again(id, item, || ready(None)).await,
            Connections::Persistent => {
                let next = || ready(queue.next().map(|(_, item)| item));
                run.flow_and_again(worker, item, next).await
            }
        };
        let failed = more.last().is_some_and(|outcome| outcome.error.is_some());
        outcomes.extend(more);
        if failed || connections == Connections::Persistent {
            break;
        }
    }
    outcomes
}

/// Asks the server for its logs of this run. Over a slow link, the logs of many flows take long to
/// arrive; only silence ends the wait.
async fn fetch(run: &Run) -> Result<Vec<Log>, FlowError> {
    let ask = async {
        let mut connection = Connection::of_client(run.connect().await?);
        connection.queue_raw(PREFACE);
        connection.queue(&ControlFrame::Fetch(Fetch { session: run.session }));
        connection.flush().await?;
        Ok(connection)
    };
    let mut connection = in_time(ask).await?;
    let mut logs = Vec::new();
    loop {
        match in_time(connection.frame()).await? {
            Some(ControlFrame::Log(log)) if logs.len() < LOGS_MAX => logs.push(*log),
            Some(ControlFrame::Done) => return Ok(logs),
            Some(other) => return Err(FlowError::Unexpected { what: other.name() }),
            None => return Err(FlowError::Cut),
        }
    }
}

/// The result of a fetch's `step`, or an error when it takes too long.
async fn in_time<T>(step: impl Future<Output = Result<T, FlowError>>) -> Result<T, FlowError> {
    let silent = Err(FlowError::Silent { seconds: FETCH.as_secs() });
    tokio::time::timeout(FETCH, step).await.unwrap_or(silent)
}
