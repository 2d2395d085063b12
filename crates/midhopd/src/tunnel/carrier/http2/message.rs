//! Converts header fields to and from h2.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use midhop_tunnel::http3::Field;

/// The request of these fields for h2. None: HTTP/2 cannot express it.
pub fn request_of(fields: &[Field]) -> Option<Request<()>> {
    let of = |name| fields.iter().find(|it| it.name == name).map(|it| it.value.as_ref());
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(of(":method")?.as_bytes()).ok()?;
    *request.uri_mut() = Uri::builder().authority(of(":authority")?).build().ok()?;
    *request.headers_mut() = headers_of(fields)?;
    Some(request)
}

/// The response of these fields.
pub(super) fn response_of(fields: &[Field]) -> Option<Response<()>> {
    let status = fields.iter().find(|it| it.name == ":status")?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_bytes(status.value.as_bytes()).ok()?;
    *response.headers_mut() = headers_of(fields)?;
    Some(response)
}

fn headers_of(fields: &[Field]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for Field { name, value } in fields.iter().filter(|it| !it.name.starts_with(':')) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_str(value).ok()?);
    }
    Some(headers)
}

/// Adds fields whose values are text. Others are never ours.
pub(super) fn with_headers(mut fields: Vec<Field>, headers: &HeaderMap) -> Vec<Field> {
    fields.extend(headers.iter().filter_map(|(name, value)| {
        let value = std::str::from_utf8(value.as_bytes()).ok()?;
        Some(Field::new(name.as_str().to_owned(), value.to_owned()))
    }));
    fields
}
