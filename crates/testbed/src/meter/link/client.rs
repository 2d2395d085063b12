//! The measuring end: asks for trains both ways, one after the other, and makes the report.

use super::end::LinkEnd;
use super::estimate::Arrived;
use super::found::Trips;
use super::message::{LinkMessage, Sent};
use super::progress::ProgressLines;
use super::schedule::{END, Schedule, Task, Times, index, name};
use super::train::Train;
use super::wire::{Kind, Token};
use crate::meter::connection::Connection;
use crate::meter::error::{FlowError, MeterError};
use crate::meter::message::{Amount, Direction, Refusal};
use crate::meter::options::{MeterOptions, Progress, Workload};
use crate::meter::wire::{ControlFrame, PREFACE};
use crate::meter::{client, socket};
use midhop_experiment::measured::{LinkDirection, LinkReport};
use midhop_experiment::record::FlowResult;
use midhop_units::{Duration, Rate};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration as StdDuration, Instant};
use tokio::net::{TcpSocket, TcpStream};

/// How long the connection may take to be established.
const CONNECT: StdDuration = StdDuration::from_secs(10);
/// How long a server may take to answer, in addition to the task itself.
const ANSWER: StdDuration = StdDuration::from_secs(30);
/// How often the first datagram is sent again, and how many times.
const HELLO_EVERY: StdDuration = StdDuration::from_millis(250);
const HELLOS: u32 = 24;
/// How many pings there are, and the longest between two.
const PINGS: u32 = 40;
const PING_EVERY: Duration = Duration::from_ms(50);
/// How long late answers to pings are waited for.
const PONGS_LATE: StdDuration = StdDuration::from_secs(3);

/// How a link is to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkOptions {
    /// The far host: a name or an address.
    pub host: String,
    /// Its port, of TCP and of UDP.
    pub port: u16,
    /// The local address to use; the system's choice when none.
    pub bind: Option<IpAddr>,
    /// The number of pings for the round trip, and the interval between two.
    pub pings: (u32, Duration),
    /// How long the train takes by which a rate is judged.
    pub rate_time: Duration,
    /// How long losses are counted each way.
    pub loss_time: Duration,
    /// How long one TCP flow sends each way; zero: there is none.
    pub tcp_time: Duration,
    /// The time limit of the measurement: tasks that do not fit are left out.
    pub time_max: Duration,
}

impl LinkOptions {
    /// A measurement within `time`. Below a minute, each part is shorter.
    pub fn within(host: impl Into<String>, port: u16, time: Duration) -> Self {
        let part = |most: Duration, whole: u64| most.min(Duration::from_ns(time.as_ns() / whole));
        Self {
            host: host.into(),
            port,
            bind: None,
            pings: (PINGS, part(PING_EVERY, 1_200)),
            rate_time: part(Duration::from_s(4), 15),
            loss_time: part(Duration::from_s(4), 15),
            tcp_time: part(Duration::from_s(3), 20),
            time_max: time,
        }
    }
}

/// Why a link could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no address, or a local resource is missing.
    #[error(transparent)]
    Meter(#[from] MeterError),
    /// The control connection could not be established, or broke.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The server ended the conversation instead of answering.
    #[error("{host} port {port} does not answer to a link's measurement")]
    NoService {
        /// The far host.
        host: String,
        /// Its port.
        port: u16,
    },
    /// TCP passes, datagrams do not.
    #[error(
        "TCP reaches {host} port {port}, datagrams do not: {}",
        if *attached { "they reach it, its answers do not come back" } else { "none reaches it" }
    )]
    Blocked {
        /// The far host.
        host: String,
        /// The port.
        port: u16,
        /// Whether the server has received any.
        attached: bool,
    },
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The time was over before anything could be measured.
    #[error("nothing could be measured within {most}")]
    NoTime {
        /// The time limit.
        most: Duration,
    },
    /// Small datagrams pass, but those of a train do not.
    #[error("{way}: nothing that can be judged arrives of a train of datagrams of 1250 bytes")]
    Nothing {
        /// Which way.
        way: &'static str,
    },
}

/// Receives the progress of a measurement, one line at a time.
pub type OnLine = dyn Fn(&str) + Send + Sync;

