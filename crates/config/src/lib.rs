//! TOML files read with errors that name file, line, key and the nearest known key.
