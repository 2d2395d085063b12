//! Adapts the congestion control of midhop-congestion to QUIC.
//!
//! quinn-proto reports less to its controller than the contract of [`Controller`] requires, and uses
//! less than it offers. This module adds what is missing:
//!
//! - Delivery-rate samples, rounds, and whether the sender was application-limited: [`Core`] records
//!   each flight that leaves (`flights`) and reads the record when the acknowledgement comes.
//! - Recoveries: a loss of what was sent after the last recovery began starts another (RFC 9002 §7.3.1).
//!   Persistent congestion is a timeout. quinn does not report which packets were lost, only how many bytes and
//!   when the newest left. The rest follows: quinn declares lost all that is older.
//! - The pacing rate. quinn's pacer knows only 5/4 of the window per smoothed round trip, so it is
//!   bypassed: while there is room, [`Steered`] reports a window for which quinn does not pace.
//!   [`Pace`] carries the rate to the code that releases datagrams, see [`crate::pacer`].
//!
//! Two signals are missing, because quinn does not report them: which losses were spurious, and how many packets ECN
//! marked (a mark counts as a loss of no bytes, as the contract has it).
//!
//! Decision 0015.

mod core;
mod flights;
mod pace;
mod steered;

pub use pace::{Pace, Progress};
pub use steered::Steered;

use self::core::Core;
use midhop_congestion::{BuildError, Controller, Settings, SlowStart, build};
use midhop_units::Bytes;
use quinn_proto::congestion::{self, ControllerFactory};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Payload of a datagram before the path's MTU is known (RFC 9000 §14).
const DATAGRAM_MIN: u16 = 1200;

/// Makes the controllers of one connection: one when it begins, another whenever its path changes.
///
/// One for each connection, because its [`Pace`] reports on one connection.
#[derive(Debug)]
pub struct Steering {
    settings: Mutex<Settings>,
    pace: Pace,
}

impl Steering {
    /// Creates controllers with `settings`. Replaces the segment size by the datagram's, and turns pacing on.
    /// `overhead` is what the path carries of each datagram beyond its payload: 28 bytes for IPv4 and UDP, 48 for
    /// IPv6.
    ///
    /// # Errors
    /// When the algorithm does not support the settings.
    pub fn new(settings: Settings, overhead: Bytes) -> Result<Self, BuildError> {
        let settings = Settings { paced: true, ..settings };
        let pace = Pace::new(overhead);
        let control = build(&with_datagrams_of(DATAGRAM_MIN, &settings))?;
        // Until the first controller is made, its initial rate and window apply.
        pace.publish(&control, DATAGRAM_MIN.into());
        Ok(Self { settings: Mutex::new(settings), pace })
    }

    /// Uses other settings from now on. The accepting end learns only late who its peer is.
    ///
    /// # Errors
    /// When the algorithm does not support the settings; then nothing changes.
    pub fn turn(&self, now: Instant, settings: Settings) -> Result<(), BuildError> {
        let settings = Settings { paced: true, ..settings };
        let control = build(&with_datagrams_of(DATAGRAM_MIN, &settings))?;
        *pace::lock(&self.settings) = settings;
        self.pace.turn(now, control, DATAGRAM_MIN.into());
        Ok(())
    }

    /// How fast the connection may send. Also the handle by which others inform its controller.
    pub fn pace(&self) -> Pace {
        self.pace.clone()
    }

    fn control(&self, payload: u16) -> Controller {
        let settings = with_datagrams_of(payload, &pace::lock(&self.settings));
        // Cannot fail: these settings were built before, and the segment size does not matter.
        build(&settings).unwrap_or_else(|_| {
            Controller::new(midhop_congestion::reno::Reno::new(
                settings.mss,
                SlowStart::Classic,
                true,
            ))
        })
    }
}

fn with_datagrams_of(payload: u16, settings: &Settings) -> Settings {
    Settings { mss: Bytes::new(payload.max(1).into()), ..settings.clone() }
}

impl ControllerFactory for Steering {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn congestion::Controller> {
        let core = Core::new(self.control(current_mtu), current_mtu.into(), now);
        self.pace.carries(current_mtu);
        Box::new(Steered::new(core, self.pace.clone()))
    }
}
