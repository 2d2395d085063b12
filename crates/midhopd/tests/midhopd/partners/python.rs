//! Installs packages from PyPI, for each partner into an environment of its own.

use super::{output, sources};
use nix::fcntl::{Flock, FlockArg};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs the packages in `crates/testbed/peers/PARTNER/requirements.txt`, once. Returns the
/// Python of that environment.
///
/// # Errors
/// The reason why that fails.
pub fn install(partner: &str) -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("there is no target")?;
    let home = target.join("peers").join(partner);
    let refused = |error| format!("{}: {error}", home.display());
    fs::create_dir_all(&home).map_err(refused)?;
    // Another test program may need the same now: it then finds what this one has installed.
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
    // The list is complete, with the versions that were tested.
    let mut packages = Command::new(&python);
    packages.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    packages.args(["--no-deps", "--only-binary", ":all:", "-r"]).arg(&wanted);
    output(&mut packages, partner)?;
    fs::write(&stamp, list).map_err(|error| format!("{stamp:?}: {error}"))?;
    Ok(python)
}
