//! The loads: bulk, short connections, ping-pong, idle flows; and the server for all of them.
//!
//! The first byte that a client sends selects the service. `D`: bytes without end. `U`: the server
//! reads to the end and answers with the number of bytes. `E`: an echo of each 100 bytes. `G` and
//! `P`: the bytes of [`whole`], from the server and to it.

use crate::Result;
use crate::path::{Path, SERVER};
use crate::witness::Witness;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The server listens on several ports, so that short connections do not run out of client ports.
const PORTS: std::ops::Range<u16> = 7000..7008;
const CHUNK: usize = 256 * 1024;
const MESSAGE: usize = 100;
/// A relay that sends nothing for so long has reached a limit of its own.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECTING_THREADS: u32 = 4;
const CONNECTING_AT_ONCE: u32 = 16;
/// What a relay has to carry without a fault before it is measured. Unit: bytes.
const WHOLE: usize = 20_000_000;

/// The load on a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    Bulk,
    /// Bulk on one flow.
    Single,
    Pings,
    /// The client's handshakes, one after another.
    Handshakes,
    Idle,
    /// Connections one after another.
    Sequence,
    Connections,
}

impl Load {
    /// In the order in which they are run.
    pub const ALL: [Self; 7] = [
        Self::Bulk,
        Self::Single,
        Self::Pings,
        Self::Handshakes,
        Self::Idle,
        Self::Sequence,
        Self::Connections,
    ];

    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bulk" => Some(Self::Bulk),
            "single" => Some(Self::Single),
            "pings" => Some(Self::Pings),
            "handshakes" => Some(Self::Handshakes),
            "idle" => Some(Self::Idle),
            "sequence" => Some(Self::Sequence),
            "connections" => Some(Self::Connections),
            _ => None,
        }
    }
}

/// Direction of the bulk transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Down,
    Up,
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct Work {
    /// Bytes that arrived while it was timed.
    pub bytes: u64,
    /// Connections that were made and served.
    pub count: u64,
    pub took: Duration,
    /// Connections that received nothing for [`PATIENCE`] and were given up.
    pub stuck: u64,
    /// All bytes that arrived at the server, also before and after the timed period.
    pub up: u64,
    /// All bytes that arrived at clients.
    pub down: u64,
    /// Packets that were forwarded past the relay in the timed period. None: count from the begin
    /// of the load to its end.
    pub forwarded: Option<u64>,
}

impl Work {
    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.took.as_secs_f64()
    }

    pub fn count_per_s(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

/// Serves until dropped.
pub struct Server {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Server {
    pub fn start(path: &Path) -> Result<Self> {
        let listeners: Vec<TcpListener> = path.server.run(|| {
            PORTS
                .map(|port| {
                    let listener = socket2::Socket::new(
                        socket2::Domain::IPV4,
                        socket2::Type::STREAM.nonblocking(),
                        None,
                    )?;
                    listener.set_reuse_address(true)?;
                    listener.bind(&SocketAddr::from((SERVER, port)).into())?;
                    listener.listen(16_384)?;
                    Ok(listener.into())
                })
                .collect::<std::io::Result<_>>()
        })??;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build()?;
        for listener in listeners {
            let _context = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(async move {
                        // Every load ends with clients that close their connections: that is no
                        // error.
                        let _ = serve(socket).await;
                    });
                }
            });
        }
        Ok(Self { runtime: Some(runtime) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(mut socket: tokio::net::TcpStream) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    socket.set_nodelay(true)?;
    let mut buffer = [0; MESSAGE];
    match socket.read_u8().await? {
        b'D' => {
            let chunk = vec![0x5a; CHUNK];
            loop {
                socket.write_all(&chunk).await?;
            }
        }
        b'U' => {
            let mut sink = vec![0; CHUNK];
            let mut count = 0;
            loop {
                match socket.read(&mut sink).await? {
                    0 => break,
                    read => count += read as u64,
                }
            }
            socket.write_all(&count.to_be_bytes()).await
        }
        b'G' => socket.write_all(noise()).await,
        b'P' => {
            let mut bytes = Vec::with_capacity(WHOLE);
            socket.read_to_end(&mut bytes).await?;
            socket.write_all(if bytes == noise() { b"same" } else { b"else" }).await
        }
        _ => loop {
            socket.read_exact(&mut buffer).await?;
            socket.write_all(&buffer).await?;
        },
    }
}

/// Carries incompressible bytes both ways at once, each direction to its end, and compares every
/// byte.
pub fn whole(path: &Path) -> Result<Work> {
    let begin = Instant::now();
    let (mut get, mut put) = (connect(path, 0)?, connect(path, 1)?);
    let putting = thread::spawn(move || -> Result<bool> {
        put.write_all(b"P")?;
        put.write_all(noise())?;
        put.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        put.read_to_end(&mut answer)?;
        Ok(answer == b"same")
    });
    get.write_all(b"G")?;
    let mut bytes = Vec::with_capacity(WHOLE);
    get.read_to_end(&mut bytes)?;
    if bytes != noise() {
        return Err(
            format!("{} of {WHOLE} bytes came, or others than were sent", bytes.len()).into()
        );
    }
    if !putting.join().map_err(|_| "a flow's thread panicked")?? {
        return Err("other bytes reached the server than were sent".into());
    }
    let moved = WHOLE as u64;
    let took = begin.elapsed();
    Ok(Work { bytes: 2 * moved, took, up: moved, down: moved, ..Work::default() })
}

fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..WHOLE)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect()
    })
}

