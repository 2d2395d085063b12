//! The tests and files that `docs/users.md` names exist, so that each remedy can be demonstrated.

/// One sentence for each test like `` `module::test` `` and each file like `` `folder/file.py` ``
/// that the page names and that does not exist, and for each row of a table whose last cell is
/// empty. `files` are the files under version control; `text` returns the text of one.
pub fn faults(page: &str, files: &[String], text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut add = |fault: String| faults.push(format!("docs/users.md: {fault}"));
    for name in page.split('`').skip(1).step_by(2).filter(|name| !name.contains(' ')) {
        if let Some((path, last)) = name.rsplit_once("::") {
            let module = path.rsplit("::").next().unwrap_or(path);
            if !files.iter().any(|file| holds(file, module, last, &text)) {
                add(format!("there is no test {last} in {module}"));
            }
        } else if name.contains('/') && has_extension(name) && !is_made(name) {
            let name = name.trim_end_matches('/');
            if !files.iter().any(|file| file == name) {
                add(format!("there is no file {name}"));
            }
        }
    }
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|')) {
        if row.rsplit('|').next().is_none_or(|shown_by| shown_by.trim().is_empty()) {
            add(format!("nothing shows \"{}\"", row.split('|').nth(1).unwrap_or(row).trim()));
        }
    }
    faults
}

/// Whether a file has the test `last` of `module`: any of its tests where `last` is empty, its unit
/// tests where it is `tests`.
fn holds(file: &str, module: &str, last: &str, text: impl Fn(&str) -> Option<String>) -> bool {
    let Some(stem) = file.strip_suffix(".rs") else { return false };
    if !stem.split('/').any(|part| part == module) {
        return false;
    }
    let holds = |words: &str| text(file).is_some_and(|text| text.contains(words));
    match last {
        "" => holds("#[test]"),
        "tests" => stem.ends_with("/tests") || holds("mod tests {"),
        test => holds(&format!("fn {test}()")),
    }
}

fn has_extension(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|last| last.contains('.'))
}

/// Whether a command generates the file.
fn is_made(name: &str) -> bool {
    ["target/", "results/", "/"].iter().any(|place| name.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let files = ["crates/a/tests/a/live.rs", "crates/a/src/x/tests.rs", "python/tests/t.py"];
        let text = |_: &str| Some("#[test]\nfn here() {}\n".to_owned());
        faults(page, &files.map(str::to_owned), text)
    }

    #[test]
    fn what_is_named_and_gone_is_a_fault() {
        assert!(found("`live::here`, `a::live::`, `x::tests`, `python/tests/t.py`").is_empty());
        assert!(found("`midhop --version`, `make dist`, `target/dist/a.deb`").is_empty());
        assert_eq!(
            found("`live::gone` `dead::here` `live::tests` `python/tests/gone.py`").len(),
            4
        );
    }

    #[test]
    fn a_row_that_nothing_shows_is_a_fault() {
        assert!(found("| 1 | met | remedy | `live::here` |").is_empty());
        assert_eq!(found("| 1 | met | remedy | |").len(), 1);
    }
}
