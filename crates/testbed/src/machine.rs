//! Emulated machines with an independently built kernel, in virtual time.
//!
//! qemu counts instructions and lets each take one nanosecond. When the machine is idle, its clock
//! jumps to the next timer. The machine depends on nothing of this host but its input, and its
//! randomness comes from a seed. So two machines with the same input do the same, instruction by
//! instruction, however busy this host is.
//!
//! Two threads of qemu run one machine: one executes its instructions, the other moves its clock
//! forward. The second may look at the clock while the processor is halted and its last
//! instructions are not counted yet; the clock then jumps too far. In qemu's recording mode, the
//! two threads alternate. That is the only reason for recording; the recording itself is not used.
//!
//! `scripts/reference-machine` makes the files from which such a machine starts; its `init` runs
//! `midhop reference inside`.
//!
//! Decision 0032.

use crate::bystander::Bystander;
use midhop_units::Seed;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// The emulator.
const QEMU: &str = "qemu-system-x86_64";
/// Memory of a machine; this host provides it page by page as the machine uses it.
const MEMORY: &str = "2G";
/// The kernel's parameters: its console, no mitigations, a fixed layout, and a clock source that it
/// trusts. The kernel mixes this whole line into its random pool before it draws from it, so that
/// the seed at its end decides the numbers.
const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr \
                           random.trust_cpu=off tsc=reliable";
/// The number of lines of its console that an error shows. Unit: lines.
const LAST_LINES: usize = 5;

/// Why a machine produced no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The files that it starts from are missing.
    #[error("{} is no machine to start: {source}", directory.display())]
    Missing {
        /// Where it should be.
        directory: PathBuf,
        /// What is missing.
        source: io::Error,
    },
    /// A file or the emulator could not be used.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What failed.
        source: io::Error,
    },
    /// It ended without output.
    #[error("the emulated machine gave no output: {console}")]
    Silent {
        /// The end of its console.
        console: String,
    },
    /// Somebody asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A machine that is not switched on yet.
#[derive(Debug, Clone)]
pub struct Machine {
    kernel: PathBuf,
    files: PathBuf,
    release: String,
}

impl Machine {
    /// The machine in `directory`: `vmlinuz`, `initramfs`, and `release` with the kernel's name.
    ///
    /// # Errors
    /// When one of them is not there.
    pub fn open(directory: &Path) -> Result<Self, MachineError> {
        let missing = |source| MachineError::Missing { directory: directory.to_owned(), source };
        let found = |name: &str| {
            let path = directory.join(name);
            fs::metadata(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
            Ok(path)
        };
        let release = fs::read_to_string(found("release").map_err(missing)?).map_err(missing)?;
        Ok(Self {
            kernel: found("vmlinuz").map_err(missing)?,
            files: found("initramfs").map_err(missing)?,
            release: release.trim().to_owned(),
        })
    }

    /// The release of its kernel, as `uname -r` names it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Switches on a machine with `input`, and returns its output when it has switched itself off.
    /// Its randomness comes from `seed`. Its files during the run are in `scratch`, which no other
    /// run may use.
    ///
    /// # Errors
    /// When there is no emulator, the machine ends without output, or `interrupted` is set.
    pub fn run(
        &self,
        input: &str,
        seed: Seed,
        scratch: &Path,
        interrupted: &AtomicBool,
    ) -> Result<String, MachineError> {
        let failed = |action: &str| {
            let action = action.to_owned();
            move |source| MachineError::Io { action, source }
        };
        let place = |name: &str| scratch.join(name);
        let (given, output, console) = (place("input"), place("output"), place("console"));
        fs::write(&given, input).map_err(failed("write a machine's input"))?;
        for file in [&output, &console] {
            fs::write(file, "").map_err(failed("make a file for a machine"))?;
        }
        let errors =
            fs::File::create(place("qemu")).map_err(failed("make a file for a machine"))?;
        let file = |option: &str, path: &Path| {
            let mut word = OsString::from(option);
            word.push(path);
            word
        };
        let configure = |qemu: &mut Command| {
            qemu.args(["-no-user-config", "-nodefaults", "-display", "none", "-monitor", "none"])
                .args([
                    "-no-reboot",
                    "-machine",
                    "hpet=off",
                    "-accel",
                    "tcg,thread=single",
                    "-icount",
                    "shift=0,sleep=off,rr=record,rrfile=/dev/null",
                ])
                .args(["-cpu", "qemu64", "-smp", "1", "-m", MEMORY])
                .args(["-rtc", "base=2020-01-01,clock=vm", "-seed", &seed.0.to_string()])
                .arg("-kernel")
                .arg(&self.kernel)
                .arg("-initrd")
                .arg(&self.files)
                .arg("-append")
                .arg(format!("{KERNEL_LINE} midhop.seed={}", seed.0))
                .arg("-fw_cfg")
                .arg(file("name=opt/org.midhop/plan,file=", &given))
                .arg("-chardev")
                .arg(file("file,id=console,path=", &console))
                .arg("-chardev")
                .arg(file("file,id=output,path=", &output))
                .args(["-serial", "chardev:console", "-serial", "chardev:output"])
                .stderr(errors);
        };
        let started = Bystander::start(QEMU, configure)
            .map_err(failed(&format!("start {QEMU}, which Debian has in qemu-system-x86")))?;
        let ended = started.wait(interrupted).map_err(failed("wait for a machine"))?;
        if ended.is_none() {
            return Err(MachineError::Interrupted);
        }
        let text = fs::read_to_string(&output).map_err(failed("read a machine's output"))?;
        // The output ends with a newline. Without it, the output was cut short and does not count.
        if text.ends_with('\n') {
            return Ok(text);
        }
        let last = [&console, &place("qemu")].map(|path| last_lines(path));
        Err(MachineError::Silent { console: last.concat().trim().to_owned() })
    }
}

/// The end of what a file holds, on one line.
fn last_lines(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let kept = &lines[lines.len().saturating_sub(LAST_LINES)..];
    kept.iter().map(|line| format!("{line}; ")).collect::<String>()
}
