//! The flows whose clients are connected: a SYN between the same ends opens no second flow.
//!
//! A SYN may arrive after its flow has begun, if it was sent twice and the first was fast. Or the
//! client has lost its state and opens the connection anew. In both cases the connection answers
//! the SYN (RFC 9293 §3.10.7.4), which the kernel does.
//!
//! Invariant: a flow is recorded here as long as it lives.

use crate::ends::Ends;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by all workers. Ends are counted: a flow that ends late may have been followed by another with the same
/// ends.
#[derive(Debug, Default)]
pub(super) struct Living(Mutex<HashMap<Ends, u32>>);

/// A flow's life; dropping it ends it.
#[derive(Debug)]
pub struct Life {
    all: Arc<Living>,
    ends: Ends,
}

impl Living {
    /// Records that a flow begins.
    pub fn begin(self: &Arc<Self>, ends: Ends) -> Life {
        *self.lock().entry(ends).or_default() += 1;
        Life { all: self.clone(), ends }
    }

    /// Whether there is a flow between these ends.
    pub fn has(&self, ends: &Ends) -> bool {
        self.lock().contains_key(ends)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ends, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(count) = all.get_mut(&self.ends) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.ends);
            }
        }
        // Frees the memory of many flows that have ended.
        if all.capacity() > 1024 && all.len() < all.capacity() / 8 {
            all.shrink_to_fit();
        }
    }
}
