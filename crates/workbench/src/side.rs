//! The two sides of a comparison, by the places of their records.

use crate::reading::{Gathered, WHERE_RECORDS_ARE};
use midhop_experiment::record::Record;
use midhop_failure::Failure;
use std::path::{Path, PathBuf};

/// One side: a file, or a directory. Where the other side is inside it, as a study's records of the
/// laboratory are inside the directory of those of the simulator, this side is the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Its name.
    pub name: String,
    place: PathBuf,
    but: Option<PathBuf>,
}

impl Side {
    /// The side at `own` of a comparison with `other`.
    pub fn of(own: &Path, other: &Path) -> Self {
        let resolved = |path: &Path| path.canonicalize().ok();
        let inside = resolved(own).zip(resolved(other));
        match inside.filter(|(own, other)| own != other && own.is_dir() && other.starts_with(own)) {
            Some((place, but)) => {
                let name = format!("{} without {}", own.display(), other.display());
                Self { name, place, but: Some(but) }
            }
            None => Self { name: own.display().to_string(), place: own.to_owned(), but: None },
        }
    }

    /// Adds its records.
    ///
    /// # Errors
    /// As [`Gathered::add_place`].
    pub fn gather(&self, into: &mut Gathered) -> Result<(), Failure> {
        into.add_place(&self.place, self.but.as_deref())
    }

    /// The records of `gathered`, as those of this side.
    ///
    /// # Errors
    /// When there is none.
    pub fn records(&self, gathered: Gathered) -> Result<Vec<Record>, Failure> {
        let records = gathered.into_records();
        if !records.is_empty() {
            return Ok(records);
        }
        let message = match &self.but {
            Some(but) => {
                let place = self.place.display();
                format!("no records found in {place} but those of {}", but.display())
            }
            None => "no records found".to_owned(),
        };
        Err(Failure::usage(message).hint(WHERE_RECORDS_ARE))
    }
}
