//! Pairs of relays with a tunnel between terminal and gateway: HTTP/3 CONNECT over QUIC, both ends known
//! to each other by certificates.

use crate::Result;
use crate::path::{GATEWAY, Path, SERVER, TERMINAL_INSIDE};
use crate::relays::{Processes, RELAY_PORT, Relay, SERVING, admin, intercept};
use midhop_testbed::namespace::Namespace;
use std::fs;
use std::path::{self, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The far end's UDP port.
const PORT: u16 = 4433;
const NEAR: &str = "terminal";
const FAR: &str = "gateway";

/// Starts a build of midhopd at both ends, with the minimal configuration of a pair.
pub fn start_midhopd(build: Relay, path: &Path, processes: &mut Processes) -> Result<()> {
    let folder = certificates(processes)?;
    let at = folder.display();
    let limits = format!("{}[limits]\nflows = 20000\n", admin());
    let own = |name| {
        format!(
            "{limits}[tunnel]\ncertificate = \"{at}/{name}.pem\"\nkey = \"{at}/{name}.key\"\n\
             authority = \"{at}/ca.pem\"\n"
        )
    };
    let resume = if build == Relay::PlainPair { "resume = \"0 s\"\n" } else { "" };
    let (near, far) = (folder.join("near.toml"), folder.join("far.toml"));
    fs::write(
        &near,
        format!(
            "[intercept]\ninterfaces = \"{TERMINAL_INSIDE}\"\n{}[peers.{FAR}]\n\
             address = \"{GATEWAY}:{PORT}\"\nflows = 20000\n{resume}[[rules]]\ntunnel = \"{FAR}\"\n\
             accept = \"early\"\notherwise = \"reject\"\n",
            own(NEAR)
        ),
    )?;
    fs::write(
        &far,
        format!(
            "{}listen = \"{GATEWAY}:{PORT}\"\ntargets = \"{SERVER}/32\"\n\
             [peers.{NEAR}]\nflows = 20000\n{resume}",
            own(FAR)
        ),
    )?;
    // The near end's tunnel may open before its interception is installed. Until then flows are not
    // intercepted.
    let (there, open) = ([SERVING].as_slice(), [SERVING, "a tunnel is open"].as_slice());
    for (place, config, words) in [(&path.gateway, far, there), (&path.terminal, near, open)] {
        let mut command = place.command(build.program());
        command.args(["run", "--config"]).arg(config);
        processes.start(command, |log| Ok(words.iter().all(|word| log.contains(word))))?;
    }
    Ok(())
}

/// Starts quic-go's relay at both ends.
pub fn start_quic_go(path: &Path, processes: &mut Processes) -> Result<()> {
    let folder = certificates(processes)?;
    intercept(&path.terminal, TERMINAL_INSIDE, "")?;
    let program = quic_go().map(|(program, _)| program)?;
    let command = |place: &Namespace, role: &str, name: &str| {
        let mut command = place.command(program);
        command.arg(role);
        command.arg("-certificate").arg(folder.join(format!("{name}.pem")));
        command.arg("-key").arg(folder.join(format!("{name}.key")));
        command.arg("-authority").arg(folder.join("ca.pem"));
        command
    };
    let is_there = |log: &str| Ok(log.contains("listening"));
    let proxy = format!("{GATEWAY}:{PORT}");
    let mut far = command(&path.gateway, "serve", FAR);
    far.args(["-listen", &proxy]);
    processes.start(far, is_there)?;
    let mut near = command(&path.terminal, "open", NEAR);
    near.args(["-listen", &format!("0.0.0.0:{RELAY_PORT}"), "-proxy", &proxy, "-name", FAR]);
    processes.start(near, is_there)
}

/// Makes an authority and a certificate for each end, with midhopd's own tool.
fn certificates(processes: &Processes) -> Result<PathBuf> {
    let folder = processes.folder.path().join("certificates");
    for arguments in [&["init"][..], &["issue", NEAR], &["issue", FAR]] {
        let mut command = Command::new(Relay::Pair.program());
        command.arg("pki").args(arguments).arg("--directory").arg(&folder);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("midhopd pki {} failed: {why}", arguments.join(" ")).into());
        }
    }
    Ok(folder)
}

/// Builds quic-go's relay once, from this repository's source: the program, and its version.
///
/// # Errors
/// Why that cannot be done.
pub fn quic_go() -> std::result::Result<(&'static path::Path, &'static str), String> {
    static BUILT: OnceLock<std::result::Result<(PathBuf, String), String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let sources = path::Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/quic-go");
        let program = path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("quic-go");
        let installed = path::Path::new("/usr/local/go/bin/go");
        let go = if installed.exists() { installed } else { path::Path::new("go") };
        let run = |arguments: &[&str]| {
            let mut command = Command::new(go);
            command.args(arguments).current_dir(&sources).stdin(Stdio::null());
            let output = command.output().map_err(|error| format!("there is no Go: {error}"))?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
            }
            Err(format!("it is not built: {}", String::from_utf8_lossy(&output.stderr)))
        };
        run(&["build", "-o", &program.display().to_string(), "."])?;
        let library = run(&["list", "-m", "github.com/quic-go/quic-go"])?;
        Ok((program, format!("{library}, {}", run(&["env", "GOVERSION"])?)))
    });
    match built {
        Ok((program, version)) => Ok((program, version)),
        Err(why) => Err(why.clone()),
    }
}
