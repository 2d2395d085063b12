//! Suggestions for mistyped words.

/// Other common names of words. The first known one of several is used.
const SYNONYMS: [(&str, &[&str]); 17] = [
    ("bandwidth", &["rate"]),
    ("bitrate", &["rate"]),
    ("bw", &["rate"]),
    ("speed", &["rate"]),
    ("latency", &["delay", "rtt"]),
    ("owd", &["delay"]),
    ("ping", &["rtt", "delay"]),
    ("size", &["bytes"]),
    ("length", &["bytes"]),
    ("congestion_control", &["congestion"]),
    ("cc", &["congestion"]),
    ("algorithm", &["congestion"]),
    ("buffer", &["queue"]),
    ("plr", &["loss"]),
    ("loss_rate", &["loss"]),
    ("connections", &["flows"]),
    ("streams", &["flows"]),
];

/// The name among `candidates` of `word`, which is the term of another program or paper.
pub fn synonym<'a, C: AsRef<str> + ?Sized + 'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a C> + Clone,
) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let (_, names) = SYNONYMS.iter().find(|(synonym, _)| *synonym == word)?;
    let named = |name: &&str| {
        candidates.clone().into_iter().map(AsRef::as_ref).find(|candidate| candidate == name)
    };
    names.iter().find_map(named)
}

/// The candidate nearest to `word`, if it is near enough to be a mistyping of it: at most one edit
/// in three letters, ignoring case. The first of several equally near ones.
pub fn nearest<'a, C: AsRef<str> + ?Sized + 'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a C>,
) -> Option<&'a str> {
    let word = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            let candidate = candidate.as_ref();
            (strsim::damerau_levenshtein(&word, &candidate.to_lowercase()), candidate)
        })
        .filter(|&(distance, candidate)| distance <= allowed && distance < candidate.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// A hint for the wrong `word`: the nearest candidate, and all candidates where they are few.
/// `known` is their name in the plural: `known keys`.
pub fn hint<'a, C: AsRef<str> + ?Sized + 'a>(
    word: &str,
    known: &str,
    candidates: impl IntoIterator<Item = &'a C> + Clone,
) -> Option<String> {
    // With a near candidate, a long list is not helpful; without one, it is the only help.
    const LISTED_BESIDE: usize = 13;
    const LISTED_ALONE: usize = 14;
    let all: Vec<&str> = candidates.clone().into_iter().map(AsRef::as_ref).collect();
    let near = synonym(word, candidates.clone()).or_else(|| nearest(word, candidates));
    let near = near.map(|near| format!("did you mean `{near}`?"));
    let most = if near.is_some() { LISTED_BESIDE } else { LISTED_ALONE };
    let list = (all.len() <= most && (near.is_none() || all.len() > 1))
        .then(|| format!("{known}: {}", listed(&all)));
    match (near, list, all.is_empty()) {
        (Some(near), Some(list), _) => Some(format!("{near} ({list})")),
        (Some(only), None, _) => Some(only),
        (None, _, true) => None,
        (None, list, false) => list,
    }
}

/// The words in backquotes, with commas.
pub(crate) fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["between", "rate", "delay", "down", "up"];
        for (word, meant) in [
            ("dealy", Some("delay")),
            ("Delay", Some("delay")),
            ("betwen", Some("between")),
            ("ratte", Some("rate")),
            ("u", Some("up")),
            ("bandwidth", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }

    #[test]
    fn what_others_call_it_is_found() {
        let link = ["between", "rate", "delay", "loss"];
        for (word, meant) in [
            ("bandwidth", Some("rate")),
            ("Latency", Some("delay")),
            ("loss-rate", Some("loss")),
            ("size", None),
            ("rates", None),
        ] {
            assert_eq!(synonym(word, link), meant, "{word}");
        }
        assert_eq!(synonym("latency", ["rtt"]), Some("rtt"));
        let hint = hint("bandwidth", "known keys", ["rate"]);
        assert_eq!(hint.as_deref(), Some("did you mean `rate`?"));
    }

    #[test]
    fn a_hint_lists_a_few_and_not_many() {
        assert_eq!(
            hint("dealy", "known keys", ["rate", "delay"]).as_deref(),
            Some("did you mean `delay`? (known keys: `rate`, `delay`)")
        );
        assert_eq!(hint("zzz", "known keys", ["rate"]).as_deref(), Some("known keys: `rate`"));
        let many: Vec<String> = (0..40).map(|n| format!("key{n:02}")).collect();
        assert_eq!(hint("kez07", "known keys", &many).as_deref(), Some("did you mean `key07`?"));
        assert_eq!(hint("zzz", "known keys", &many), None);
        assert_eq!(hint("zzz", "known keys", [""; 0]), None);
    }
}
