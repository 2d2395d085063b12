//! Dotted keys: `links.satellite.down.loss`.

use std::{fmt, str::FromStr};

/// The path from the root of a document to one of its values: keys, and indices of arrays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// The root itself.
    pub const ROOT: Self = Self(Vec::new());

    /// The path of these keys; a key is not split at its dots.
    pub fn of<S: Into<String>>(keys: impl IntoIterator<Item = S>) -> Self {
        Self(keys.into_iter().map(Into::into).collect())
    }

    /// The path of `key` below this one.
    #[must_use]
    pub fn join(&self, key: impl Into<String>) -> Self {
        let mut keys = self.0.clone();
        keys.push(key.into());
        Self(keys)
    }

    /// The keys from the root.
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, key) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(".")?;
            }
            let bare = !key.is_empty()
                && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            if bare {
                f.write_str(key)?;
            } else {
                write!(f, "{key:?}")?;
            }
        }
        Ok(())
    }
}

/// A text is not a dotted key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a dotted key such as links.satellite.rate")]
pub struct ParseKeyPathError {
    /// The text as it was written.
    pub text: String,
}

impl FromStr for KeyPath {
    type Err = ParseKeyPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseKeyPathError { text: text.to_owned() };
        let mut keys = Vec::new();
        let mut rest = text.trim();
        loop {
            let quote = rest.chars().next().filter(|&c| c == '"' || c == '\'');
            let (key, after) = match quote {
                Some(quote) => rest[1..].split_once(quote).ok_or_else(refused)?,
                None => {
                    let end = rest.find('.').unwrap_or(rest.len());
                    let (key, after) = rest.split_at(end);
                    (key.trim(), after)
                }
            };
            if key.is_empty() || key.contains(|c: char| c == '"' || c.is_control()) {
                return Err(refused());
            }
            keys.push(key.to_owned());
            rest = match after.trim_start() {
                "" => return Ok(Self(keys)),
                more => more.strip_prefix('.').ok_or_else(refused)?.trim_start(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_dotted_keys() {
        for (text, keys) in [
            ("duration", &["duration"] as &[_]),
            ("links.sat.down.loss", &["links", "sat", "down", "loss"]),
            ("links.\"a.b\".rate", &["links", "a.b", "rate"]),
            ("objects.0", &["objects", "0"]),
        ] {
            let path: KeyPath = text.parse().expect(text);
            assert_eq!(
                (path.keys(), path.to_string().as_str()),
                (&KeyPath::of(keys.iter().copied()).0[..], text)
            );
        }
        for text in ["", ".", "a.", ".a", "a..b", "\"a", "\"a\"b", "\"\".x"] {
            assert!(text.parse::<KeyPath>().is_err(), "{text} was accepted");
        }
    }
}
