//! What comes from PyPI, each partner into an environment of its own.

use super::{output, sources};
use nix::fcntl::{Flock, FlockArg};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs what `crates/testbed/peers/PARTNER/requirements.txt` names, once; gives the Python that
/// knows it.
///
/// # Errors
/// Why that cannot be done.
pub fn install(partner: &str) -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("there is no target")?;
    let home = target.join("peers").join(partner);
    let refused = |error| format!("{}: {error}", home.display());
    fs::create_dir_all(&home).map_err(refused)?;
    // Another test program may want the same now: it finds what this one has installed.
    let lock = fs::File::create(home.with_extension("lock")).map_err(refused)?;
    let lock = Flock::lock(lock, FlockArg::LockExclusive);
    let _lock = lock.map_err(|(_, number)| refused(number.into()))?;
    let (python, stamp) = (home.join("bin/python"), home.join("installed.txt"));
    let wanted = sources(partner).join("requirements.txt");
    let list = fs::read_to_string(&wanted).map_err(|error| format!("{wanted:?}: {error}"))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == list) {
        return Ok(python);
    }
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&home);
    output(&mut environment, partner)?;
    // The list is whole, and its versions are what was tried.
    let mut packages = Command::new(&python);
    packages.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    packages.args(["--no-deps", "--only-binary", ":all:", "-r"]).arg(&wanted);
    output(&mut packages, partner)?;
    fs::write(&stamp, list).map_err(|error| format!("{stamp:?}: {error}"))?;
    Ok(python)
}
