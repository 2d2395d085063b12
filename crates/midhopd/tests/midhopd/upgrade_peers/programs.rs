//! The programs whose restarts are compared, each with the settings that its documentation
//! recommends for a restart that live flows survive.

use crate::partners::{Had, envoy, had, output};
use crate::program::{Running, Setup, log_of};
use crate::stage::{self, Family, Stage, until};
use crate::upgrade;
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// The port that the interception of a peer leads to.
const PORT: u16 = 5000;

/// For how long an old process may serve its flows, where there is a limit. Operators choose minutes
/// or hours; Envoy's default is 15 minutes. Unit: seconds.
pub fn limit_s() -> u64 {
    std::env::var("MIDHOP_SURVIVAL_LIMIT_S").map_or(10, |limit| limit.parse().expect("a number"))
}

/// One of the programs under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Midhopd,
    /// The old process is ended by `hard-stop-after`.
    HaproxyWithLimit,
    /// The default: the old process stays until its last flow has ended.
    Haproxy,
    /// The old process is ended by `--parent-shutdown-time-s`, which always applies.
    Envoy,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Midhopd, Self::HaproxyWithLimit, Self::Haproxy, Self::Envoy];

    pub fn name(self) -> String {
        match self {
            Self::Midhopd => "midhopd".to_owned(),
            Self::HaproxyWithLimit => format!("HAProxy, hard-stop-after {} s", limit_s()),
            Self::Haproxy => "HAProxy, no limit".to_owned(),
            Self::Envoy => format!("Envoy, parent-shutdown-time {} s", limit_s()),
        }
    }

    /// Time after which the old process has to be gone; `None`: nothing ends it.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::Midhopd => Some(Duration::ZERO),
            Self::HaproxyWithLimit | Self::Envoy => Some(Duration::from_secs(limit_s())),
            Self::Haproxy => None,
        }
    }

    /// The command; `None`, with a clear message, if it is not available.
    fn words(self) -> Option<&'static [PathBuf]> {
        static HAPROXY: Had = OnceLock::new();
        match self {
            Self::Midhopd => Some(&[]),
            Self::Envoy => envoy::words(),
            Self::HaproxyWithLimit | Self::Haproxy => had(HAPROXY.get_or_init(|| {
                output(Command::new("haproxy").arg("-v"), "haproxy")?;
                Ok(vec!["haproxy".into()])
            })),
        }
    }
}

/// One that runs on the stage's gateway and relays the client's flows. Its processes end with it.
pub struct Program {
    gateway: Namespace,
    folder: TempDir,
    parts: Parts,
}

enum Parts {
    Midhopd {
        setup: Setup,
        running: Running,
        next: PathBuf,
    },
    /// The master, whose children relay.
    Haproxy(Child),
    /// One process for each epoch.
    Envoy(Vec<Child>),
}

impl Program {
    /// Starts it and waits until it serves; `None`, with a clear message, if it is not available.
    pub fn start(kind: Kind, stage: &Stage, flows: usize) -> Option<Self> {
        let words = kind.words()?;
        let (gateway, folder) = (stage.gateway.clone(), TempDir::new().expect("a directory"));
        if kind == Kind::Midhopd {
            let setup = Setup::new(upgrade::CONFIG);
            let running = Running::start(stage, &setup);
            let next = upgrade::another(&setup, "next");
            return Some(Self { gateway, folder, parts: Parts::Midhopd { setup, running, next } });
        }
        intercept(&gateway);
        let parts = if kind == Kind::Envoy {
            fs::write(folder.path().join("envoy.yaml"), envoy_configuration(flows))
                .expect("a configuration");
            let mut first = envoy_epoch(&gateway, folder.path(), words, 0);
            first.args(["--use-dynamic-base-id", "--base-id-path"]).arg(folder.path().join("base"));
            Parts::Envoy(vec![first.spawn().expect("envoy")])
        } else {
            let file = folder.path().join("haproxy.cfg");
            fs::write(&file, haproxy_configuration(kind, folder.path(), flows))
                .expect("a configuration");
            let mut master = gateway.command(&words[0]);
            master.arg("-W").arg("-f").arg(&file);
            logged(&mut master, folder.path(), "log");
            Parts::Haproxy(master.spawn().expect("haproxy"))
        };
        let program = Self { gateway, folder, parts };
        until("a peer listens", || listens(&program.gateway));
        Some(program)
    }

    /// Orders that another instance takes over.
    pub fn restart(&mut self) {
        match &mut self.parts {
            Parts::Midhopd { setup, next, .. } => {
                let output = upgrade::upgrade_in(&self.gateway, setup, next);
                upgrade::assert_done(&output, setup);
            }
            Parts::Haproxy(master) => {
                kill(pid(master.id()), Signal::SIGUSR2).expect("a signal");
            }
            Parts::Envoy(epochs) => {
                let words = envoy::words().expect("it was had");
                let base = fs::read_to_string(self.folder.path().join("base")).expect("a base");
                let mut next = envoy_epoch(&self.gateway, self.folder.path(), words, epochs.len());
                next.args(["--base-id", base.trim()]);
                epochs.push(next.spawn().expect("envoy"));
            }
        }
    }

    /// The processes that relay now.
    pub fn relaying(&self) -> Vec<u32> {
        match &self.parts {
            Parts::Midhopd { running, .. } => vec![running.id()],
            Parts::Haproxy(master) => children(master.id()),
            Parts::Envoy(epochs) => {
                epochs.iter().map(Child::id).filter(|number| !is_gone(*number)).collect()
            }
        }
    }

