//! Just enough XML for what object stores say: elements are formatted, and the few that clients
//! send are found by their tags.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use http_body_util::Full;

pub(crate) type Answer = Response<Full<Bytes>>;

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&apos;")
}

pub(crate) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// One element around text.
pub(crate) fn leaf(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>", escape(text))
}

/// The raw insides of every element of this name, in order.
pub(crate) fn inside<'a>(text: &'a str, tag: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    text.split(open.as_str()).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0)).collect()
}

pub(crate) fn document(status: StatusCode, root: &str, content: &str) -> Answer {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <{root} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{content}</{root}>"
    );
    with_type(status, text)
}

/// Errors come without a name space.
pub(crate) fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    let (code, message) = (leaf("Code", code), leaf("Message", message));
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <Error>{code}{message}<RequestId>double</RequestId></Error>"
    );
    with_type(status, text)
}

fn with_type(status: StatusCode, text: String) -> Answer {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml")
        .body(Full::from(text))
        .expect("an answer")
}
