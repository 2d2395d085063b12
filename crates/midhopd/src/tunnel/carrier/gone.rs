//! A half of a stream of a process that is gone: every call reports that the carrier is lost.

use crate::tunnel::stream::StreamError;
use bytes::Bytes;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::http3::{Code, Field};
use std::io;
use std::task::{Context, Poll};

/// Either half.
#[derive(Debug, Clone, Copy)]
pub struct Gone;

impl Gone {
    pub(super) fn join(self, _: &ClassPlan) {}

    pub(super) fn enqueue_fields(self, _: &[Field]) -> Result<(), StreamError> {
        Err(lost())
    }

    pub(super) fn enqueue(self, _: &[u8], _: Bytes) {}

    pub(super) fn release_turn(self) {}

    pub(super) fn waiting(self) -> usize {
        0
    }

    pub(super) fn poll_flush(self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Err(lost()))
    }

    pub(super) fn end(self) {}

    pub(super) fn reset(self, _: Code) {}

    pub(super) fn cut(self) {}

    pub(super) fn poll_stopped(self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Err(lost()))
    }

    pub(super) fn poll_fields(self, _: &mut Context<'_>) -> Poll<Result<Vec<Field>, StreamError>> {
        Poll::Ready(Err(lost()))
    }

    pub(super) fn poll_data(self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        Poll::Ready(Err(lost()))
    }

    pub(super) fn held(self) -> usize {
        0
    }

    pub(super) fn poll_reset(self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Ready(lost())
    }

    pub(super) fn stop(self, _: Code) {}
}

fn lost() -> StreamError {
    StreamError::Lost(io::ErrorKind::NotConnected.into())
}
