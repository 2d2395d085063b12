//! `midhop orbit list`.

use midhop_path::orbit::presets;
use std::fmt::Write as _;

/// Arguments of `midhop orbit list`.
#[derive(Debug, clap::Args)]
pub struct OrbitList {}

impl OrbitList {
    /// The constellations and the sources of their numbers.
    pub fn run(self) -> String {
        let mut text = "constellations (constellation = \"NAME\"):\n".to_owned();
        for preset in presets::all() {
            let _ = writeln!(text, "  {:<14} {}", preset.name, preset.description);
            let _ = writeln!(text, "  {:<14} source: {}", "", preset.source);
        }
        text
    }
}
