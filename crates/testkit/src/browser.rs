//! Headless Chromium, for tests that look at a page.

/// Options with which it opens one page, and asks nothing of the network for itself.
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
