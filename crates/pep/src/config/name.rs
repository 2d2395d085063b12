//! The name of a congestion control.

use serde::{Deserializer, de};
use std::fmt;

/// Reads a name. A scenario for a simulation may write a table instead; no kernel supports that.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    struct Name;

    impl de::Visitor<'_> for Name {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "a name such as \"hybla-plus\"; a kernel takes only a name, tables are for `midhop sim`",
            )
        }

        fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
            Ok(Some(name.to_owned()))
        }
    }

    from.deserialize_str(Name)
}
