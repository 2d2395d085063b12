//! The origin of a command's records: this program and the parts that it uses.

use super::own_program;
use anyhow::Context;
use midhop_campaign::{Build, Origin};
use midhop_experiment::record::Runner;
use midhop_testbed::lab::find_daemon;

/// Records of the simulator.
pub fn simulated() -> anyhow::Result<Origin> {
    Ok(Origin::new(Runner::Sim, own_build()?))
}

/// Records of the laboratory, which also depend on the daemon and the kernel.
pub fn real() -> anyhow::Result<Origin> {
    let build = match find_daemon() {
        Ok(daemon) => own_build()?.and(&Build::of(&daemon)?),
        Err(_) => own_build()?,
    };
    let system = nix::sys::utsname::uname().context("cannot find the kernel's release")?;
    let kernel = system.release().to_string_lossy();
    Ok(Origin::new(Runner::Lab, build).with("linux", Some(&kernel)))
}

/// The build of this program.
pub fn own_build() -> anyhow::Result<Build> {
    Ok(Build::of(&own_program()?)?)
}
