//! Raw records of the figures that tests measure: one JSON object a line, in the folder that `MIDHOP_RECORDS` names.

use serde_json::Value;
use std::fs::{OpenOptions, create_dir_all};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// Appends a record to the file of a figure, with the time and the machine's load. A figure whose assertions fail leaves none.
pub fn record(figure: &str, mut record: Value) {
    let Some(folder) = std::env::var_os("MIDHOP_RECORDS") else { return };
    record["load"] = load().into();
    let now = UNIX_EPOCH.elapsed().expect("a clock after 1970");
    record["unix_s"] = now.as_secs().into();
    let file = Path::new(&folder).join(format!("{figure}.jsonl"));
    let written = create_dir_all(&folder)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&file))
        .and_then(|mut file| writeln!(file, "{record}"));
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// The machine's load, as the kernel reports it.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Unit: milliseconds.
pub fn ms(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1e3).collect()
}
