//! The command line.
//!
//! Standard output carries data only (a plan, a table, JSON); log lines and errors go to standard
//! error. Exit codes: 0 done, 1 failed, 64 the command line or the configuration is wrong.

use crate::{
    admin, assist, console, control, daemon, doctor,
    failure::{self, Failure, USAGE},
    keeper, logging, pki, snapshot,
    tunnel::{Doubt, Identity},
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use midhop_manual::{Section, Words};
use midhop_pep::config::{Config, Plan};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The configuration that is read when none is named.
const CONFIG_DEFAULT: &str = "/etc/midhopd.toml";

/// Speeds up TCP over satellite links: splits connections in the middle, transparently.
#[derive(Debug, Parser)]
#[command(
    name = "midhopd",
    version,
    propagate_version = true,
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run in the foreground until SIGTERM or SIGINT; SIGHUP reads the configuration again
    Run(RunArguments),
    /// Check a configuration and print what it means, every default included
    Check(CheckArguments),
    /// Print a JSON Schema: of the configuration, by which editors complete and check keys, or of an answer
    Schema(SchemaArguments),
    #[command(flatten)]
    Question(console::Question),
    /// Make and show the certificates by which tunnels know each other
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Do what takes privileges, for the `midhopd run` that starts it
    #[command(hide = true)]
    Keeper(RunArguments),
    /// Write the man pages and the completions of shells, for packages
    #[command(hide = true)]
    Manual(ManualArguments),
    /// Tell what this host supports, and prove interception with a real connection
    Doctor(DoctorArguments),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// The configuration file
    #[arg(value_name = "FILE", default_value = CONFIG_DEFAULT)]
    file: PathBuf,
    /// Print JSON instead of TOML
    #[arg(long)]
    json: bool,
    /// Check it against this host as well: interfaces and congestion controls
    #[arg(long)]
    host: bool,
}

#[derive(Debug, Args)]
struct SchemaArguments {
    /// What is described
    #[arg(long, value_enum, default_value_t = Subject::Config)]
    of: Subject,
}

/// What has a JSON Schema.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Subject {
    /// The configuration
    Config,
    /// The answer of `midhopd status --json`
    Status,
    /// The answer of `midhopd flows --json`
    Flows,
    /// The answer of `midhopd why --json`
    Why,
    /// The data of the live page, `/status.json`
    Page,
    /// The curves of the live page, `/history.json`
    History,
}

