//! The messages of a move, over a stream of a tunnel.

use crate::tunnel::stream::{Stream, StreamError};
use bytes::Bytes;
use midhop_tunnel::http3::Code;
use midhop_tunnel::relocation::copies::Advance;
use midhop_tunnel::relocation::{AnnouncedFlow, FlowOffer, MessageReader, Octet, RelocationError};
use std::collections::VecDeque;
use std::future::poll_fn;

/// Unit: bytes. Put into the stream at a time.
const PIECE: usize = 64 << 10;

/// One end of such a stream.
#[derive(Debug)]
pub struct Exchange {
    stream: Stream,
    reader: MessageReader,
}

/// Why a message was not received.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The stream broke.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The other end violated the protocol.
    #[error(transparent)]
    Message(#[from] RelocationError),
    /// The other end ended its half.
    #[error("the peer has ended the stream")]
    Ended,
    /// More was offered than this end has room for.
    #[error("there is no memory for the offered flows")]
    Full,
}

impl Exchange {
    /// The messages of a stream.
    pub fn of(stream: Stream) -> Self {
        Self { stream, reader: MessageReader::default() }
    }

    /// Waits for the response to the request.
    ///
    /// # Errors
    /// When it is a denial, or the stream breaks.
    pub async fn answer(&mut self) -> Result<(), StreamError> {
        self.stream.input.answer().await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the stream breaks.
    pub async fn send(&mut self, message: Vec<u8>) -> Result<(), StreamError> {
        let mut message = Bytes::from(message);
        while !message.is_empty() {
            let piece = message.split_to(message.len().min(PIECE));
            self.stream.output.enqueue(piece);
            poll_fn(|cx| self.stream.output.poll_flush(cx)).await?;
        }
        self.stream.output.release_turn();
        Ok(())
    }

    /// Waits for message 1.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn announced(&mut self) -> Result<Vec<AnnouncedFlow>, ExchangeError> {
        loop {
            if let Some(flows) = self.reader.announced()? {
                return Ok(flows);
            }
            self.more().await?;
        }
    }

    /// Waits for what comes before the states of `flows` flows. `hold` is as for [`offer`](Self::offer).
    ///
    /// # Errors
    /// When it does not come.
    pub async fn advance(
        &mut self,
        flows: usize,
        hold: &mut impl FnMut(usize) -> bool,
    ) -> Result<Advance, ExchangeError> {
        loop {
            if let Some(advance) = self.reader.advance(flows)? {
                return Ok(advance);
            }
            self.more().await?;
            if !hold(self.reader.held()) {
                return Err(ExchangeError::Full);
            }
        }
    }

    /// Waits for the next flow of message 3. `hold` gets how many bytes of the message have come, and whether there is room
    /// for them is its result.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn offer(
        &mut self,
        hold: &mut impl FnMut(usize) -> bool,
    ) -> Result<Option<FlowOffer>, ExchangeError> {
        loop {
            if let Some(offer) = self.reader.offer()? {
                return Ok(offer);
            }
            self.more().await?;
            if !hold(self.reader.held()) {
                return Err(ExchangeError::Full);
            }
        }
    }

    /// Waits for another message, with a value for each of `count` flows.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn values<T: Octet>(&mut self, count: usize) -> Result<Vec<T>, ExchangeError> {
        loop {
            if let Some(values) = self.reader.values(count)? {
                return Ok(values);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), ExchangeError> {
        let mut pieces = VecDeque::new();
        if !poll_fn(|cx| self.stream.input.poll_pieces(cx, &mut pieces)).await? {
            return Err(ExchangeError::Ended);
        }
        pieces.iter().for_each(|piece| self.reader.put(piece));
        Ok(())
    }

    /// Ends this half, and waits until the other end has all of it.
    ///
    /// # Errors
    /// When the stream breaks.
    pub async fn finish(mut self) -> Result<(), StreamError> {
        self.stream.output.end();
        self.stream.output.stopped().await
    }

    /// Breaks the stream.
    pub fn cancel(mut self) {
        self.stream.output.reset(Code::REQUEST_CANCELLED);
        self.stream.input.stop(Code::REQUEST_CANCELLED);
    }
}
