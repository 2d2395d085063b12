//! `midhop orbit pass`.

use super::arguments::SkyArguments;
use super::progress::OrbitProgress;
use super::route::{Gap, seconds, table};
use comfy_table::CellAlignment;
use midhop_path::orbit::passes::{self, gaps};
use midhop_path::orbit::sky::Station;
use midhop_units::{Duration, Number};
use serde::Serialize;
use std::fmt::Write as _;

/// Arguments of `midhop orbit pass`.
#[derive(Debug, clap::Args)]
pub struct Pass {
    #[command(flatten)]
    sky: SkyArguments,
    /// The place: latitude,longitude[,altitude in m], or a ground station of --hypatia
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    at: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    constellation: &'a str,
    #[serde(rename = "duration_s", with = "Number::<Duration>")]
    duration: Duration,
    passes: Vec<Row<'a>>,
    gaps: Vec<Gap>,
}

#[derive(Serialize)]
struct Row<'a> {
    satellite: &'a str,
    #[serde(rename = "rise_s", with = "Number::<Duration>")]
    rise: Duration,
    #[serde(rename = "set_s", with = "Number::<Duration>")]
    set: Duration,
    whole: bool,
    elevation_max_deg: f64,
}

impl Pass {
    /// The passes as a table, or as JSON.
    pub fn run(self) -> anyhow::Result<String> {
        let (plan, constellation) = self.sky.resolve("--at", &self.at)?;
        let station = Station::new(&plan.from, &constellation);
        let duration = self.sky.duration;
        let mut progress = OrbitProgress::new(duration);
        let found =
            passes::passes(&constellation, &station, plan.start, duration, plan.step, &mut |at| {
                progress.reached(at)
            });
        drop(progress);
        let gaps = gaps(&found, duration);
        if self.json {
            let passes = found.iter().map(|pass| Row {
                satellite: constellation.satellite(pass.satellite),
                rise: pass.rise,
                set: pass.set,
                whole: pass.whole,
                elevation_max_deg: pass.elevation_max_deg,
            });
            let (passes, constellation) = (passes.collect(), constellation.name());
            let gaps = gaps.into_iter().map(Gap::from).collect();
            let answer = Answer { constellation, duration, passes, gaps };
            return Ok(serde_json::to_string_pretty(&answer)? + "\n");
        }
        let mut text = format!(
            "{} over {}, above {}°, {} from second {}\n",
            constellation.name(),
            plan.from,
            station.mask_deg(),
            duration,
            seconds(plan.start)
        );
        let mut rows = table(&["satellite", "rises s", "sets s", "lasts s", "highest"]);
        for pass in &found {
            let cut = if pass.whole { "" } else { " (cut)" };
            rows.add_row([
                constellation.satellite(pass.satellite).to_owned(),
                seconds(pass.rise),
                seconds(pass.set),
                format!("{}{cut}", seconds(pass.length())),
                format!("{:.1}°", pass.elevation_max_deg),
            ]);
        }
        for column in rows.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = writeln!(text, "{rows}");
        let longest = gaps.iter().map(|(begin, end)| *end - *begin).max();
        let _ = match longest {
            None => writeln!(text, "{} passes, never without a satellite", found.len()),
            Some(longest) => {
                let total: Duration = gaps.iter().map(|(begin, end)| *end - *begin).sum();
                let share = total.as_s_f64() / duration.as_s_f64() * 100.0;
                writeln!(
                    text,
                    "{} passes; no satellite for {share:.1} % of the time, {} s at the longest",
                    found.len(),
                    seconds(longest)
                )
            }
        };
        Ok(text)
    }
}