#[derive(Debug, Args)]
struct ManualArguments {
    /// Where
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct DoctorArguments {
    /// The configuration whose interception and peers are examined; /etc/midhopd.toml where it is there
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Be the child process that tries things
    #[arg(long, hide = true)]
    try_in_namespace: bool,
}

#[derive(Debug, Subcommand)]
enum PkiCommand {
    /// Make an authority: its certificate and key
    Init {
        /// Where
        #[arg(long, short, value_name = "DIRECTORY", default_value = ".")]
        directory: PathBuf,
        /// What it is called
        #[arg(long, default_value = "midhop authority")]
        name: String,
    },
    /// Issue a certificate and key for a gateway
    Issue {
        /// The gateway's name, as its peers' configurations have it
        name: String,
        /// Where the authority is, and the certificate goes
        #[arg(long, short, value_name = "DIRECTORY", default_value = ".")]
        directory: PathBuf,
        /// How long it is valid
        #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=36500))]
        days: u32,
    },
    /// Tell what a certificate says
    Show {
        /// The certificate
        file: PathBuf,
    },
}

/// Does what the command line asks.
pub fn main(version: &'static str) -> ExitCode {
    let given = Arguments::command().version(version).try_get_matches();
    let arguments = match given.and_then(|given| Arguments::from_arg_matches(&given)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, everything else is a usage error.
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let done = match arguments.command.unwrap_or(Command::Run(arguments.run)) {
        Command::Run(arguments) => daemon::run(&arguments.config).map(|()| ExitCode::SUCCESS),
        Command::Check(arguments) => check(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Keeper(arguments) => return keeper::main(&arguments.config),
        Command::Question(question) => console::run(question),
        Command::Manual(arguments) => manual(&arguments.directory).map(|()| ExitCode::SUCCESS),
        Command::Schema(arguments) => schema(arguments.of).map(|()| ExitCode::SUCCESS),
        Command::Pki(command) => pki(&command).map(|()| ExitCode::SUCCESS),
        Command::Doctor(arguments) if arguments.try_in_namespace => doctor::try_in_namespace(),
        Command::Doctor(arguments) => doctor(&arguments),
    };
    done.unwrap_or_else(|failure| failure::report(&failure))
}

/// With a configuration, or the default one where there is none.
fn doctor(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let usual = Path::new(CONFIG_DEFAULT);
    let file = arguments.config.as_deref().or_else(|| usual.exists().then_some(usual));
    let plan = file.map(read_plan).transpose()?;
    doctor::examine(plan.as_ref(), arguments.json)
}

fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let plan = read_plan(&arguments.file)?;
    if arguments.host {
        daemon::check_against_host(&plan)?;
    }
    let printed = if arguments.json {
        serde_json::to_string_pretty(&plan).map(|json| json + "\n").map_err(|e| e.to_string())
    } else {
        toml::to_string(&plan).map_err(|e| e.to_string())
    };
    print(printed, "the plan")?;
    check_identity(&plan)?;
    match &plan.assist.peer {
        Some(peer) => assist::secret(peer).map(drop).map_err(|error| {
            let hint = error.hint();
            Failure::run("[assist]: reports of the peer would be refused").because(error).hint(hint)
        }),
        None => Ok(()),
    }
}

fn schema(of: Subject) -> Result<(), Failure> {
    let schema = match of {
        Subject::Config => Config::schema(),
        Subject::Status => schemars::schema_for!(control::answer::DaemonStatus),
        Subject::Flows => schemars::schema_for!(control::answer::Flows),
        Subject::Why => schemars::schema_for!(control::answer::Why),
        Subject::Page => output_schema::<admin::Status>(),
        Subject::History => output_schema::<snapshot::history::HistoryView>(),
    };
    let schema = serde_json::to_string_pretty(&schema);
    print(schema.map(|json| json + "\n").map_err(|e| e.to_string()), "the schema")
}

/// The schema of what is only ever written.
fn output_schema<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}

fn manual(directory: &Path) -> Result<(), Failure> {
    const WORDS: Words<'_> = Words {
        section: Section::Administration,
        exit_codes: &[
            (0, "It was done. A daemon ended because it was asked to."),
            (1, "It could not be done, or not to its end."),
            (USAGE, "The command line or the configuration is wrong."),
        ],
        see_also: &["midhop(1)", "systemctl(1)", "nft(8)"],
    };
    midhop_manual::write_all(Arguments::command(), &WORDS, directory).map_err(|error| {
        Failure::run(format!("{} cannot be written", directory.display())).because(error)
    })
}

fn print(printed: Result<String, String>, what: &str) -> Result<(), Failure> {
    let refused = |error: String| Failure::run(format!("{what} cannot be printed")).because(error);
    let printed = printed.map_err(refused)?;
    std::io::stdout().write_all(printed.as_bytes()).map_err(|error| refused(error.to_string()))
}

/// Whether a daemon with this plan could prove who it is.
fn check_identity(plan: &Plan) -> Result<(), Failure> {
    let Some(credentials) = &plan.tunnel.credentials else { return Ok(()) };
    let identity = Identity::load(credentials, &plan.peers).map_err(|error| {
        let hint = error.hint();
        Failure::run("[tunnel]: peers would not be met").because(error).hint(hint)
    })?;
    match identity.doubt {
        Some(doubt @ Doubt::Ending { .. }) => {
            // Nothing is lost with it.
            let _ = writeln!(std::io::stderr(), "warning: [tunnel]: {doubt}");
            Ok(())
        }
        Some(doubt) => Err(Failure::run(format!("[tunnel]: {doubt}"))
            .hint("`midhopd pki issue` makes another, and SIGHUP has a daemon read it")),
        None => Ok(()),
    }
}

fn pki(command: &PkiCommand) -> Result<(), Failure> {
    let said = match command {
        PkiCommand::Init { directory, name } => {
            format!("{}\n", pki::init(directory, name)?.display())
        }
        PkiCommand::Issue { name, directory, days } => {
            format!("{}\n", pki::issue(directory, name, *days)?.display())
        }
        PkiCommand::Show { file } => pki::show(file)?,
    };
    std::io::stdout()
        .write_all(said.as_bytes())
        .map_err(|error| Failure::run("the answer could not be printed").because(error))
}

/// Reads and resolves the configuration in `file`.
///
/// # Errors
/// When the file cannot be read, or does not make sense.
pub fn read_plan(file: &Path) -> Result<Plan, Failure> {
    read(file).map(|(plan, _)| plan)
}

/// The same, with what the file says.
///
/// # Errors
/// As [`read_plan`].
pub fn read(file: &Path) -> Result<(Plan, String), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("{name} cannot be read"))
            .because(error)
            .hint("name the configuration with --config FILE")
    })?;
    let plan = Plan::read(&name, &text)?;
    logging::check(&plan.log)?;
    Ok((plan, text))
}
