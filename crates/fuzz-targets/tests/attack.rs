//! Every target, with randomly changed inputs of its corpus: what `make attack` does without a fuzzer, and,
//! for a moment, any `cargo test`.
//!
//! `cargo test -p midhop-fuzz-targets --test attack -- --seconds 60` divides a minute among the targets,
//! with dice of that moment. Standard output has one line per target: `target NAME COUNT held`, or
//! `… BROKEN: FILE` with the input that broke it. An input that takes too long ends the program.

use midhop_fuzz_targets::{SLOW, TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

/// The longest time of one input. A target that takes longer hangs, as no input is larger than some KiB.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many inputs each target gets if no time is given.
const FEW: u64 = 200;
/// The largest size of an input. Unit: bytes.
const INPUT_BYTES_MAX: usize = 8 << 10;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let seconds = words.iter().position(|word| word == "--seconds");
    let time = seconds.and_then(|at| words.get(at + 1)?.parse().ok()).map(Duration::from_secs);
    // The same dice each time, unless a time is given.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = time.map_or(1, |_| now.as_nanos() as u64);
    println!("seed {seed}");
    let each = time.map(|time| time / TARGETS.len() as u32);
    let mut broken = false;
    for (number, target) in TARGETS.into_iter().enumerate() {
        let mut dice =
            Dice(seed.wrapping_add(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (count, outcome) = attack(target, each, &mut dice);
        let outcome = outcome.map_or("held".to_owned(), |file| {
            broken = true;
            format!("BROKEN: {}", file.display())
        });
        println!("target {} {count} {outcome}", target.0);
    }
    ExitCode::from(u8::from(broken))
}

/// Attacks one target for some time, or some number of inputs. Returns how many inputs it got, and the file with the
/// input that broke it.
fn attack((name, run): Target, time: Option<Duration>, dice: &mut Dice) -> (u64, Option<PathBuf>) {
    let mut pool = corpus(name);
    let kept = pool.len();
    let begin = Instant::now();
    let current = Mutex::new(Vec::new());
    let (alive, watched) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let current = &current;
        scope.spawn(move || watch(name, &watched, current));
        let mut count = 0;
        let few = if SLOW.contains(&name) { FEW / 10 } else { FEW };
        while time.map_or(count < few, |time| begin.elapsed() < time) {
            let input = changed(&pool, dice);
            current.lock().unwrap_or_else(|it| it.into_inner()).clone_from(&input);
            if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
                return (count, Some(save(name, &input)));
            }
            count += 1;
            // A change of a changed input reaches further. The corpus stays; the other inputs are replaced from time
            // to time.
            if dice.below(8) == 0 {
                if pool.len() > 4 * kept {
                    let at = kept + dice.below(pool.len() - kept);
                    pool.swap_remove(at);
                }
                pool.push(input);
            }
            let _ = alive.send(());
        }
        drop(alive);
        (count, None)
    })
}

/// Ends the program when an input takes too long.
fn watch(name: &str, alive: &mpsc::Receiver<()>, current: &Mutex<Vec<u8>>) {
    loop {
        match alive.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let input = current.lock().map(|input| input.clone()).unwrap_or_default();
                println!("target {name} 0 BROKEN: {} (it hangs)", save(name, &input).display());
                std::process::exit(1);
            }
        }
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{name} has no corpus");
    files.iter().map(|file| fs::read(file).expect("readable")).collect()
}

/// Stores an input that broke a target, in the build directory.
fn save(name: &str, input: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attack");
    let _ = fs::create_dir_all(&folder);
    let file = folder.join(format!("{name}-{:016x}", fnv(input)));
    if let Err(error) = fs::write(&file, input) {
        println!("not written: {error}: {}", input.escape_ascii());
    }
    file
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// An input with some changes: of bits, bytes, numbers and positions, and with parts of other inputs.
fn changed(pool: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    const TELLING: &[u8] = b"0123456789-+.eE, \n\r\t\0\"'=[]{}:/%\x7f\x80\xfe\xff";
    let mut bytes = pool[dice.below(pool.len())].clone();
    for _ in 0..=dice.below(6) {
        let at = dice.below(bytes.len());
        let until = (at + 1 + dice.below(16)).min(bytes.len());
        match dice.below(8) {
            0 if at < bytes.len() => bytes[at] = TELLING[dice.below(TELLING.len())],
            1 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            2 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
            3 => drop(bytes.drain(at.min(until)..until)),
            4 => bytes.truncate(at),
            5 => {
                let other = &pool[dice.below(pool.len())];
                let from = dice.below(other.len());
                let part = other[from..(from + dice.below(64)).min(other.len())].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                let number = 1_u64 << dice.below(64);
                let number = number.wrapping_sub(dice.below(3) as u64).to_be_bytes();
                bytes.splice(at..at, number[dice.below(8)..].iter().copied());
            }
            _ => {
                let again = bytes[at.min(until)..until].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}
