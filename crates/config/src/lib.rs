//! TOML files read with errors that name file, line, key and the nearest known key.
//!
//! [`read_str`] reads a text as any [`serde::de::DeserializeOwned`] type. For more, a [`Document`]
//! is a tree with the position of each key and value. So an error of a check after reading
//! ([`Document::fault`]) and a value from elsewhere ([`Document::set`]) are reported as precisely
//! as a syntax error.
//!
//! ```
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Link { delay: String }
//!
//! let error = midhop_config::read_str::<Link>("link.toml", "dealy = \"1 ms\"").err().unwrap();
//! assert_eq!((error.line, error.key.as_deref()), (1, Some("dealy")));
//! assert_eq!(error.hint.as_deref(), Some("did you mean `delay`?"));
//! ```
//!
//! Invariant: nothing here opens a file; the caller provides the text, and a name for messages.
//! Invariant: no text makes this crate panic.
//!
//! Decision 0001.

pub mod address;
mod document;
mod error;
mod key_path;
mod read;
pub mod suggest;
mod syntax;
pub mod tree;

pub use document::Document;
pub use error::ConfigError;
pub use key_path::{KeyPath, ParseKeyPathError};

use serde::de::DeserializeOwned;

/// Reads `text` as a `T`. Errors name it `file_name`.
///
/// # Errors
/// When the text is not TOML, or not a `T`: the error has the position and what was expected there.
pub fn read_str<T: DeserializeOwned>(file_name: &str, text: &str) -> Result<T, ConfigError> {
    Document::parse(file_name, text)?.read()
}
