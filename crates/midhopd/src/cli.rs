//! The command line.
//!
//! Standard output carries data only (a plan, a table, JSON); log lines and errors go to standard
//! error. Exit codes: 0 done, 1 failed, 64 the command line or the configuration is wrong.

use crate::{
    assist, congestion, daemon,
    failure::{self, Failure, USAGE},
    keeper,
    survival::upgrade::{TakeoverArguments, UpgradeArguments, takeover, upgrade},
    trial,
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use midhop_manual::{Section, Words};
use midhop_pep::config::Plan;
use midhop_pki::authority;
use midhop_pki::identity::{Doubt, Identity};
use midhop_process::configuration::{as_json, as_toml, read_plan};
use midhop_status::console;
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
    /// Print a JSON Schema: of the configuration, for editors to complete and check, or of answers
    Schema(SchemaArguments),
    #[command(flatten)]
    Question(console::Question),
    /// Make and show the certificates that authenticate the ends of tunnels
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Replace the program of a running daemon by another one; no relayed flow ends
    Upgrade(UpgradeArguments),
    /// Check whether this program could take over a running daemon's flows
    #[command(hide = true)]
    Takeover(TakeoverArguments),
    /// Do what needs privileges, for the `midhopd run` that starts it
    #[command(hide = true)]
    Keeper(RunArguments),
    /// Write the man pages and shell completions, for packages
    #[command(hide = true)]
    Manual(ManualArguments),
    /// Show what this host supports, and test interception with a real connection
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
    /// What the schema describes
    #[arg(long, value_enum, default_value_t = Subject::Config)]
    of: Subject,
}

/// What has a JSON Schema.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Subject {
    /// The configuration
    Config,
    /// The answer of `midhopd status --json`, `legs --json` and `peers --json`
    Status,
    /// The answer of `midhopd flows --json`
    Flows,
    /// The answer of `midhopd why --json`
    Why,
    /// A line of `midhopd top --json`
    Top,
    /// The answer of `midhopd reload --json`
    Reload,
    /// The answer of `midhopd rate --json`
    Rate,
    /// The answer of `midhopd move --json`
    Move,
    /// The data of the live page, `/status.json`
    Page,
    /// The curves of the live page, `/history.json`
    History,
}

#[derive(Debug, Args)]
struct ManualArguments {
    /// The directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct DoctorArguments {
    /// The configuration whose interception and peers are examined; /etc/midhopd.toml if it exists
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Be the child process that runs the tests
    #[arg(long, hide = true)]
    try_in_namespace: bool,
}

#[derive(Debug, Subcommand)]
enum PkiCommand {
    /// Make an authority: its certificate and key
    Init {
        /// The directory
        #[arg(long, short, value_name = "DIRECTORY", default_value = ".")]
        directory: PathBuf,
        /// Its name
        #[arg(long, default_value = "midhop authority")]
        name: String,
    },
    /// Issue a certificate and key for a gateway
    Issue {
        /// The gateway's name, as in its peers' configurations
        name: String,
        /// The directory of the authority, into which the certificate is written
        #[arg(long, short, value_name = "DIRECTORY", default_value = ".")]
        directory: PathBuf,
        /// How long it is valid, in days
        #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=36500))]
        days: u32,
    },
    /// Show the content of a certificate
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
        Command::Run(arguments) => {
            daemon::run(&arguments.config, version).map(|()| ExitCode::SUCCESS)
        }
        Command::Upgrade(arguments) => upgrade(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Takeover(arguments) => takeover(&arguments, version).map(|()| ExitCode::SUCCESS),
        Command::Check(arguments) => check(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Keeper(arguments) => return keeper::main(&arguments.config),
        Command::Question(question) => console::run(question),
        Command::Manual(arguments) => manual(&arguments.directory).map(|()| ExitCode::SUCCESS),
        Command::Schema(arguments) => schema(arguments.of).map(|()| ExitCode::SUCCESS),
        Command::Pki(command) => pki(&command).map(|()| ExitCode::SUCCESS),
        Command::Doctor(arguments) if arguments.try_in_namespace => {
            midhop_doctor::try_in_namespace(trial::start)
        }
        Command::Doctor(arguments) => doctor(&arguments),
    };
    done.unwrap_or_else(|failure| failure::report(&failure))
}

/// With a configuration, or the default one where there is none.
fn doctor(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let usual = Path::new(CONFIG_DEFAULT);
    let file = arguments.config.as_deref().or_else(|| usual.exists().then_some(usual));
    let plan = file.map(read_plan).transpose()?;
    midhop_doctor::examine(plan.as_ref(), arguments.json)
}

fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let plan = read_plan(&arguments.file)?;
    if arguments.host {
        daemon::check_against_host(&plan)?;
    } else {
        warn_of_names(&plan);
    }
    let printed = if arguments.json { as_json(&plan) } else { as_toml(&plan) };
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

/// A kernel may have congestion controls that we do not know, so that a name like one of those that we do is no error.
fn warn_of_names(plan: &Plan) {
    for leg in &plan.legs {
        for name in leg.congestion.iter().chain(&leg.fallback) {
            if let Some(meant) = congestion::meant(name) {
                eprintln!(
                    "warning: leg \"{}\": \"{name}\" is available only if this host's kernel has it\n\
                     hint: did you mean `{meant}`? `midhopd check --host` asks the kernel",
                    leg.name
                );
            }
        }
    }
}

/// Prints a schema. What makes them is a third of a megabyte, and takes more time to build than their text: a test
/// holds the text to the types.
fn schema(of: Subject) -> Result<(), Failure> {
    let schema = match of {
        Subject::Config => include_str!("../schemas/config.json"),
        Subject::Status => include_str!("../schemas/status.json"),
        Subject::Flows => include_str!("../schemas/flows.json"),
        Subject::Why => include_str!("../schemas/why.json"),
        Subject::Top => include_str!("../schemas/top.json"),
        Subject::Reload => include_str!("../schemas/reload.json"),
        Subject::Rate => include_str!("../schemas/rate.json"),
        Subject::Move => include_str!("../schemas/move.json"),
        Subject::Page => include_str!("../schemas/page.json"),
        Subject::History => include_str!("../schemas/history.json"),
    };
    print(Ok(schema.to_owned()), "the schema")
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
    let answer = match command {
        PkiCommand::Init { directory, name } => {
            format!("{}\n", authority::init(directory, name)?.display())
        }
        PkiCommand::Issue { name, directory, days } => {
            format!("{}\n", authority::issue(directory, name, *days)?.display())
        }
        PkiCommand::Show { file } => authority::show(file)?,
    };
    std::io::stdout()
        .write_all(answer.as_bytes())
        .map_err(|error| Failure::run("the answer could not be printed").because(error))
}
