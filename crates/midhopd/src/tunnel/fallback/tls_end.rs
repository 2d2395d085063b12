//! How a TLS stream ends: by `close_notify` (RFC 8446 §6.1) if an end closes it on purpose, and how the peer has
//! ended it.
//!
//! The library for HTTP/2 keeps only the text of an alert. It reports a stream that ended without `close_notify` as one
//! that ended in order if it has nothing to send.

use rustls::AlertDescription;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How a peer ended its TLS stream, and whether this end closes it.
#[derive(Debug, Default)]
pub struct TlsEnd {
    alert: OnceLock<AlertDescription>,
    failed: AtomicBool,
    closes: AtomicBool,
}

impl TlsEnd {
    /// This end closes it on purpose: the peer is informed when the stream is dropped, if it was not before.
    pub fn close(&self) {
        self.closes.store(true, Relaxed);
    }

    /// The alert that ended it, if one did.
    pub fn alert(&self) -> Option<AlertDescription> {
        self.alert.get().copied()
    }

    /// Whether reading failed: the peer has not ended the stream in order.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}

/// A TLS stream that keeps how it ended.
#[derive(Debug)]
pub struct NotedTls<S: AsyncWrite + Unpin> {
    inner: S,
    end: Arc<TlsEnd>,
}

impl<S: AsyncWrite + Unpin> NotedTls<S> {
    /// Keeps it in `end`.
    pub fn new(inner: S, end: Arc<TlsEnd>) -> Self {
        Self { inner, end }
    }

    fn note(&self, error: io::Error) -> io::Error {
        self.end.failed.store(true, Relaxed);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            // Only the first alert is kept.
            let _ = self.end.alert.set(*alert);
        }
        error
    }
}

impl<S: AsyncWrite + Unpin> Drop for NotedTls<S> {
    fn drop(&mut self) {
        if self.end.closes.load(Relaxed) {
            // A client of h2 that still has streams drops its connection without another word. The kernel takes these few
            // bytes, unless its buffer is full.
            let _ =
                Pin::new(&mut self.inner).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for NotedTls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        read.map_err(|error| self.note(error))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NotedTls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