/// Bytes without end over several flows, counted at the client; what is sent up is compared with what the
/// server received.
pub fn bulk(
    witness: Witness<'_>,
    direction: Direction,
    count: u32,
    seconds: Duration,
) -> Result<Work> {
    let path = witness.path;
    let stop = Arc::new(AtomicBool::new(false));
    let bytes = Arc::new(AtomicU64::new(0));
    let ready = Arc::new(Barrier::new(count as usize + 1));
    let flows: Vec<_> = (0..count)
        .map(|_| {
            let (stop, bytes, ready) = (stop.clone(), bytes.clone(), ready.clone());
            let socket = connect(path, 0);
            thread::spawn(move || -> Result<()> {
                let socket = socket;
                ready.wait();
                match direction {
                    Direction::Down => pull(socket?, &stop, &bytes),
                    Direction::Up => push(socket?, &stop, &bytes),
                }
            })
        })
        .collect();
    ready.wait();
    // The slow start at the beginning is not measured.
    thread::sleep(Duration::from_millis(300));
    let past = witness.forwarded()?;
    let (begin, before) = (Instant::now(), bytes.load(Ordering::Relaxed));
    thread::sleep(seconds);
    let (took, after) = (begin.elapsed(), bytes.load(Ordering::Relaxed));
    let past = witness.forwarded()? - past;
    stop.store(true, Ordering::Relaxed);
    for flow in flows {
        flow.join().map_err(|_| "a flow's thread panicked")??;
    }
    let all = bytes.load(Ordering::Relaxed);
    let (up, down) = if direction == Direction::Up { (all, 0) } else { (0, all) };
    Ok(Work { bytes: after - before, took, up, down, forwarded: Some(past), ..Work::default() })
}