/// Measures a link.
///
/// # Errors
/// When the host does not serve links, or datagrams do not pass.
///
/// # Panics
/// Outside a tokio runtime with I/O and time enabled.
pub async fn measure(options: &LinkOptions, on_line: Arc<OnLine>) -> Result<LinkReport, LinkError> {
    let begin = Instant::now();
    let late = LinkError::NoTime { most: options.time_max };
    let opened = tokio::time::timeout(options.time_max.into(), Session::begin(options)).await;
    let mut session = opened.unwrap_or(Err(late))?;
    let progress = ProgressLines::new(on_line, begin, Arc::clone(&session.end));
    let lines = tokio::spawn(Arc::clone(&progress).print_all());
    let result = session.measure(options, &progress).await;
    lines.abort();
    result
}

async fn connect(options: &LinkOptions) -> Result<TcpStream, LinkError> {
    let found = tokio::net::lookup_host((options.host.as_str(), options.port))
        .await
        .map_err(|source| MeterError::Resolve { host: options.host.clone(), source })?;
    let fits = |address: &SocketAddr| {
        options.bind.is_none_or(|local| local.is_ipv4() == address.is_ipv4())
    };
    let mut last = None;
    for address in found.filter(fits) {
        let attempt = tokio::time::timeout(CONNECT, connect_to(address, options.bind)).await;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok(stream),
            Err(source) => last = Some(FlowError::Connect { address, source }),
        }
    }
    Err(match last {
        Some(error) => error.into(),
        None => MeterError::NoAddress { host: options.host.clone() }.into(),
    })
}

