//! Directions on loopback sockets that divide one leg.

use super::*;
use midhop_pep::config::Plan;

/// One end of a connection, registered. Nothing is sent over it.
struct Ends {
    to: TcpStream,
    _far: std::net::TcpStream,
}

fn ends() -> Ends {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let to = std::net::TcpStream::connect(listener.local_addr().expect("an address"));
    let to = to.expect("a connection");
    let (far, _) = listener.accept().expect("its other end");
    to.set_nonblocking(true).expect("a mode");
    Ends { to: TcpStream::from_std(to).expect("a registration"), _far: far }
}

/// A socket that still has to send, and has sent this many bytes.
fn backlog(sent: u64) -> Option<SendBacklog> {
    Some(SendBacklog { unsent: 1, sent })
}

fn paced_at(ends: &Ends) -> u64 {
    let mut value = [0; 8];
    sockopt::read(&ends.to, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut value)
        .expect("a rate");
    u64::from_ne_bytes(value)
}

fn leg(more: &str) -> LegPlan {
    let text = format!("[legs.sat0]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"\n{more}");
    Plan::read("test.toml", &text).expect("a plan").legs[0].clone()
}

fn in_runtime<T>(body: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    body()
}

/// 95 % of 20 Mbit/s, in bytes per second.
const ALL: u64 = 2_375_000;

#[test]
fn those_with_a_backlog_divide_the_leg() {
    in_runtime(|| {
        let pools = Pools::default();
        let leg = leg("");
        let one = || RateShare::of(&leg, &pools).expect("a share");
        let pool = pools.of(&leg).expect("a pool");
        let (near, far, now) = (ends(), ends(), Instant::now());
        let (mut first, mut second) = (one(), one());
        first.before_write(64 << 10, &near.to);
        assert_eq!((paced_at(&near), pool.senders()), (ALL, 1));
        second.before_write(100, &far.to);
        assert_eq!((paced_at(&far), pool.senders()), (ALL / 2, 1), "a message has a prospect");
        second.before_write(64 << 10, &far.to);
        first.judge(backlog(0), 0, now, &near.to);
        second.judge(backlog(0), 0, now, &far.to);
        assert_eq!((paced_at(&near), paced_at(&far), pool.senders()), (ALL / 2, ALL / 2, 2));
        drop(second);
        first.judge(backlog(0), 0, now, &near.to);
        assert_eq!(
            (paced_at(&near), pool.senders()),
            (ALL, 1),
            "what is given back is shared anew"
        );
        first.judge(Some(SendBacklog { unsent: 0, sent: 0 }), 1, now, &near.to);
        assert_eq!(pool.senders(), 1, "what waits here has still to be sent");
        first.judge(Some(SendBacklog { unsent: 0, sent: 0 }), 0, now, &near.to);
        assert_eq!(pool.senders(), 0, "who has nothing to send has no part");
    });
}

#[test]
fn a_legs_own_bound_holds_and_no_share_is_no_pacing() {
    in_runtime(|| {
        let pools = Pools::default();
        let ends = ends();
        let bounded = leg("pacing = \"8 Mbit/s\"");
        RateShare::of(&bounded, &pools).expect("a share").before_write(64 << 10, &ends.to);
        assert_eq!(paced_at(&ends), 1_000_000);
        assert!(RateShare::of(&leg("share = false"), &pools).is_none());
    });
}
