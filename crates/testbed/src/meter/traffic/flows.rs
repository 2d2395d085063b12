//! TCP cross traffic: flows that send all the time, flows that begin at random, and users who load
//! pages.

use super::{Arrived, COUNT_EVERY, TrafficError, TrafficOptions, TrafficReport, local, stopped};
use crate::meter::clock;
use crate::meter::error::{FlowError, MeterError};
use crate::meter::flow::{Item, Run};
use crate::meter::message::{Amount, Direction, Refusal};
use crate::meter::options::Progress;
use crate::meter::series::Capacity;
use crate::meter::server::{Limits, Server, ServerOptions};
use crate::meter::{client, socket};
use midhop_experiment::limit::Opener;
use midhop_experiment::random::Random;
use midhop_experiment::traffic::{Beginnings, Load, TrafficPlan, page};
use midhop_units::{Duration, Instant, Seed};
use std::future::{pending, ready};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Longest duration of traffic: no run is longer.
const TIME_MAX: Duration = Duration::from_s(100_000);

/// Opens the flows of the plan, each at its time.
pub(super) fn open(
    options: TrafficOptions,
    stop: BorrowedFd<'_>,
    begins: impl FnOnce() -> Result<Instant, TrafficError>,
) -> Result<TrafficReport, TrafficError> {
    socket::raise_file_limit();
    let plan = options.plan;
    let uploads = matches!(plan.load, Load::Bulk { opens: Opener::From, .. });
    let mut congestion = plan.load.congestion().map(str::to_owned);
    // The sending end resolves the name: this end for uploads.
    if let (true, Some(name), Some(resolve)) = (uploads, &congestion, &options.resolve) {
        let found = resolve(name).map_err(|why| MeterError::Options(format!("{name}: {why}")))?;
        congestion = Some(found);
    }
    let progress = Arc::new(Progress::default());
    let runtime = runtime()?;
    let epoch = begins()?;
    let run = Run {
        session: client::random()?,
        addresses: vec![options.address],
        bind: None,
        direction: if uploads { Direction::Up } else { Direction::Down },
        congestion,
        gaps: false,
        interval_ns: None,
        capacity: Capacity::among(usize::MAX),
        seed: options.seed.derive(&plan.name),
        deadline: None,
        until: Some(epoch + plan.stop),
        // Cross traffic is not restarted.
        restarts: None,
        next_flow: AtomicU32::new(0),
        clock: clock::name(),
        progress: Arc::clone(&progress),
    };
    let crowd = Arc::new(Crowd {
        run,
        seed: options.seed,
        epoch,
        numbers: AtomicU32::new(0),
        sums: Mutex::default(),
        plan,
    });
    let mut arrived = Arrived::new(epoch);
    let made = Arc::clone(&crowd);
    until_stopped(runtime, stop, async move { made.make().await }, || {
        // In an upload, this end only knows what it has written.
        if !uploads {
            arrived.count(&progress);
        }
    });
    let sums = crowd.sums();
    if let Some(refusal) = &sums.refusal {
        return Err(TrafficError::refused(refusal));
    }
    Ok(TrafficReport {
        flows: sums.flows,
        complete: sums.complete,
        took: sums.took,
        ..arrived.report(&crowd.plan)
    })
}

/// Serves all clients.
pub(super) fn listen(
    options: TrafficOptions,
    stop: BorrowedFd<'_>,
    begins: impl FnOnce() -> Result<Instant, TrafficError>,
) -> Result<TrafficReport, TrafficError> {
    let counter = Arc::new(Progress::default());
    let limits = Limits { time: TIME_MAX, ..Limits::default() };
    let server = Server::bind(ServerOptions {
        listen: options.address,
        limits,
        resolve: options.resolve,
        arrived: Some(Arc::clone(&counter)),
        ..ServerOptions::default()
    })?;
    let runtime = runtime()?;
    let mut arrived = Arrived::new(begins()?);
    let serve = async {
        if let Err(error) = server.run().await {
            tracing::error!(%error, "cannot serve cross traffic");
        }
    };
    until_stopped(runtime, stop, serve, || arrived.count(&counter));
    Ok(arrived.report(&options.plan))
}

/// Runs `work` until `stop` shows that the run is over. Calls `count` at an interval, and at the
/// end.
fn until_stopped(
    runtime: Runtime,
    stop: BorrowedFd<'_>,
    work: impl Future<Output = ()>,
    mut count: impl FnMut(),
) {
    std::thread::scope(|scope| {
        let (sender, ended) = oneshot::channel();
        scope.spawn(move || {
            // If `stop` cannot be waited for, the run counts as over.
            let _ = stopped(stop, None);
            let _ = sender.send(());
        });
        runtime.block_on(async {
            let mut ticks = tokio::time::interval(COUNT_EVERY.into());
            let work = async {
                work.await;
                pending::<()>().await;
            };
            tokio::pin!(work, ended);
            loop {
                tokio::select! {
                    () = &mut work => {}
                    _ = ticks.tick() => count(),
                    _ = &mut ended => break,
                }
            }
        });
        count();
    });
    // Connections that are still open are aborted.
    runtime.shutdown_background();
}