fn pull(mut socket: TcpStream, stop: &AtomicBool, bytes: &AtomicU64) -> Result<()> {
    socket.write_all(b"D")?;
    let mut sink = vec![0; CHUNK];
    while !stop.load(Ordering::Relaxed) {
        let read = socket.read(&mut sink)?;
        if read == 0 {
            return Err("the stream ended by itself".into());
        }
        bytes.fetch_add(read as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// What waits in the sockets when it stops is a few megabytes at most, of many gigabytes.
fn push(mut socket: TcpStream, stop: &AtomicBool, bytes: &AtomicU64) -> Result<()> {
    socket.write_all(b"U")?;
    let chunk = vec![0x5a; CHUNK];
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        socket.write_all(&chunk)?;
        sent += chunk.len() as u64;
        bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0; 8];
    socket.read_exact(&mut answer)?;
    let came = u64::from_be_bytes(answer);
    if came != sent {
        return Err(format!("{came} of {sent} bytes reached the server").into());
    }
    Ok(())
}

fn connect(path: &Path, number: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((SERVER, PORTS.start + number % PORTS.len() as u16));
    let socket = path.client.run(|| TcpStream::connect(address))??;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Median time of 100 bytes there and back on one connection.
pub fn ping_pong(path: &Path, times: usize) -> Result<(Work, Duration)> {
    let start = Instant::now();
    let mut socket = connect(path, 0)?;
    let mut buffer = [0x5a; MESSAGE];
    socket.write_all(b"E")?;
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let begin = Instant::now();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut buffer)?;
        samples.push(begin.elapsed());
    }
    samples.sort_unstable();
    let moved = (times * MESSAGE) as u64;
    let took = start.elapsed();
    let work = Work { bytes: 2 * moved, took, up: moved, down: moved, ..Work::default() };
    Ok((work, samples[samples.len() / 2]))
}

/// Median time from a client's SYN until its connection stands. Each connection then exchanges 100
/// bytes.
pub fn handshakes(path: &Path, times: usize) -> Result<(Work, Duration)> {
    let start = Instant::now();
    let mut buffer = [0x5a; MESSAGE];
    let mut samples = Vec::with_capacity(times);
    path.client.run(|| -> Result<()> {
        for number in 0..times {
            let port = PORTS.start + (number % PORTS.len()) as u16;
            let begin = Instant::now();
            let mut socket = TcpStream::connect((SERVER, port))?;
            samples.push(begin.elapsed());
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.write_all(b"E")?;
            socket.write_all(&buffer)?;
            socket.read_exact(&mut buffer)?;
        }
        Ok(())
    })??;
    samples.sort_unstable();
    let count = times as u64;
    let moved = count * MESSAGE as u64;
    let took = start.elapsed();
    let work = Work { bytes: 2 * moved, count, took, up: moved, down: moved, ..Work::default() };
    Ok((work, samples[samples.len() / 2]))
}

/// Connects, exchanges 100 bytes both ways and closes: as many times as possible, many at a time.
pub fn connections(path: &Path, seconds: Duration) -> Result<Work> {
    connect_by(path, seconds, CONNECTING_THREADS, CONNECTING_AT_ONCE)
}

/// The same one after another.
pub fn sequence(path: &Path, seconds: Duration) -> Result<Work> {
    connect_by(path, seconds, 1, 1)
}

fn connect_by(path: &Path, seconds: Duration, threads: u32, at_once: u32) -> Result<Work> {
    let begin = Instant::now();
    let threads: Vec<_> = (0..threads)
        .map(|number| {
            let client = path.client.clone();
            thread::spawn(move || -> Result<Vec<Served>> {
                client.enter()?;
                let mut builder = tokio::runtime::Builder::new_current_thread();
                let runtime = builder.enable_io().enable_time().build()?;
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    let tasks: Vec<_> = (0..at_once)
                        .map(|task| {
                            let first = number * at_once + task;
                            tokio::task::spawn_local(connect_again(first as u16, begin + seconds))
                        })
                        .collect();
                    let mut served = Vec::with_capacity(tasks.len());
                    for task in tasks {
                        served.push(task.await??);
                    }
                    Ok(served)
                })
            })
        })
        .collect();
    let mut served = Vec::new();
    for thread in threads {
        served.extend(thread.join().map_err(|_| "a connecting thread panicked")??);
    }
    let count = served.iter().map(|served| served.count).sum();
    let last = served.iter().filter_map(|served| served.last).max();
    let last = last.ok_or("no connection was served")?;
    Ok(Work {
        count,
        took: last - begin,
        up: count * MESSAGE as u64,
        down: count * MESSAGE as u64,
        stuck: served.iter().filter(|served| served.is_stuck).count() as u64,
        ..Work::default()
    })
}

/// Connections that one client made, one after another.
#[derive(Default)]
struct Served {
    count: u64,
    /// When the last one was served.
    last: Option<Instant>,
    /// Whether the connection after it was stuck.
    is_stuck: bool,
}

async fn connect_again(first: u16, until: Instant) -> Result<Served> {
    let mut served = Served::default();
    while Instant::now() < until {
        let port = PORTS.start + (first.wrapping_add(served.count as u16)) % PORTS.len() as u16;
        let Ok(asked) = tokio::time::timeout(PATIENCE, ask(port)).await else {
            served.is_stuck = true;
            return Ok(served);
        };
        asked?;
        served.count += 1;
        served.last = Some(Instant::now());
    }
    Ok(served)
}

/// Connects, sends a message and receives it again.
async fn ask(port: u16) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut request = [0x5a; MESSAGE + 1];
    request[0] = b'E';
    let mut socket = tokio::net::TcpStream::connect((SERVER, port)).await?;
    socket.write_all(&request).await?;
    socket.read_exact(&mut [0; MESSAGE]).await?;
    Ok(())
}

/// Opens up to `count` flows, sends one message on each, and returns them open. There are fewer
/// where the relay takes no more.
pub fn hold_idle(path: &Path, count: u32) -> Result<Vec<TcpStream>> {
    let mut flows = Vec::with_capacity(count as usize);
    path.client.run(|| {
        for number in 0..count {
            match open_idle(number) {
                Ok(socket) => flows.push(socket),
                Err(error) => {
                    eprintln!("no more than {} idle flows: {error}", flows.len());
                    break;
                }
            }
        }
    })?;
    Ok(flows)
}

fn open_idle(number: u32) -> std::io::Result<TcpStream> {
    let mut buffer = [0x5a; MESSAGE];
    let port = PORTS.start + (number % PORTS.len() as u32) as u16;
    let mut socket = TcpStream::connect((SERVER, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(b"E")?;
    socket.write_all(&buffer)?;
    socket.read_exact(&mut buffer)?;
    Ok(socket)
}
