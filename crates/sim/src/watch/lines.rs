//! Events as lines of CSV: changes of windows, and events of queues.

use super::{Glance, Sight, Watcher};
use crate::hop::Hop;
use crate::packet::{End, FlowId, Packet};
use midhop_tcp::SenderPhase;
use midhop_units::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

/// Lines to an output, until an error occurs.
struct Lines {
    out: Box<dyn Write>,
    fault: Option<io::Error>,
}

impl Lines {
    fn new(out: Box<dyn Write>, header: &str) -> Self {
        let mut lines = Self { out, fault: None };
        lines.write(format_args!("{header}"));
        lines
    }

    fn write(&mut self, line: fmt::Arguments<'_>) {
        if self.fault.is_none() {
            self.fault = writeln!(self.out, "{line}").err();
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None => self.out.flush(),
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("fault", &self.fault).finish_non_exhaustive()
    }
}

/// One line whenever window, phase, retransmissions or the data in flight have changed at one end of a
/// connection that has sent data.
#[derive(Debug)]
pub struct SenderLines {
    lines: Lines,
    last: BTreeMap<(FlowId, End), Glance>,
}

impl SenderLines {
    /// Lines that go to `out`.
    pub fn new(out: Box<dyn Write>) -> Self {
        let header = "time_s,flow,end,cwnd_bytes,in_flight_bytes,rtt_ms,rtt_min_ms,\
                      retransmissions,pacing_mbit_per_s,delivery_mbit_per_s,phase";
        Self { lines: Lines::new(out, header), last: BTreeMap::new() }
    }
}

impl Watcher for SenderLines {
    fn look(&mut self, now: Instant, flow: FlowId, end: End, glance: &Glance) {
        let key = |it: &Glance| (it.cwnd, it.in_flight, it.retransmissions, it.phase);
        let last = self.last.insert((flow, end), *glance);
        let idle = last.is_none() && glance.in_flight.get() == 0;
        if idle || last.is_some_and(|last| key(&last) == key(glance)) {
            return;
        }
        let number = |value: Option<f64>| value.map_or_else(String::new, |it| format!("{it:.3}"));
        self.lines.write(format_args!(
            "{:.9},{},{},{},{},{},{},{},{},{},{}",
            now.as_ns() as f64 / 1e9,
            flow.0,
            end.name(),
            glance.cwnd.get(),
            glance.in_flight.get(),
            number(glance.rtt.map(|rtt| rtt.as_ms_f64())),
            number(glance.rtt_min.map(|rtt| rtt.as_ms_f64())),
            glance.retransmissions,
            number(glance.pacing_rate.map(|rate| rate.mbit_per_s())),
            number(glance.delivery_rate.map(|rate| rate.mbit_per_s())),
            glance.phase.map_or("", SenderPhase::name),
        ));
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lines.finish()
    }
}

/// One line for each packet that enters a hop, leaves it, or is dropped there, with the queue at that time.
#[derive(Debug)]
pub struct QueueLines(Lines);

impl QueueLines {
    /// Lines that go to `out`.
    pub fn new(out: Box<dyn Write>) -> Self {
        Self(Lines::new(out, "time_s,link,direction,event,cause,flow,packet_bytes,queue_bytes"))
    }
}

impl Watcher for QueueLines {
    fn see(&mut self, now: Instant, hop: &Hop, sight: Sight, packet: &Packet) {
        let (event, cause) = match sight {
            Sight::Entered => ("enter", ""),
            Sight::Left => ("leave", ""),
            Sight::Dropped(cause) => ("drop", cause),
        };
        self.0.write(format_args!(
            "{:.9},{},{},{event},{cause},{},{},{}",
            now.as_ns() as f64 / 1e9,
            hop.name,
            hop.way.name(),
            packet.flow.0,
            packet.size,
            hop.queue_bytes().get(),
        ));
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.finish()
    }
}
