//! The state of held SYNs that all workers share.

use super::entries::Entries;
use crate::assist::translated::Translated;
use crate::intercept::InterceptError;
use crate::intercept::inject::Injector;
use crate::intercept::marks::Marks;
use crate::survival::awaited::Awaited;
use crate::survival::holder::Succession;
use crate::watchdog::Watchdog;
use midhop_pep::config::Plan;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The flows being opened, and what opening them requires.
#[derive(Debug)]
pub struct Hold {
    /// The flows being opened.
    pub entries: Entries,
    /// The flows that a previous process was opening.
    pub awaited: Awaited,
    /// Checks that flows complete their handshakes.
    pub watchdog: Watchdog,
    /// Bits of the firewall mark.
    pub marks: Marks,
    /// Whether connections are entered into connection tracking.
    pub tracked: Arc<AtomicBool>,
    /// Assisted flows whose addresses are translated.
    pub translated: Translated,
    /// None where nothing is intercepted.
    pub(super) injector: Option<Arc<Injector>>,
    /// Names of the legs that have listeners, in the order of their tags, which begin with 1.
    listeners: Vec<String>,
}

impl Hold {
    /// For a data plane with these legs' listeners.
    pub fn new(plan: &Plan, injector: Option<Injector>, listeners: Vec<String>) -> Self {
        let (entries, watchdog, tracked) =
            (Entries::default(), Watchdog::default(), Arc::default());
        let marks = Marks::new(plan.intercept.mark);
        let injector = injector.map(Arc::new);
        let (translated, awaited) = Default::default();
        Self { entries, awaited, watchdog, marks, tracked, translated, injector, listeners }
    }

    /// The same, with what the previous data plane has left.
    #[must_use]
    pub fn following(self, succession: Option<&Succession>) -> Self {
        match succession {
            Some(succession) => {
                let awaited = Awaited::of(succession, |ends| self.entries.revive(ends));
                Self { awaited, ..self }
            }
            None => self,
        }
    }

    /// The raw sockets; none where nothing is intercepted.
    pub fn raw(&self) -> Option<&Arc<Injector>> {
        self.injector.as_ref()
    }

    /// Opens the raw sockets that a plan needs. None where it intercepts nothing.
    ///
    /// # Errors
    /// When the kernel refuses them.
    pub fn injector(plan: &Plan) -> Result<Option<Injector>, InterceptError> {
        if plan.intercept.interfaces.is_empty() {
            return Ok(None);
        }
        let open = Injector::open(Marks::new(plan.intercept.mark));
        open.map(Some).map_err(|source| InterceptError::Raw { source })
    }

    /// The tag by which an injected SYN selects the listener of a leg. A leg that was added after
    /// the start uses the last listener.
    pub(super) fn tag(&self, leg: &str) -> u16 {
        let own = self.listeners.iter().position(|name| name == leg);
        let index = own.unwrap_or(self.listeners.len().saturating_sub(1));
        u16::try_from(index + 1).unwrap_or(u16::MAX)
    }
}