    /// The flows whose client's connection some processes hold.
    pub fn carried(&self, processes: &[u32]) -> usize {
        let table = self.gateway.run(|| fs::read_to_string("/proc/thread-self/net/tcp"));
        let IpAddr::V4(client) = Family::V4.client() else { return 0 };
        let client = format!("{:08X}:", u32::from_ne_bytes(client.octets()));
        let table = table.expect("entering").expect("sockets");
        let established: BTreeSet<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.len() > 9 && words[2].starts_with(&client) && words[3] == "01")
            .map(|words| format!("socket:[{}]", words[9]))
            .collect();
        let held = |number: &u32| {
            // A process that has ended holds none.
            let descriptors = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten();
            let links = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
            links.filter(|link| link.to_str().is_some_and(|it| established.contains(it))).count()
        };
        processes.iter().map(held).sum()
    }

    /// What it has logged, for readers of a failed test.
    fn log(&self) -> String {
        match &self.parts {
            Parts::Midhopd { setup, .. } => log_of(setup).to_string(),
            _ => fs::read_to_string(self.folder.path().join("log")).unwrap_or_default(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the program's log:\n{}", self.log());
        }
        match &mut self.parts {
            Parts::Midhopd { .. } => {}
            Parts::Haproxy(master) => {
                // A worker that loses its master serves its flows to their end.
                let workers = children(master.id());
                end(master);
                for worker in workers {
                    let _ = kill(pid(worker), Signal::SIGKILL);
                }
            }
            Parts::Envoy(epochs) => {
                epochs.iter_mut().for_each(end);
                // It is left in the host if the process is killed.
                let base = fs::read_to_string(self.folder.path().join("base")).unwrap_or_default();
                if let Ok(base) = base.trim().parse::<u64>() {
                    let _ = fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}", base * 10));
                }
            }
        }
    }
}

/// Whether a process has ended.
pub fn is_gone(number: u32) -> bool {
    fs::read_link(format!("/proc/{number}/exe")).is_err()
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed())
}

fn children(of: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn logged(command: &mut Command, folder: &Path, name: &str) {
    let log = File::options().create(true).append(true).open(folder.join(name)).expect("a log");
    let also = log.try_clone().expect("a log");
    command.stdin(Stdio::null()).stdout(also).stderr(log);
}

/// The interception that a peer needs to be transparent, as in `make bench-relay`.
fn intercept(gateway: &Namespace) {
    stage::nft(
        gateway,
        &format!(
            "table ip peer {{ chain prerouting {{ type filter hook prerouting priority mangle; \
             socket transparent 1 meta mark set 1 accept; \
             iifname lan0 meta l4proto tcp tproxy to :{PORT} meta mark set 1 accept; }}; }}"
        ),
    );
    for words in ["rule add fwmark 1 lookup 100", "route add local default dev lo table 100"] {
        let status = gateway.command("ip").args(words.split(' ')).status().expect("ip starts");
        assert!(status.success(), "ip {words}");
    }
}

fn listens(gateway: &Namespace) -> bool {
    let sockets = gateway.run(|| fs::read_to_string("/proc/thread-self/net/tcp"));
    let local = format!(":{PORT:04X}");
    let sockets = sockets.expect("entering").expect("sockets");
    sockets.lines().any(|line| line.contains(&local) && line.contains(" 0A "))
}

/// A reload is seamless because the next worker gets the listeners from the one before
/// (`expose-fd listeners`, `-x`, which the master adds by itself).
fn haproxy_configuration(kind: Kind, folder: &Path, flows: usize) -> String {
    let limit = match kind {
        Kind::HaproxyWithLimit => format!("  hard-stop-after {}s\n", limit_s()),
        _ => String::new(),
    };
    format!(
        "global\n  nbthread 2\n  maxpipes 64\n  maxconn {}\n{limit}  \
         stats socket {}/control mode 600 level admin expose-fd listeners\n\
         defaults\n  mode tcp\n  option splice-auto\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
         listen relay\n  bind 0.0.0.0:{PORT} transparent\n  source 0.0.0.0 usesrc clientip\n  server origin 0.0.0.0\n",
        2 * flows + 1000,
        folder.display()
    )
}

fn envoy_epoch(gateway: &Namespace, folder: &Path, words: &[PathBuf], epoch: usize) -> Command {
    let mut command = gateway.command(&words[0]);
    command.arg("-c").arg(folder.join("envoy.yaml")).args(["--concurrency", "2", "-l", "warning"]);
    command.arg("--restart-epoch").arg(epoch.to_string());
    // It asks flows to end until then, which TCP cannot express; then it ends.
    command.arg("--drain-time-s").arg(limit_s().div_ceil(2).to_string());
    command.arg("--parent-shutdown-time-s").arg(limit_s().to_string());
    logged(&mut command, folder, "log");
    command
}

fn envoy_configuration(flows: usize) -> String {
    let of = "type.googleapis.com/envoy.extensions.filters";
    let most = 2 * flows + 1000;
    format!(
        r#"
static_resources:
  listeners:
  - name: relay
    address: {{ socket_address: {{ address: 0.0.0.0, port_value: {PORT} }} }}
    transparent: true
    listener_filters:
    - name: envoy.filters.listener.original_dst
      typed_config: {{ "@type": {of}.listener.original_dst.v3.OriginalDst }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": {of}.network.tcp_proxy.v3.TcpProxy
          stat_prefix: relay
          cluster: origin
          idle_timeout: 3600s
  clusters:
  - name: origin
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 10s
    circuit_breakers: {{ thresholds: [ {{ max_connections: {most}, max_pending_requests: {most} }} ] }}
"#
    )
}
