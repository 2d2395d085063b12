//! A tunnel uses the rate that its modem reports, by DLEP or in a file, and its configured rate
//! when the modem is gone.

use crate::pair::Pair;
use crate::program::Running;
use crate::stage::{Family, Stage, until};
use midhop_dlep::{Kind, Mac, Modem, Status};
use midhop_linux::sockopt;
use midhop_status::control::answer::PeerStatus;
use midhop_testbed::namespace::Namespace;
use midhop_units::{Instant, Rate};
use nix::libc;
use nix::sys::signal::Signal;
use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a test orders its modem to do.
enum Order {
    Change(Rate),
    ChangeTo(Mac, Rate),
    Lose(Mac),
    /// Ends this session without a notice, and waits for the next one.
    HangUp,
}

/// A modem on a host's loopback.
struct Bench {
    address: SocketAddr,
    orders: Sender<Order>,
    /// The last answer of each session that the router has ended.
    ended: Receiver<Option<Answer>>,
    _thread: JoinHandle<()>,
}

/// The kind of message that the router has answered, and the status of the answer.
type Answer = (Kind, Option<Status>);

impl Bench {
    fn start(host: &Namespace, family: Family, rate: Rate, destinations: Vec<Mac>) -> Self {
        let loopback: IpAddr = match family {
            Family::V4 => [127, 0, 0, 1].into(),
            Family::V6 => [0_u16, 0, 0, 0, 0, 0, 0, 1].into(),
        };
        let bind = || TcpListener::bind(SocketAddr::new(loopback, 0));
        let listener = host.run(bind).expect("entering").expect("a listener");
        let (level, name) = match family {
            Family::V4 => (libc::IPPROTO_IP, libc::IP_TTL),
            Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        };
        sockopt::set_int(&listener, level, name, 255).expect("hops");
        let address = listener.local_addr().expect("an address");
        let (orders, taken) = channel();
        let (ending, ended) = channel();
        let thread = std::thread::spawn(move || {
            let mut rate = rate;
            // Ends with the test, which drops the orders.
            while let Ok((stream, _)) = listener.accept() {
                match serve(stream, rate, &destinations, &taken) {
                    Left::HungUp(last) => rate = last,
                    Left::Ended(answer) => {
                        let _ = ending.send(answer);
                    }
                    Left::Over => return,
                }
            }
        });
        Self { address, orders, ended, _thread: thread }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("the modem lives");
    }
}

/// How a session ended.
enum Left {
    /// By order, with this rate.
    HungUp(Rate),
    /// By the router, with its last answer.
    Ended(Option<Answer>),
    /// The test is over.
    Over,
}

/// One session.
fn serve(
    mut stream: TcpStream,
    mut rate: Rate,
    destinations: &[Mac],
    orders: &Receiver<Order>,
) -> Left {
    let began = std::time::Instant::now();
    let now = || Instant::START + midhop_units::Duration::from(began.elapsed());
    let mut modem = Modem::new(now(), rate, destinations.to_vec());
    let mut buffer = [0; 4096];
    stream.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => modem.on_received(now(), &buffer[..length]).expect("valid"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        match orders.recv_timeout(Duration::from_millis(10)) {
            Ok(Order::Change(to)) => {
                rate = to;
                modem.change(now(), to);
            }
            Ok(Order::ChangeTo(mac, to)) => modem.change_to(now(), mac, to),
            Ok(Order::Lose(mac)) => modem.lose(now(), mac),
            Ok(Order::HangUp) => return Left::HungUp(rate),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Left::Over,
        }
        modem.on_time(now());
        // A router that has ended the session reads nothing any more.
        if stream.write_all(&modem.to_send()).is_err() {
            break;
        }
    }
    Left::Ended(modem.answers().last().copied())
}

fn mbit(rate: u64) -> Rate {
    Rate::from_mbit_per_s(rate)
}

/// Unit: Mbit/s. The rate that the tunnel uses, and the reported one.
fn rates(pair: &Pair) -> (Option<u64>, Option<u64>) {
    rates_of(&pair.far_seen())
}

fn rates_of(seen: &PeerStatus) -> (Option<u64>, Option<u64>) {
    // The rate was rounded down when it was converted between payload and what is sent.
    let whole = |bits: u64| (bits + 50_000) / 1_000_000;
    (seen.rate_bit_per_s.map(whole), seen.reported_bit_per_s.map(whole))
}

fn beside(stage: &Stage, modem: &Bench, keys: &str) -> (Pair, [Running; 2]) {
    let modem = format!("modem = {{ address = \"{}\"{keys} }}\n", modem.address);
    let pair = Pair::new(&format!("rate = \"20 Mbit/s\"\n{modem}"), "", "");
    let running = pair.start(stage);
    (pair, running)
}

