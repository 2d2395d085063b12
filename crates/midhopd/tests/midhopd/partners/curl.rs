//! libcurl as a near end: an HTTP client that sends requests to its proxy over HTTP/3.

use super::{Had, had, identity, output, python, sources};
use crate::ends::Authority;
use crate::program::output_in;
use crate::stage::Stage;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Python with libcurl, and our program. `None`, with a clear message, if that is not available, or
/// if this libcurl cannot use a proxy over HTTP/3.
pub fn words() -> Option<&'static [PathBuf]> {
    static CURL: Had = OnceLock::new();
    had(CURL.get_or_init(|| {
        let words = vec![python::install("curl")?, sources("curl").join("main.py")];
        output(Command::new(&words[0]).arg(&words[1]).arg("speaks"), "libcurl")?;
        Ok(words)
    }))
}

/// One exchange of libcurl on the gateway, through the proxy at `proxy`. Returns its output.
pub fn exchange(
    stage: &Stage,
    authority: &Authority,
    (proxy, origin): (SocketAddr, SocketAddr),
    action: &str,
    file: &Path,
    more: &[&str],
) -> String {
    let words = words().expect("it was had");
    let mut command = Command::new(&words[0]);
    command.arg(&words[1]).args([action, &format!("http://{origin}/file")]);
    command.args(identity(authority, "near"));
    command.arg("-proxy").arg(format!("far:{}@{}", proxy.port(), proxy.ip()));
    command.arg("-file").arg(file).args(more);
    let output = output_in(&stage.gateway, &mut command);
    let stdout = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    stdout
}
