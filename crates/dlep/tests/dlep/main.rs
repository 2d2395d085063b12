//! Sessions of a router and a modem in virtual time, and how other programs read their messages.

mod dissected;
mod invalid;
mod session;

use midhop_dlep::{Mac, Modem, Router};
use midhop_units::{Duration, Instant, Rate};

/// Both ends, with no delay between them.
struct Pair {
    now: Instant,
    router: Router,
    modem: Modem,
}

impl Pair {
    fn new(rate: Rate, destinations: &[Mac]) -> Self {
        let now = Instant::START;
        let router = Router::new(now, "midhopd");
        Self { now, router, modem: Modem::new(now, rate, destinations.to_vec()) }
    }

    /// Exchanges bytes until neither end has anything to send.
    fn exchange(&mut self) {
        loop {
            let (there, back) = (self.router.to_send(), self.modem.to_send());
            if there.is_empty() && back.is_empty() {
                return;
            }
            self.modem.on_received(self.now, &there).expect("valid");
            self.router.on_received(self.now, &back).expect("valid");
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next = self.router.next_time().min(self.modem.next_time()).min(end);
            self.now = self.now.max(next);
            self.router.on_time(self.now).expect("the modem is there");
            self.modem.on_time(self.now);
            self.exchange();
            if self.now >= end {
                return;
            }
        }
    }
}

fn mac(last: u8) -> Mac {
    Mac::new(&[2, 0, 0x5e, 0x10, 0, last]).expect("six bytes")
}

fn mbit(rate: u64) -> Rate {
    Rate::from_mbit_per_s(rate)
}
