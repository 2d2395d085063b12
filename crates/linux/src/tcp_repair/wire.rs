//! The form in which a snapshot travels between machines.
//!
//! All numbers are in network byte order. First the version, one byte; then the fields in the order of [`encode`], each of
//! a fixed size but the name and the three queues, which have their length in front.
//!
//! [`encode`]: TcpSnapshot::encode

use super::dump::{NAME_BYTES, is_link_local};
use super::snapshot::{
    Buffer, Buffers, Keepalive, LocalEnd, Negotiated, PathState, ReceiveQueue, SendQueue,
    SocketOptions, TcpSnapshot, Timestamps, Window, WindowScales,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Changes with every change of the form.
const VERSION: u8 = 1;
/// RFC 7323 §2.3.
const SCALE_MAX: u8 = 14;
/// Unit: bytes. The smallest MSS that Linux sends with (`TCP_MIN_SND_MSS`).
const MSS_MIN: u16 = 48;
/// Unit: bytes. A window of the largest scale (RFC 7323 §2.3), and the octet that each move adds for its probe.
const WINDOW_MAX: u32 = 1 << 30;
/// Unit: bytes. Larger than any buffer that a kernel is configured with.
const BUFFER_MAX: u32 = 1 << 30;
/// Unit: bytes. More than a snapshot takes beside its queues.
const HEAD_MAX: usize = 256;
const ENDS: [LocalEnd; 4] =
    [LocalEnd::Open, LocalEnd::Unsent, LocalEnd::Sent, LocalEnd::Acknowledged];

/// Why bytes are no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Another version of the form.
    #[error("a connection's state has version {0}; this release reads version {VERSION}")]
    Version(
        /// The version.
        u8,
    ),
    /// They end before the snapshot does.
    #[error("a connection's state ends within its {0}")]
    Truncated(
        /// The field.
        &'static str,
    ),
    /// They go on behind it.
    #[error("{0} bytes follow a connection's state")]
    Trailing(
        /// Unit: bytes.
        usize,
    ),
    /// A queue is longer than the caller allows. Nothing was allocated for it.
    #[error("a queue of a connection has {bytes} bytes, more than {bytes_max}")]
    TooLong {
        /// Unit: bytes. Its length.
        bytes: usize,
        /// Unit: bytes. The limit.
        bytes_max: usize,
    },
    /// A field has a value that no connection has.
    #[error("a connection's state has an impossible {0}")]
    Invalid(
        /// The field.
        &'static str,
    ),
}

impl TcpSnapshot {
    /// The bytes that [`decode`](Self::decode) reads. A queue may be no longer than 4 GiB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_MAX + self.queued_bytes());
        out.push(VERSION);
        put_addresses(&mut out, self.local, self.remote);
        out.push(self.local_end as u8);
        out.push(self.remote_ended.into());
        self.negotiated.put(&mut out);
        let window = &self.window;
        for word in [
            self.send.unacknowledged,
            self.receive.next,
            window.send_updated_at,
            window.send,
            window.send_max,
            window.receive,
            window.receive_updated_at,
        ] {
            out.extend(word.to_be_bytes());
        }
        for buffer in [self.buffers.receive, self.buffers.send] {
            out.extend(buffer.bytes.to_be_bytes());
            out.push(buffer.locked.into());
        }
        self.options.put(&mut out);
        self.path.put(&mut out);
        for queue in [&self.send.sent, &self.send.unsent, &self.receive.unread] {
            out.extend((queue.len() as u32).to_be_bytes());
            out.extend(queue);
        }
        out
    }

    /// The snapshot that [`encode`](Self::encode) has written, whoever has sent it: every field is one that a connection
    /// can have, and no queue is longer than `queue_bytes_max`.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn decode(bytes: &[u8], queue_bytes_max: usize) -> Result<Self, DecodeError> {
        let mut from = Reader { rest: bytes };
        let version = from.byte("version")?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let [local, remote] = from.addresses()?;
        let local_end = usize::from(from.byte("end")?);
        let local_end = *ENDS.get(local_end).ok_or(DecodeError::Invalid("end"))?;
        let remote_ended = from.flag("far end's end")?;
        let negotiated = Negotiated::take(&mut from)?;
        let [unacknowledged, next] =
            [from.word("sequence numbers")?, from.word("sequence numbers")?];
        let window = Window::take(&mut from)?;
        let buffers = Buffers { receive: Buffer::take(&mut from)?, send: Buffer::take(&mut from)? };
        let options = SocketOptions::take(&mut from)?;
        let path = PathState::take(&mut from)?;
        let sent = from.queue("send queue", queue_bytes_max)?;
        let unsent = from.queue("send queue", queue_bytes_max)?;
        let unread = from.queue("receive queue", queue_bytes_max)?;
        if !from.rest.is_empty() {
            return Err(DecodeError::Trailing(from.rest.len()));
        }
        let snapshot = Self {
            local,
            remote,
            local_end,
            remote_ended,
            send: SendQueue { unacknowledged, sent: sent.to_vec(), unsent: unsent.to_vec() },
            receive: ReceiveQueue { next, unread: unread.to_vec() },
            negotiated,
            window,
            buffers,
            options,
            path,
        };
        snapshot.check(queue_bytes_max)?;
        Ok(snapshot)
    }

    /// Checks what [`decode`](Self::decode) does of the queues, where something was put into them since.
    ///
    /// # Errors
    /// When no connection has such queues, or one has more than `queue_bytes_max` bytes.
    pub fn check(&self, queue_bytes_max: usize) -> Result<(), DecodeError> {
        let (sent, unsent) = (&self.send.sent, &self.send.unsent);
        // As `dump` limits them: the two are one queue.
        let bytes = (sent.len() + unsent.len()).max(self.receive.unread.len());
        if bytes > queue_bytes_max {
            return Err(DecodeError::TooLong { bytes, bytes_max: queue_bytes_max });
        }
        let ends = match self.local_end {
            LocalEnd::Open | LocalEnd::Unsent => true,
            LocalEnd::Sent => unsent.is_empty(),
            // With both FINs acknowledged, the connection is over.
            LocalEnd::Acknowledged => sent.is_empty() && unsent.is_empty() && !self.remote_ended,
        };
        if !ends {
            return Err(DecodeError::Invalid("end"));
        }
        self.window.check(self.receive.next)
    }
}

