//! Records as tables, plots and a self-contained HTML page.
