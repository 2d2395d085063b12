//! How to continue an interrupted command.

use std::path::Path;

/// Prints the command that continues this one. Finished records are in `out`; without it nothing is
/// kept, and a command that would keep them is printed. `flag` is what the command needs in
/// addition to its own arguments to continue.
pub fn report(out: Option<&Path>, flag: Option<&str>) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    eprintln!("{}", command(&arguments, out.is_some(), flag));
}

fn command(arguments: &[String], is_kept: bool, flag: Option<&str>) -> String {
    let mut words = vec!["midhop".to_owned()];
    words.extend(arguments.iter().map(|word| midhop_report::quoted(word)));
    if !is_kept {
        words.push("--out DIR".to_owned());
        return format!(
            "hint: nothing is kept without --out; with it, a call can go on: {}",
            words.join(" ")
        );
    }
    words.extend(flag.filter(|flag| !arguments.iter().any(|it| it == flag)).map(str::to_owned));
    format!("hint: what is finished is kept; to go on: {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_same_with_what_goes_on() {
        let arguments = ["lab", "run", "a b.toml", "--out", "x"].map(str::to_owned);
        let line = command(&arguments, true, Some("--resume"));
        assert!(line.ends_with("to go on: midhop lab run 'a b.toml' --out x --resume"), "{line}");
        let again: Vec<String> = arguments.iter().cloned().chain(["--resume".to_owned()]).collect();
        assert_eq!(line, command(&again, true, Some("--resume")));
        let line = command(&arguments[..2], false, None);
        assert!(line.contains("midhop lab run --out DIR"), "{line}");
    }
}