fn put_addresses(out: &mut Vec<u8>, local: SocketAddr, remote: SocketAddr) {
    out.push(if local.is_ipv4() { 4 } else { 6 });
    for address in [local, remote] {
        match address.ip() {
            IpAddr::V4(ip) => out.extend(ip.octets()),
            IpAddr::V6(ip) => out.extend(ip.octets()),
        }
        out.extend(address.port().to_be_bytes());
    }
}

impl Negotiated {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.mss.to_be_bytes());
        out.push(self.selective_acks.into());
        out.push(self.ecn.into());
        let scales = self.window_scales;
        out.push(scales.is_some().into());
        out.extend(scales.map_or([0, 0], |it| [it.send, it.receive]));
        // Off, milliseconds, microseconds.
        let clock = self.timestamps;
        out.push(clock.map_or(0, |it| 1 + u8::from(it.microseconds)));
        out.extend(clock.map_or(0, |it| it.value).to_be_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mss = from.short("MSS")?;
        let selective_acks = from.flag("SACK")?;
        let ecn = from.flag("ECN")?;
        let scaled = from.flag("window scale")?;
        let [send, receive] = from.array("window scale")?;
        let clock = from.byte("timestamps")?;
        let value = from.word("timestamps")?;
        if mss < MSS_MIN {
            return Err(DecodeError::Invalid("MSS"));
        }
        if send.max(receive) > SCALE_MAX || (!scaled && send.max(receive) > 0) {
            return Err(DecodeError::Invalid("window scale"));
        }
        let timestamps = match clock {
            0 if value == 0 => None,
            1 | 2 => Some(Timestamps { value, microseconds: clock == 2 }),
            _ => return Err(DecodeError::Invalid("timestamps")),
        };
        let window_scales = scaled.then_some(WindowScales { send, receive });
        Ok(Self { mss, selective_acks, window_scales, timestamps, ecn })
    }
}

impl Window {
    /// Checks what `tcp_repair_set_window` requires of a window whose connection expects `next`.
    fn check(&self, next: u32) -> Result<(), DecodeError> {
        let nearest = self.acceptable(next);
        let fields = [
            (self.send_max, nearest.send_max, "largest window"),
            (self.send_updated_at, nearest.send_updated_at, "window update"),
            (self.receive_updated_at, nearest.receive_updated_at, "window announcement"),
        ];
        match fields.into_iter().find(|(has, wanted, _)| has != wanted) {
            Some((_, _, field)) => Err(DecodeError::Invalid(field)),
            None => Ok(()),
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut word = || from.word("window");
        let window = Self {
            send_updated_at: word()?,
            send: word()?,
            send_max: word()?,
            receive: word()?,
            receive_updated_at: word()?,
        };
        if window.send_max.max(window.receive) > WINDOW_MAX {
            return Err(DecodeError::Invalid("window"));
        }
        Ok(window)
    }
}

impl Buffer {
    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bytes, locked) = (from.word("buffers")?, from.flag("buffers")?);
        if bytes > BUFFER_MAX {
            return Err(DecodeError::Invalid("buffers"));
        }
        Ok(Self { bytes, locked })
    }
}

