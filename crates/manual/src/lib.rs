//! Man pages and shell completions, made from a program's definition of its command line.
//!
//! Both programs write them with a hidden command, `manual DIRECTORY`, so that no page can name an
//! option that the program lacks. They contain nothing of the machine or the time: the same program
//! writes the same bytes.

use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use std::fs::{create_dir_all, write};
use std::io;
use std::path::Path;

/// The part of the manual that a program belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Section 1: commands for everybody.
    Command,
    /// Section 8: administration of a system, and daemons.
    Administration,
}

impl Section {
    fn number(self) -> &'static str {
        match self {
            Self::Command => "1",
            Self::Administration => "8",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Command => "User Commands",
            Self::Administration => "System Administration",
        }
    }
}

/// What each page has beside the options of its program: exit codes, and other pages.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    /// Where the program's pages belong.
    pub section: Section,
    /// The section EXIT STATUS: each exit code and its meaning.
    pub exit_codes: &'a [(u8, &'a str)],
    /// Other pages, as `name(section)`.
    pub see_also: &'a [&'a str],
}

/// Writes into `directory` one man page for each command that is not hidden (`man/`), and the completions of bash, zsh
/// and fish (`bash/NAME`, `zsh/_NAME`, `fish/NAME.fish`).
///
/// # Errors
/// When a file or a folder cannot be written.
pub fn write_all(mut command: Command, words: &Words<'_>, directory: &Path) -> io::Result<()> {
    let pages = directory.join("man");
    create_dir_all(&pages)?;
    let mut whole = command.clone().disable_help_subcommand(true);
    whole.build();
    let source = format!("{} {}", whole.get_name(), whole.get_version().unwrap_or_default());
    pages_of(&whole, None, &source, words, &pages)?;

    let name = command.get_name().to_owned();
    for (shell, folder, file) in [
        (Shell::Bash, "bash", name.clone()),
        (Shell::Zsh, "zsh", format!("_{name}")),
        (Shell::Fish, "fish", format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut command, &name, &mut script);
        create_dir_all(directory.join(folder))?;
        write(directory.join(folder).join(file), script)?;
    }
    Ok(())
}

/// The pages of a command and of its subcommands.
fn pages_of(
    command: &Command,
    above: Option<&str>,
    source: &str,
    words: &Words<'_>,
    folder: &Path,
) -> io::Result<()> {
    let section = words.section.number();
    let man =
        Man::new(command.clone()).section(section).source(source).manual(words.section.title());
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(".SH \"EXIT STATUS\"\n");
    for (code, meaning) in words.exit_codes {
        page.push_str(&format!(".TP\n\\fB{code}\\fR\n{meaning}\n"));
    }
    let others = above.map(|above| format!("{above}({section})"));
    let others: Vec<String> =
        others.into_iter().chain(words.see_also.iter().map(|&page| page.to_owned())).collect();
    page.push_str(".SH \"SEE ALSO\"\n");
    page.push_str(&others.iter().map(|page| reference(page)).collect::<Vec<_>>().join(",\n"));
    page.push('\n');
    write(folder.join(man.get_filename()), page)?;

    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages_of(inner, Some(name), source, words, folder)?;
    }
    Ok(())
}

/// `name(8)` in the form for a page: the name is bold.
fn reference(page: &str) -> String {
    match page.split_once('(') {
        Some((name, section)) => format!("\\fB{}\\fR({section}", name.replace('-', "\\-")),
        None => page.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use std::collections::BTreeMap;
    use std::fs::{read_dir, read_to_string};

    const WORDS: Words<'_> = Words {
        section: Section::Administration,
        exit_codes: &[(0, "Done."), (64, "The command line is wrong.")],
        see_also: &["the-other(1)"],
    };

    fn program() -> Command {
        let inner = Command::new("show").about("Shows it").arg(Arg::new("all").long("all"));
        let hidden = Command::new("inside").hide(true);
        Command::new("one").version("1.0").about("Is an example").subcommands([inner, hidden])
    }

    fn written() -> BTreeMap<String, String> {
        let directory = tempfile::tempdir().expect("a directory");
        write_all(program(), &WORDS, directory.path()).expect("written");
        let folders = read_dir(directory.path()).expect("folders").map(|entry| entry.expect("one"));
        let files = folders.flat_map(|folder| read_dir(folder.path()).expect("files"));
        let paths = files.map(|file| file.expect("a file").path());
        let relative = |path: &Path| path.strip_prefix(directory.path()).expect("in it").to_owned();
        paths
            .map(|path| {
                (relative(&path).display().to_string(), read_to_string(&path).expect("text"))
            })
            .collect()
    }

    #[test]
    fn a_page_for_each_command_that_is_shown_and_a_completion_for_each_shell() {
        let files = written();
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        let expected = ["bash/one", "fish/one.fish", "man/one-show.8", "man/one.8", "zsh/_one"];
        assert_eq!(names, expected);
        for file in ["bash/one", "fish/one.fish", "zsh/_one"] {
            assert!(files[file].contains("show") && files[file].contains("all"), "{file}");
        }
        let mut pages = files.iter().filter(|(name, _)| name.starts_with("man/"));
        assert!(!pages.any(|(_, text)| text.contains("inside")), "a hidden command has a page");
    }

    #[test]
    fn a_page_lists_its_exit_codes_and_names_the_page_above_it() {
        let files = written();
        let page = &files["man/one-show.8"];
        assert!(page.contains(r#".TH one-show 8  "one 1.0" "System Administration""#), "{page}");
        assert!(page.contains(".TP\n\\fB64\\fR\nThe command line is wrong.\n"), "{page}");
        let end = ".SH \"SEE ALSO\"\n\\fBone\\fR(8),\n\\fBthe\\-other\\fR(1)\n";
        assert!(page.ends_with(end), "{page}");
    }

    #[test]
    fn the_same_program_writes_the_same_bytes() {
        assert_eq!(written(), written());
    }
}