async fn connect_to(address: SocketAddr, bind: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(local) = bind {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket::prepare(&socket);
    socket.connect(address).await
}

/// The result of a task.
enum TaskResult {
    Arrived(Arrived),
    /// The flow, or why there was none.
    Flowed(Result<FlowResult, String>),
}

fn set_flow(way: &mut LinkDirection, flow: FlowResult) {
    way.tcp_goodput_bit_per_s = Some(flow.goodput.bits_per_s() as f64);
    way.tcp_bytes = Some(flow.bytes.get());
    way.tcp_took_s = Some(flow.end.saturating_sub(flow.start).as_s_f64());
    way.tcp_retransmissions = Some(flow.retransmissions);
    way.tcp_congestion = Some(flow.congestion);
}

/// A session that the server has opened.
struct Session {
    connection: Connection,
    end: Arc<LinkEnd>,
    rate_max: Rate,
    trains: u32,
}

impl Session {
    async fn begin(options: &LinkOptions) -> Result<Self, LinkError> {
        let stream = connect(options).await?;
        let mut session = Self::open(options, stream).await?;
        session.attach(options).await?;
        Ok(session)
    }

    async fn open(options: &LinkOptions, stream: TcpStream) -> Result<Self, LinkError> {
        let local = |source| FlowError::Socket { doing: "make a socket for datagrams", source };
        let here = SocketAddr::new(stream.local_addr().map_err(local)?.ip(), 0);
        let there = stream.peer_addr().map_err(local)?;
        let mut connection = Connection::of_client(stream);
        connection.queue_raw(PREFACE);
        let none = || LinkError::NoService { host: options.host.clone(), port: options.port };
        match ask(&mut connection, LinkMessage::Open {}, StdDuration::ZERO).await {
            Ok(LinkMessage::Opened { token, rate_bit_per_s_max }) => {
                let token = Token::from_hex(&token).ok_or_else(none)?;
                let end = Arc::new(LinkEnd::start(here, there, token, false).map_err(local)?);
                let rate_max = Rate::from_bits_per_s(rate_bit_per_s_max);
                Ok(Self { connection, end, rate_max, trains: 0 })
            }
            // An older server does not know this message, and closes.
            Ok(_) | Err(LinkError::Flow(FlowError::Cut | FlowError::Receive(_))) => Err(none()),
            Err(error) => Err(error),
        }
    }

    /// Makes this end's address of datagrams known to the server.
    async fn attach(&mut self, options: &LinkOptions) -> Result<(), LinkError> {
        for number in 0..HELLOS {
            self.end.send(Kind::Hello, number);
            tokio::time::sleep(HELLO_EVERY).await;
            if self.end.seen() {
                return Ok(());
            }
        }
        let asked = self.ask(LinkMessage::Attached {}, StdDuration::ZERO).await;
        let attached = matches!(asked, Ok(LinkMessage::AttachedIs { yes: true }));
        if self.end.seen() {
            return Ok(());
        }
        Err(LinkError::Blocked { host: options.host.clone(), port: options.port, attached })
    }

    async fn measure(
        &mut self,
        options: &LinkOptions,
        progress: &ProgressLines,
    ) -> Result<LinkReport, LinkError> {
        progress.phase("round trip: small datagrams", None);
        let late = LinkError::NoTime { most: options.time_max };
        let trips = tokio::time::timeout(progress.left(options), self.trips(options)).await;
        let trips = trips.unwrap_or(Err(late))?;
        let [rtt_min_ms, rtt_median_ms, rtt_p95_ms] = trips.rtt_ms;
        progress.line(&format!(
            "round trip: {rtt_min_ms:.1} ms at least, {rtt_median_ms:.1} ms median"
        ));
        let times = Times {
            most: options.time_max,
            rate: options.rate_time,
            loss: options.loss_time,
            tcp: options.tcp_time,
        };
        let rtt = Duration::from_s_f64(rtt_median_ms / 1e3);
        let mut schedule = Schedule::new(times, rtt, self.rate_max);
        loop {
            let task = schedule.next(progress.elapsed());
            if task == Task::Done {
                break;
            }
            let left = progress.left(options).saturating_sub(END.into());
            let Ok(done) = tokio::time::timeout(left, self.run(&task, options, progress)).await
            else {
                // The far end may still be busy with the task: no further task can be sent to it.
                schedule.stop();
                break;
            };
            match (done?, &task) {
                (TaskResult::Arrived(arrived), _) => schedule.arrived(&arrived),
                (TaskResult::Flowed(flow), Task::Tcp { direction, .. }) => {
                    let failure =
                        flow.map(|flow| set_flow(&mut schedule.ways[index(*direction)], flow));
                    schedule.flowed(failure.err());
                }
                (TaskResult::Flowed(_), _) => break,
            }
        }
        let Schedule { mut ways, nothing, notes: mut warnings, .. } = schedule;
        if let Some(&direction) = nothing.first() {
            return Err(LinkError::Nothing { way: name(direction) });
        }
        if ways.iter().all(|way| !way.is_known()) {
            return Err(LinkError::NoTime { most: options.time_max });
        }
        let [down, up] = &mut ways;
        for (way, variation) in [(down, trips.down_ms), (up, trips.up_ms)] {
            let [median, p95] = variation.map(|ms| ms / 1e3);
            (way.delay_variation_median_s, way.delay_variation_p95_s) = (median, p95);
        }
        let [down, up] = ways;
        warnings.extend(down.warnings(name(Direction::Down)));
        warnings.extend(up.warnings(name(Direction::Up)));
        warnings.push(
            "what others sent over the link meanwhile is missing from its rate; measure again at another hour"
                .to_owned(),
        );
        Ok(LinkReport {
            host: options.host.clone(),
            port: options.port,
            took_s: progress.elapsed().as_s_f64(),
            time_s_max: options.time_max.as_s_f64(),
            rtt_min_s: rtt_min_ms / 1e3,
            rtt_median_s: rtt_median_ms / 1e3,
            rtt_p95_s: rtt_p95_ms / 1e3,
            pings: u64::from(options.pings.0),
            pings_lost: u64::from(options.pings.0).saturating_sub(trips.answered),
            down,
            up,
            warnings,
        })
    }

    /// Pings a link at rest.
    async fn trips(&self, options: &LinkOptions) -> Result<Trips, LinkError> {
        let (count, every) = options.pings;
        for number in 0..count {
            self.end.send(Kind::Ping, number);
            tokio::time::sleep(every.into()).await;
        }
        let begin = Instant::now();
        while self.end.pongs().len() < count as usize && begin.elapsed() < PONGS_LATE {
            tokio::time::sleep(HELLO_EVERY / 10).await;
        }
        Trips::of(&self.end.pongs()).ok_or_else(|| LinkError::Blocked {
            host: options.host.clone(),
            port: options.port,
            attached: true,
        })
    }

    /// Does one task.
    async fn run(
        &mut self,
        task: &Task,
        options: &LinkOptions,
        progress: &ProgressLines,
    ) -> Result<TaskResult, LinkError> {
        match *task {
            Task::Train { direction, rate, time, purpose } => {
                let mbit = rate.mbit_per_s();
                let way = name(direction);
                progress.phase(&format!("{purpose} {way}: a train of {mbit:.2} Mbit/s"), None);
                Ok(TaskResult::Arrived(self.train(direction, rate, time).await?))
            }
            Task::Tcp { direction, most } => {
                let moved = Arc::new(Progress::default());
                let flow = Some((direction, Arc::clone(&moved)));
                progress.phase(&format!("one TCP flow {}", name(direction)), flow);
                Ok(TaskResult::Flowed(tcp(direction, options, most.into(), moved).await))
            }
            Task::Done => Ok(TaskResult::Flowed(Err("there was none".to_owned()))),
        }
    }

    /// Sends one train, and gives what the far end received of it.
    async fn train(
        &mut self,
        direction: Direction,
        rate: Rate,
        time: Duration,
    ) -> Result<Arrived, LinkError> {
        self.trains += 1;
        let train = Train::lasting(self.trains, rate.min(self.rate_max), time);
        let takes = StdDuration::from(train.time());
        if direction == Direction::Down {
            self.end.expect(train);
            let sent = match self.ask(LinkMessage::Send(train), takes).await? {
                LinkMessage::Sent(sent) => sent,
                other => return Err(FlowError::Unexpected { what: other.name() }.into()),
            };
            return Ok(self.end.collect(sent).await);
        }
        match self.ask(LinkMessage::Expect(train), StdDuration::ZERO).await? {
            LinkMessage::Ready {} => {}
            other => return Err(FlowError::Unexpected { what: other.name() }.into()),
        }
        let sent: Sent = self.end.send_train(train).await;
        match self.ask(LinkMessage::Collect(sent), StdDuration::ZERO).await? {
            LinkMessage::Arrived(arrived) => {
                let what = "the judgement of a train that was never sent";
                Ok(arrived.bounded(&train).ok_or(FlowError::Unexpected { what })?)
            }
            other => Err(FlowError::Unexpected { what: other.name() }.into()),
        }
    }

    async fn ask(
        &mut self,
        message: LinkMessage,
        takes: StdDuration,
    ) -> Result<LinkMessage, LinkError> {
        ask(&mut self.connection, message, takes).await
    }
}

/// Sends `message`, and returns the answer, for which the server needs some time.
async fn ask(
    connection: &mut Connection,
    message: LinkMessage,
    takes: StdDuration,
) -> Result<LinkMessage, LinkError> {
    connection.queue(&ControlFrame::Link(Box::new(message)));
    let patience = takes + ANSWER;
    let answer = async {
        connection.flush().await?;
        connection.frame().await
    };
    let silent = Err(FlowError::Silent { seconds: patience.as_secs() });
    match tokio::time::timeout(patience, answer).await.unwrap_or(silent)? {
        Some(ControlFrame::Link(message)) => Ok(*message),
        Some(ControlFrame::Refuse(refusal)) => Err(LinkError::Refused(refusal)),
        Some(other) => Err(FlowError::Unexpected { what: other.name() }.into()),
        None => Err(FlowError::Cut.into()),
    }
}

/// One TCP flow.
async fn tcp(
    direction: Direction,
    options: &LinkOptions,
    most: StdDuration,
    moved: Arc<Progress>,
) -> Result<FlowResult, String> {
    let each = Amount::TimeNs(options.tcp_time.as_ns());
    let flow = MeterOptions {
        direction,
        bind: options.bind,
        workload: Workload::Flows { count: 1, each },
        interval: None,
        time_limit: Some(most.into()),
        ..MeterOptions::new(options.host.clone(), options.port, each)
    };
    let report = client::run(&flow, moved).await;
    let report = report.map_err(|error| error.to_string())?;
    let flow = report.transfer.flows.into_iter().next().ok_or("there was none")?;
    match flow.error {
        Some(error) => Err(error),
        None => Ok(flow),
    }
}