impl SocketOptions {
    fn put(&self, out: &mut Vec<u8>) {
        let keepalive = self.keepalive;
        out.push(self.no_delay.into());
        out.push(self.cork.into());
        out.push(keepalive.on.into());
        out.extend(keepalive.idle_s.to_be_bytes());
        out.extend(keepalive.interval_s.to_be_bytes());
        out.push(keepalive.probes);
        out.extend(self.user_timeout_ms.to_be_bytes());
        out.push(self.traffic_class);
        out.extend(self.unsent_low_water.to_be_bytes());
        out.extend(self.window_clamp.to_be_bytes());
        out.extend(self.pacing_rate_max.to_be_bytes());
        out.push(self.congestion_control.len() as u8);
        out.extend(self.congestion_control.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let no_delay = from.flag("no delay")?;
        let cork = from.flag("cork")?;
        let keepalive = Keepalive {
            on: from.flag("keepalive")?,
            idle_s: from.short("keepalive")?,
            interval_s: from.short("keepalive")?,
            probes: from.byte("keepalive")?,
        };
        let seconds = 1..=i16::MAX as u16;
        if !seconds.contains(&keepalive.idle_s)
            || !seconds.contains(&keepalive.interval_s)
            || !(1..=127).contains(&keepalive.probes)
        {
            return Err(DecodeError::Invalid("keepalive"));
        }
        let user_timeout_ms = from.int("user timeout")?;
        let traffic_class = from.byte("traffic class")?;
        if traffic_class & 3 != 0 {
            return Err(DecodeError::Invalid("traffic class"));
        }
        let unsent_low_water = from.int("low-water mark")?;
        let window_clamp = from.int("window clamp")?;
        let pacing_rate_max = u64::from_be_bytes(from.array("pacing rate")?);
        let length = usize::from(from.byte("congestion control")?);
        let name = from.bytes(length, "congestion control")?;
        if !(1..NAME_BYTES).contains(&length) || !name.iter().all(u8::is_ascii_graphic) {
            return Err(DecodeError::Invalid("congestion control"));
        }
        Ok(Self {
            no_delay,
            cork,
            keepalive,
            user_timeout_ms,
            traffic_class,
            unsent_low_water,
            window_clamp,
            pacing_rate_max,
            congestion_control: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

impl PathState {
    fn put(&self, out: &mut Vec<u8>) {
        let words = [
            self.mss,
            self.cwnd,
            self.ssthresh,
            self.rtt_us,
            self.rtt_variation_us,
            self.rtt_min_us,
        ];
        for word in words {
            out.extend(word.to_be_bytes());
        }
        for long in [self.pacing_rate, self.delivery_rate] {
            out.extend(long.to_be_bytes());
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut word = || from.word("path");
        let [mss, cwnd, ssthresh] = [word()?, word()?, word()?];
        let [rtt_us, rtt_variation_us, rtt_min_us] = [word()?, word()?, word()?];
        let mut long = || from.array("path").map(u64::from_be_bytes);
        let [pacing_rate, delivery_rate] = [long()?, long()?];
        Ok(Self {
            mss,
            cwnd,
            ssthresh,
            rtt_us,
            rtt_variation_us,
            rtt_min_us,
            pacing_rate,
            delivery_rate,
        })
    }
}

/// What is still to be decoded.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array(field).map(|[byte]| byte)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.byte(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid(field)),
        }
    }

    fn short(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    fn word(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// A number that fits into an option of type `int`.
    fn int(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let word = self.word(field)?;
        if i32::try_from(word).is_err() { Err(DecodeError::Invalid(field)) } else { Ok(word) }
    }

    fn queue(&mut self, field: &'static str, bytes_max: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = self.word(field)? as usize;
        if bytes > bytes_max {
            return Err(DecodeError::TooLong { bytes, bytes_max });
        }
        self.bytes(bytes, field)
    }

    fn addresses(&mut self) -> Result<[SocketAddr; 2], DecodeError> {
        let family = self.byte("address")?;
        let mut one = || {
            let ip: IpAddr = match family {
                4 => Ipv4Addr::from(self.array::<4>("address")?).into(),
                6 => Ipv6Addr::from(self.array::<16>("address")?).into(),
                _ => return Err(DecodeError::Invalid("address")),
            };
            let port = self.short("address")?;
            let mapped = ip != ip.to_canonical();
            let is_host = !(ip.is_unspecified() || ip.is_multicast() || is_link_local(ip));
            if port == 0 || mapped || !is_host || ip == Ipv4Addr::BROADCAST {
                return Err(DecodeError::Invalid("address"));
            }
            Ok(SocketAddr::new(ip, port))
        };
        Ok([one()?, one()?])
    }
}

#[cfg(test)]
pub(super) mod tests;
