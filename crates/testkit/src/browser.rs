//! Headless Chromium, for tests that inspect a page.

/// Options with which it opens one page and makes no network requests of its own.
pub const BROWSER_OPTIONS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
];
