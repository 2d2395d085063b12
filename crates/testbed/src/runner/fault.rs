//! Errors of the runner, with the action that the host refused.

use crate::runner::RunError;
use std::io;

pub(super) fn io_error(action: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let action = action.into();
    move |source| RunError::Io { action, source }
}
