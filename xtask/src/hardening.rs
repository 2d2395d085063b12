//! Every test that `docs/hardening.md` names exists, and each finding has one that `make test`
//! runs.

/// One sentence for each name like `` `file::test` `` without a test, and for each row of the table
/// whose tests are run only manually. `text` returns the text of a file of midhopd's tests by its
/// name.
pub fn faults(page: &str, text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let missing = named(page).filter(|(file, test)| found(&text, file, test).is_none());
    let mut faults: Vec<String> = missing
        .map(|(file, test)| format!("docs/hardening.md: there is no test {test} in {file}"))
        .collect();
    let runs = |(file, test): (&str, &str)| {
        found(&text, file, test).is_some_and(|attributes| !attributes.contains("#[ignore"))
    };
    let rows = page.lines().filter_map(|line| {
        let number = line.strip_prefix("| ")?.split(' ').next()?;
        number.parse::<u32>().is_ok().then_some((number, line))
    });
    let by_hand = rows.filter(|(_, row)| !named(row).any(runs));
    faults.extend(by_hand.map(|(number, _)| {
        format!("docs/hardening.md: finding {number} is held by no test that make test runs")
    }));
    faults
}

fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::"))
}

/// The attributes of a test, which are the text right before it.
fn found(text: impl Fn(&str) -> Option<String>, file: &str, test: &str) -> Option<String> {
    let text = text(file)?;
    let (before, _) = text.split_once(&format!("fn {test}()"))?;
    before.rsplit("\n\n").next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_a_fault() {
        let text = |file: &str| (file == "routers").then(|| "fn here() {}".to_owned());
        assert!(faults("| 1 | `routers::here`, `ip rule` |", text).is_empty());
        assert_eq!(faults("`routers::gone` and `other::here`", text).len(), 2);
    }

    #[test]
    fn a_finding_that_is_held_by_hand_only_is_a_fault() {
        let text = |_: &str| {
            let tests =
                "#[test]\nfn here() {}\n\n#[test]\n#[ignore = \"takes minutes\"]\nfn long() {}";
            Some(tests.to_owned())
        };
        assert!(faults("| 1 | `a::here`, `a::long` | |\nand `a::long`", text).is_empty());
        assert_eq!(
            faults("| 1 | `a::here` |\n| 2 | `a::long` | |\n| 3 | nothing |", text).len(),
            2
        );
    }
}
