//! Every test that `docs/hardening.md` names is there.

/// One sentence for each name like `` `file::test` `` that no test has. `text` gives the text of
/// a file of midhopd's tests by its name.
pub fn faults(page: &str, text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let named = page.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::"));
    let missing = named.filter(|(file, test)| {
        !text(file).is_some_and(|text| text.contains(&format!("fn {test}()")))
    });
    missing
        .map(|(file, test)| format!("docs/hardening.md: there is no test {test} in {file}"))
        .collect()
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
}
