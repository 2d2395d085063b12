//! Tests decide by counters, not by the words of a log, except those that test the words.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The function with which tests read a log to decide.
const READ: &str = "wording_of(";

/// The contents of `xtask/logs.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Files that test the words of a log, and why.
    files: BTreeMap<String, String>,
}

impl Logs {
    /// The fault of a file, whether it is listed or not. The file that defines the function does
    /// not count.
    pub fn faults(&self, path: &str, text: &str) -> Option<String> {
        let is_test = path.starts_with("crates/") && path.contains("/tests/");
        let reads = is_test && text.contains(READ) && !text.contains(&format!("pub fn {READ}"));
        match (reads, self.files.get(path)) {
            (true, None) => Some(format!(
                "{path} decides by the words of a log: ask for a counter, or say in xtask/logs.toml why not"
            )),
            (false, Some(_)) => Some(format!("xtask/logs.toml: {path} reads no log")),
            (true, Some(why)) if why.is_empty() => {
                Some(format!("xtask/logs.toml does not say why {path} reads a log"))
            }
            _ => None,
        }
    }

    /// Listed files that do not exist.
    pub fn missing(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        let missing = self.files.keys().filter(|path| !exists(path));
        missing.map(|path| format!("xtask/logs.toml: there is no {path}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_reads_a_log_is_listed_with_a_reason() {
        let logs = "files = { \"crates/x/tests/x/a.rs\" = \"it tests the words\" }";
        let logs: Logs = toml::from_str(logs).expect("a list");
        let reads = "    assert!(wording_of(&setup).contains(\"done\"));\n";
        assert_eq!(logs.faults("crates/x/tests/x/a.rs", reads), None);
        assert!(logs.faults("crates/x/tests/x/b.rs", reads).is_some_and(|it| it.contains("b.rs")));
        assert_eq!(logs.faults("crates/x/tests/x/b.rs", "log_of(&setup)\n"), None);
        assert!(logs.faults("crates/x/tests/x/a.rs", "").is_some_and(|it| it.contains("no log")));
        let own = format!("pub fn wording_of(setup: &Setup) -> String {{}}\n{reads}");
        assert_eq!(logs.faults("crates/x/tests/x/program/mod.rs", &own), None);
        assert_eq!(logs.missing(|_| false).len(), 1);
    }
}
