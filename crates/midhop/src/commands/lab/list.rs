//! `midhop lab list`.

use crate::commands::output;
use crate::failure::Failure;
use midhop_experiment::Scenario;
use midhop_path::presets;
use midhop_testbed::state;
use midhop_workbench::supply_files;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

/// Arguments of `midhop lab list`.
#[derive(Debug, clap::Args)]
pub struct LabList {
    /// The directory in which to look for scenarios
    #[arg(long, value_name = "DIR", default_value = "scenarios")]
    scenarios: PathBuf,
}

impl LabList {
    /// Prints the names that a scenario can use, the scenarios, and the labs that are up.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut text = String::new();
        writeln!(text, "link presets (preset = \"NAME\"):")?;
        for preset in presets::all() {
            writeln!(text, "  {:<14} {}", preset.name, preset.description)?;
            writeln!(text, "  {:<14} source: {}", "", preset.source)?;
        }
        writeln!(text, "scenarios in {}:", self.scenarios.display())?;
        match scenario_files(&self.scenarios) {
            Ok(files) if files.is_empty() => writeln!(text, "  none")?,
            Ok(files) => {
                for file in files {
                    writeln!(text, "  {:<30} {}", file.display().to_string(), summary(&file))?;
                }
            }
            Err(error) => writeln!(text, "  none ({error})")?,
        }
        writeln!(text, "labs that are up:")?;
        let labs = state::living()?;
        if labs.is_empty() {
            writeln!(text, "  none")?;
        }
        for lab in labs {
            let nodes: Vec<_> =
                lab.description.nodes.iter().map(|(node, at)| format!("{node} {at}")).collect();
            writeln!(text, "  {:<14} {}", lab.description.name, nodes.join(", "))?;
        }
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn scenario_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    Ok(files)
}

/// A scenario's title and size, or why it cannot be read.
fn summary(file: &Path) -> String {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return format!("cannot be read: {error}"),
    };
    let plans = Scenario::parse(&file.display().to_string(), &text)
        .map_err(Failure::from)
        .and_then(|mut scenario| {
            supply_files(&mut scenario, file)?;
            Ok(scenario.plans()?)
        });
    match plans {
        Ok(plans) => {
            let title = plans.first().map_or("", |plan| plan.title.as_str());
            format!("{title} ({} runs)", plans.len())
        }
        Err(error) => {
            let error = error.to_string();
            format!("cannot be read: {}", error.lines().next().unwrap_or_default())
        }
    }
}
