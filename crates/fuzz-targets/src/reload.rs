//! Whole configurations: read, explained, printed, and loaded by a running daemon.

use midhop_pep::config::Plan;
use midhop_process::logging;

/// A daemon's configuration: any text gives a plan that can be printed, or one error with what is wrong
/// and where.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = read(text);
}

/// Two configurations with a zero byte between them: a running daemon changes from the first to the second.
///
/// It continues with a plan that can be printed and that could itself be requested: loading that plan again keeps
/// no old value, and the values that were reported as kept are unchanged.
pub fn reload(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = text.split_once('\0').unwrap_or((text, ""));
    let (Some(first), Some(second)) = (read(first), read(second)) else { return };
    let (same, kept) = first.reloaded(first.clone());
    assert!(same == first && kept.is_empty(), "what has not changed is kept back: {kept:?}");
    let (next, kept) = first.reloaded(second.clone());
    print(&next);
    assert!(next != second || kept.is_empty(), "{kept:?} is as it was asked for");
    assert!(next == second || !kept.is_empty(), "something is kept, and not named");
    let (again, kept) = first.reloaded(next.clone());
    assert!(kept.is_empty(), "{kept:?} is kept back of a plan that was followed");
    assert!(again == next, "the same plan is followed in another way");
}

/// Reads a configuration as `midhopd check` does.
fn read(text: &str) -> Option<Plan> {
    match Plan::read("fuzz.toml", text) {
        Ok(plan) => {
            print(&plan);
            if let Err(failure) = logging::check(&plan.log) {
                assert!(!failure.to_string().is_empty());
            }
            Some(plan)
        }
        Err(error) => {
            assert!(!error.message.is_empty());
            let message = error.to_string();
            assert!(message.starts_with("fuzz.toml"), "{message}");
            let line = text.split('\n').nth(error.line.saturating_sub(1) as usize);
            assert!(error.line > 0 && line.is_some(), "no place: {message}");
            let columns = line.unwrap_or_default().chars().count() + 1;
            assert!((1..=columns).contains(&(error.column as usize)), "no place: {message}");
            None
        }
    }
}

/// Prints a plan as `midhopd check` does, in both ways.
fn print(plan: &Plan) {
    let printed = toml::to_string(plan).unwrap_or_else(|error| panic!("{error}"));
    assert!(!printed.is_empty());
    let printed = serde_json::to_string_pretty(plan).unwrap_or_else(|error| panic!("{error}"));
    assert!(!printed.is_empty());
}
