//! The data that the script of a page draws.

use serde_json::Value;

/// The data of `page`.
pub fn drawn(page: &str) -> Value {
    let data = page.split("id=\"figures\">").nth(1).and_then(|it| it.split("</script>").next());
    serde_json::from_str(data.expect("data")).expect("JSON")
}
