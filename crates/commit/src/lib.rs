//! The commit from which a program was built.
//!
//! This is a macro and not a build script: the output of a build script applies to the whole
//! package, so that each commit would build all of midhopd again. The macro affects only the file
//! that calls it. It runs no git, reads no clock, and two builds of one commit have the same
//! version.
#![expect(
    clippy::disallowed_methods,
    reason = "it runs in the compiler, and reads the repository's own files"
)]

use proc_macro::TokenStream;
use std::fs;
use std::path::{Path, PathBuf};

/// The displayed digits of a commit.
const DIGITS: usize = 12;

/// The version of the package that is built, as a string, with its commit in brackets: the value of
/// `MIDHOP_COMMIT` during the build, otherwise the commit in the repository's `.git`, otherwise
/// none.
#[proc_macro]
pub fn version(_: TokenStream) -> TokenStream {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    // The crates of the workspace are two levels below its root.
    let root = manifest.ancestors().nth(2).unwrap_or(Path::new("")).to_owned();
    let found = Found::of(&root.join(".git")).unwrap_or_default();
    let named = variable("MIDHOP_COMMIT");
    let commit = if named.is_empty() { found.commit } else { named };
    let version = match commit.as_str() {
        "" => variable("CARGO_PKG_VERSION"),
        commit => format!("{} ({commit})", variable("CARGO_PKG_VERSION")),
    };
    // The compiler builds the caller again when one of these files changes.
    let watched = found
        .watched
        .iter()
        .map(|path| format!("const _: &[u8] = include_bytes!({:?});", path.display().to_string()));
    let watched = watched.collect::<String>();
    let variable = "const _: Option<&str> = option_env!(\"MIDHOP_COMMIT\");";
    format!("{{ {watched} {variable} {version:?} }}").parse().unwrap_or_default()
}

/// A commit, and the files that name it.
#[derive(Debug, Default, PartialEq)]
struct Found {
    commit: String,
    watched: Vec<PathBuf>,
}

impl Found {
    /// The commit that `git`, a repository's `.git`, has checked out. A file of that name contains
    /// the path of a worktree's directory.
    fn of(git: &Path) -> Option<Self> {
        let own = match fs::read_to_string(git) {
            Ok(text) => git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
            Err(_) => git.to_owned(),
        };
        let common = match fs::read_to_string(own.join("commondir")) {
            Ok(text) => own.join(text.trim()),
            Err(_) => own.clone(),
        };
        let head = own.join("HEAD");
        let text = fs::read_to_string(&head).ok()?;
        let mut watched = vec![head];
        let Some(name) = text.strip_prefix("ref:").map(str::trim) else {
            return Some(Self { commit: short(&text)?, watched });
        };
        let loose = common.join(name);
        if let Ok(text) = fs::read_to_string(&loose) {
            watched.push(loose);
            return Some(Self { commit: short(&text)?, watched });
        }
        let packed = common.join("packed-refs");
        let text = fs::read_to_string(&packed).ok()?;
        watched.push(packed);
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name))?;
        Some(Self { commit: short(line)?, watched })
    }
}

/// The first digits of the commit at the beginning of `text`; none where there is no commit.
fn short(text: &str) -> Option<String> {
    let digits = text.trim().get(..DIGITS)?;
    digits.chars().all(|digit| digit.is_ascii_hexdigit()).then(|| digits.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567\n";

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn a_commit_is_found_wherever_a_repository_keeps_it() {
        let place = tempfile::tempdir().expect("a directory");
        let git = place.path().join("repository/.git");
        let found = |git: &Path| Found::of(git).map(|it| (it.commit, it.watched.len()));
        let expected = |files| Some(("0123456789ab".to_owned(), files));
        assert_eq!(found(&git), None, "no repository");
        write(git.join("HEAD"), COMMIT);
        assert_eq!(found(&git), expected(1), "a commit itself");
        write(git.join("HEAD"), "ref: refs/heads/main\n");
        assert_eq!(found(&git), None, "nothing committed");
        write(
            git.join("packed-refs"),
            &format!("# pack-refs\n{} refs/heads/main\n", COMMIT.trim()),
        );
        assert_eq!(found(&git), expected(2), "packed");
        write(git.join("refs/heads/main"), COMMIT);
        assert_eq!(found(&git), expected(2), "loose");
        let tree = git.join("worktrees/other");
        write(tree.join("HEAD"), "ref: refs/heads/main\n");
        write(tree.join("commondir"), "../..\n");
        let other = place.path().join("other/.git");
        write(other.clone(), &format!("gitdir: {}\n", tree.display()));
        assert_eq!(found(&other), expected(2), "a worktree");
        write(git.join("refs/heads/main"), "not a commit\n");
        assert_eq!(found(&git), None);
    }
}
