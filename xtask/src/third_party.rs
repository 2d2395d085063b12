//! The licences of the packages with which a program is linked, each text once: they have to be
//! distributed with the program.

use crate::linked::Linked;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The names of files with a licence or a notice.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// All licences, as the text of a file.
///
/// # Errors
/// When the source of a package cannot be read, or it has no licence text.
pub fn text(program: &Linked) -> anyhow::Result<String> {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut list = String::new();
    for package in program.packages.iter().filter(|package| package.is_third_party()) {
        let Some(expression) = package.expression() else {
            bail!("{} {} says nothing of its licence", package.name, package.version)
        };
        let found = texts_in(package.folder())?;
        let numbers = found.into_iter().map(|text| {
            let next = numbers.len() + 1;
            format!("[{}]", numbers.entry(text).or_insert(next))
        });
        let numbers = numbers.collect::<Vec<_>>().join(" ");
        writeln!(list, "{} {}: {expression} {numbers}", package.name, package.version)?;
    }
    let mut texts: Vec<(usize, String)> =
        numbers.into_iter().map(|(text, at)| (at, text)).collect();
    texts.sort_unstable();
    let mut whole = format!(
        "{} is linked with these libraries. Where a licence leaves a choice, Midhop takes any that is permissive.\n\
         The numbers are those of the texts below; a library without one has none in its package.\n\n{list}",
        program.program.name
    );
    for (number, text) in texts {
        write!(whole, "\n{:-<78}\n[{number}]\n\n{text}", "")?;
    }
    Ok(whole)
}

/// The licence texts in a package's folder, with normalised line ends.
fn texts_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: &Path| -> anyhow::Result<String> {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        Ok(format!("{}\n", text.trim_matches('\n')))
    };
    files.iter().map(|path| read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_a_licence_are_found_by_their_names() {
        let folder =
            std::env::temp_dir().join(format!("midhop-third-party-{}", std::process::id()));
        fs::create_dir_all(folder.join("licenses")).expect("a folder");
        for (name, text) in [("LICENSE-MIT", "\r\nOne\r\n\r\n"), ("NOTICE", "Two"), ("lib.rs", "")]
        {
            fs::write(folder.join(name), text).expect("a file");
        }
        let found = texts_in(&folder);
        fs::remove_dir_all(&folder).expect("its end");
        assert_eq!(found.expect("texts"), ["One\n", "Two\n"]);
    }
}