fn followed(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let modem = Bench::start(&stage.gateway, family, mbit(5), Vec::new());
    let (pair, running) = beside(&stage, &modem, "");
    until("the tunnel goes by its modem", || rates(&pair) == (Some(5), Some(5)));
    modem.order(Order::Change(mbit(12)));
    until("a higher rate has lasted", || rates(&pair) == (Some(12), Some(12)));
    modem.order(Order::Change(mbit(3)));
    until("a lower rate counts", || rates(&pair) == (Some(3), Some(3)));
    modem.order(Order::HangUp);
    until("what is configured counts again", || rates(&pair) == (Some(20), None));
    until("the modem is asked again", || rates(&pair) == (Some(3), Some(3)));
    let [near, _far] = running;
    near.signal(Signal::SIGTERM);
    assert_eq!(near.end(), Some(0));
    let ended = modem.ended.recv_timeout(Duration::from_secs(60)).expect("an end");
    assert_eq!(ended, Some((Kind::SessionTermination, Some(Status::SHUTTING_DOWN))));
}

#[test]
fn a_modem_s_rate_counts_while_it_is_there_ipv4() {
    followed(Family::V4);
}

#[test]
fn a_modem_s_rate_counts_while_it_is_there_ipv6() {
    followed(Family::V6);
}

#[test]
fn of_several_links_of_a_modem_the_peer_s_counts_within_its_bounds() {
    let mac = |last| Mac::new(&[2, 0, 0x5e, 0x10, 0, last]).expect("six bytes");
    let Some(stage) = Stage::set() else { return };
    let modem = Bench::start(&stage.gateway, Family::V4, mbit(9), vec![mac(1), mac(2)]);
    let keys = ", destination = \"02:00:5e:10:00:02\", least = \"2 Mbit/s\", most = \"8 Mbit/s\"";
    let (pair, _running) = beside(&stage, &modem, keys);
    until("the most", || rates(&pair) == (Some(8), Some(8)));
    modem.order(Order::ChangeTo(mac(1), mbit(4)));
    modem.order(Order::ChangeTo(mac(2), mbit(6)));
    until("its own", || rates(&pair) == (Some(6), Some(6)));
    modem.order(Order::ChangeTo(mac(2), Rate::from_bits_per_s(9_600)));
    until("the least", || rates(&pair) == (Some(2), Some(2)));
    modem.order(Order::Lose(mac(2)));
    until("nothing is reported of a link that is gone", || rates(&pair) == (Some(20), None));
}

#[test]
fn a_peer_that_comes_here_has_a_modem_too() {
    let Some(stage) = Stage::set() else { return };
    let modem = Bench::start(&stage.server, Family::V4, mbit(7), Vec::new());
    let keys = format!("rate = \"20 Mbit/s\"\nmodem.address = \"{}\"\n", modem.address);
    let pair = Pair::new("", &keys, "");
    let _running = pair.start(&stage);
    let rates = || rates_of(&pair.far.peer("near"));
    until("the far end goes by its modem", || rates() == (Some(7), Some(7)));
}

#[test]
fn what_a_script_writes_into_a_file_counts_for_a_while() {
    let Some(stage) = Stage::set() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    // The daemon reads it as a user without privileges.
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("readable");
    let file = directory.path().join("rate");
    // Replaces the file atomically, as its writer should.
    let write = |text: &str| {
        let beside = directory.path().join("beside");
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, &file))
            .expect("written");
    };
    let keys = format!(
        "rate = \"20 Mbit/s\"\nmodem = {{ file = \"{}\", valid = \"5 s\", most = \"15 Mbit/s\" }}\n",
        file.display()
    );
    write("6 Mbit/s\n");
    let pair = Pair::new(&keys, "", "");
    let _running = pair.start(&stage);
    // Written again until it takes effect, because it may be too old by then.
    let counts = |text: &str, rate| {
        until(text, || {
            write(text);
            rates(&pair) == (Some(rate), Some(rate))
        });
    };
    counts("6 Mbit/s\n", 6);
    counts("3000 kbit/s", 3);
    counts("40 Mbit/s", 15);
    until("it is old", || rates(&pair) == (Some(20), None));
    counts("8 Mbit/s", 8);
    write("unlocked\n");
    until("it is no rate", || rates(&pair) == (Some(20), None));
    counts("9 Mbit/s", 9);
    std::fs::remove_file(&file).expect("removed");
    until("it is gone", || rates(&pair) == (Some(20), None));
}