fn runtime() -> Result<Runtime, TrafficError> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(local("start the threads"))
}

/// All flows of a line of traffic, at the end that opens them.
struct Crowd {
    plan: TrafficPlan,
    run: Run,
    seed: Seed,
    epoch: Instant,
    numbers: AtomicU32,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    flows: u64,
    complete: u64,
    took: Duration,
    refusal: Option<Refusal>,
}

impl Crowd {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        // The sums are plain counts: they stay valid after a panic elsewhere.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        self.sleep_until(self.plan.start).await;
        match &self.plan.load {
            Load::Bulk { flows, .. } => {
                for _ in 0..*flows {
                    let crowd = Arc::clone(&self);
                    // The duration is set once the flow is connected.
                    let item = Item::new(None, Amount::TimeNs(1));
                    tasks.spawn(async move { crowd.flow(item, || ready(None)).await });
                }
            }
            Load::Arrivals { .. } => {
                for (at, size) in Beginnings::of(&self.plan, self.seed).into_iter().flatten() {
                    self.sleep_until(at).await;
                    let crowd = Arc::clone(&self);
                    tasks.spawn(async move { crowd.flow(item(size), || ready(None)).await });
                    while tasks.try_join_next().is_some() {}
                }
            }
            Load::Web { sessions, .. } => {
                for number in 0..*sessions {
                    tasks.spawn(Arc::clone(&self).user(number));
                }
            }
            Load::Constant { .. } | Load::OnOff { .. } => {}
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn flow<N: Future<Output = Option<Item>>>(&self, first: Item, next: impl FnMut() -> N) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.sums().flows += 1;
        let outcome = self.run.flow(number, first, next).await;
        let mut sums = self.sums();
        match outcome.error {
            None => {
                sums.complete += 1;
                sums.took += clock::now().saturating_since(outcome.start);
            }
            Some(FlowError::Refused(refusal)) => sums.refusal = Some(refusal),
            // A flow of cross traffic that fails is over: it is not repeated.
            Some(_) => {}
        }
    }

    async fn sleep_until(&self, at: Duration) {
        tokio::time::sleep_until(clock::on_tokio(self.epoch + at)).await;
    }

    /// Waits for `length` from `since` on, and returns the end of the wait. None where the traffic
    /// stops before.
    async fn pause(&self, since: Duration, length: Duration) -> Option<Duration> {
        let end = since.saturating_add(length);
        if end >= self.plan.stop {
            return None;
        }
        self.sleep_until(end).await;
        Some(end)
    }

    fn now(&self) -> Duration {
        clock::now().saturating_since(self.epoch)
    }

    /// A user who loads page after page.
    async fn user(self: Arc<Self>, number: u32) {
        let random = Mutex::new(self.plan.random_of_user(self.seed, number));
        let user = Arc::new(User { crowd: self, random });
        let mut since = user.crowd.plan.start;
        loop {
            let reading = page::reading(&mut user.random());
            if user.crowd.pause(since, reading).await.is_none() {
                return;
            }
            Arc::clone(&user).page().await;
            since = user.crowd.now();
        }
    }
}

fn item(bytes: u64) -> Item {
    Item::new(None, Amount::Bytes(bytes))
}

struct User {
    crowd: Arc<Crowd>,
    random: Mutex<Random>,
}

/// A page while it loads.
#[derive(Default)]
struct Page {
    parsed: AtomicBool,
    /// Objects that were not requested yet.
    left: Mutex<Vec<u64>>,
    /// The connections in addition to that of the main object.
    others: Mutex<JoinSet<()>>,
}

impl Page {
    fn next(&self) -> Option<Item> {
        held(&self.left).pop().map(item)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl User {
    fn random(&self) -> MutexGuard<'_, Random> {
        held(&self.random)
    }

    /// Loads a page, unless the traffic stops before.
    async fn page(self: Arc<Self>) {
        let page = Arc::new(Page::default());
        let main = page::main_object(&mut self.random());
        let next = || {
            let (user, page) = (Arc::clone(&self), Arc::clone(&page));
            async move {
                if page.parsed.swap(true, Ordering::Relaxed) {
                    return page.next();
                }
                user.parse(&page).await
            }
        };
        self.crowd.flow(item(main), next).await;
        let mut others = std::mem::take(&mut *held(&page.others));
        while others.join_next().await.is_some() {}
    }

    /// The main object has arrived: once it is parsed, its connection and others fetch the embedded
    /// objects.
    async fn parse(&self, page: &Arc<Page>) -> Option<Item> {
        let parsing = page::parsing(&mut self.random());
        if self.crowd.pause(self.crowd.now(), parsing).await.is_none() {
            return pending().await;
        }
        let mut left = page::embedded_objects(&mut self.random());
        let connections = left.len().min(page::CONNECTIONS);
        let own = left.pop();
        let firsts: Vec<u64> = (1..connections).filter_map(|_| left.pop()).collect();
        *held(&page.left) = left;
        for first in firsts {
            let (crowd, page) = (Arc::clone(&self.crowd), Arc::clone(page));
            held(&page.others).spawn({
                let page = Arc::clone(&page);
                async move { crowd.flow(item(first), || ready(page.next())).await }
            });
        }
        own.map(item)
    }
}
