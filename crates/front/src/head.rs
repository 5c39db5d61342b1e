//! What becomes of headers on their way: those that are about one connection stay on it, and what
//! the front knows about the client and about the node is added.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};
use lockd_serve::Certified;
use lockd_wire::node::{
    CERTIFIED_HEADER, LEADER_EPOCH_HEADER, LEADER_ID_HEADER, NODE_ID_HEADER, ROLE_HEADER, RoleReply,
};

/// Names the node that passed a change on to the leader: it is not passed on again.
pub const FORWARDED_HEADER: &str = "x-lockd-forwarded";

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";
const FORWARDED_HOST: &str = "x-forwarded-host";

/// What only a node says.
const OF_NODE: [&str; 6] = [
    CERTIFIED_HEADER,
    FORWARDED_HEADER,
    LEADER_EPOCH_HEADER,
    LEADER_ID_HEADER,
    NODE_ID_HEADER,
    ROLE_HEADER,
];

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// About the connection, whatever `Connection` says.
const OF_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("http2-settings"),
];
const PROXY: &str = "proxy-";
/// How a connection asks for HTTP/2. A server may go on as if it had not, and this one does.
const CLEAR_HTTP2: &str = "h2c";

/// Whether the connection is to become something other than HTTP.
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let protocols = words(headers, &UPGRADE);
    protocols.into_iter().any(|protocol| !protocol.eq_ignore_ascii_case(CLEAR_HTTP2))
}

/// The head of a request as it goes on to another server.
pub(crate) fn onward(parts: &Parts, ends: bool) -> HeaderMap {
    let mut headers = parts.headers.clone();
    let takes_trailers =
        words(&headers, &TE).iter().any(|word| word.eq_ignore_ascii_case("trailers"));
    strip(&mut headers);
    // The front answers this itself as soon as the controller reads the body.
    headers.remove(EXPECT);
    for name in OF_NODE {
        headers.remove(name);
    }
    if is_certified(parts) {
        headers.insert(CERTIFIED_HEADER, HeaderValue::from_static("1"));
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if !ends && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if parts.version == Version::HTTP_2 {
        join_cookies(&mut headers);
    }
    // What the request line names counts, also where a header says otherwise.
    let named = parts.uri.authority().map(|authority| authority.as_str());
    if let Some(host) = named.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    add_forwarded(&mut headers, parts);
    headers
}

/// Whether whoever asks has shown a certificate: also at the node that passed it on, if one did.
fn is_certified(parts: &Parts) -> bool {
    let is_passed_on = parts.headers.contains_key(FORWARDED_HEADER);
    parts.extensions.get::<Certified>().is_some()
        && (!is_passed_on || parts.headers.contains_key(CERTIFIED_HEADER))
}

/// The head of an answer as it goes back to the client.
pub(crate) fn backward(headers: &mut HeaderMap) {
    strip(headers);
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        // Two lengths are one too many; this one is not the one that holds.
        headers.remove(CONTENT_LENGTH);
    }
    let mut gone: Vec<HeaderName> = words(headers, &CONNECTION)
        .iter()
        .filter_map(|word| HeaderName::from_bytes(word.as_bytes()).ok())
        // How long the body is, and for whom, no connection can take back.
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect();
    gone.extend(OF_CONNECTION);
    gone.extend(headers.keys().filter(|name| name.as_str().starts_with(PROXY)).cloned());
    for name in gone {
        headers.remove(name);
    }
}

/// The words of a list, over all headers of that name.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

/// HTTP/2 sends them in pieces, HTTP/1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Proxies before this one may have said more about the client than can be seen here.
fn add_forwarded(headers: &mut HeaderMap, parts: &Parts) {
    if let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        let before: Vec<&[u8]> =
            headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
        let peer = peer.ip().to_canonical().to_string();
        let mut chain = before.join(&b", "[..]);
        if !chain.is_empty() {
            chain.extend(b", ");
        }
        chain.extend(peer.as_bytes());
        if let Ok(chain) = HeaderValue::from_bytes(&chain) {
            headers.insert(FORWARDED_FOR, chain);
        }
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        let scheme = match parts.extensions.get::<Certified>() {
            Some(Certified) => "https",
            None => "http",
        };
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    if !headers.contains_key(FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(FORWARDED_HOST, host);
    }
}

/// What the node is now, on an answer that leaves.
pub(crate) fn stamp(headers: &mut HeaderMap, role: &RoleReply) {
    let mut set = |name: &'static str, value: Option<HeaderValue>| match value {
        Some(value) => {
            headers.insert(name, value);
        }
        None => {
            headers.remove(name);
        }
    };
    let text = |text: &str| HeaderValue::from_str(text).ok();
    set(NODE_ID_HEADER, text(&role.node_id));
    set(ROLE_HEADER, Some(HeaderValue::from_static(role.role.as_str())));
    set(LEADER_EPOCH_HEADER, role.leader_epoch.map(HeaderValue::from));
    set(LEADER_ID_HEADER, role.leader_id.as_deref().and_then(text));
}

/// Whether an answer to this says how long a body is without having it.
pub(crate) fn is_bodiless(method: &Method, status: http::StatusCode) -> bool {
    *method == Method::HEAD
        || matches!(status, http::StatusCode::NO_CONTENT | http::StatusCode::NOT_MODIFIED)
}

#[cfg(test)]
mod tests {
    use http::Request;
    use lockd_wire::node::Role;

    use super::*;

    fn request(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/a");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn what_is_about_the_connection_stays_on_it() {
        let parts = request(&[
            ("host", "h"),
            ("connection", "close, X-Private"),
            ("connection", "content-length, host"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("proxy-authorization", "x"),
            ("proxy-connection", "x"),
            ("expect", "100-continue"),
            ("x-lockd-forwarded", "n2"),
            ("x-lockd-certified", "1"),
            ("x-role", "LEADER"),
            ("x-leader-epoch", "9"),
            ("x-leader-id", "me"),
            ("x-node-id", "me"),
            ("authorization", "Bearer x"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        let headers = onward(&parts, false);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "accept",
            "authorization",
            "connection",
            "host",
            "te",
            "transfer-encoding",
            "x-forwarded-host",
            "x-forwarded-proto",
        ];
        assert_eq!(names, expected);
        assert_eq!(
            (all(&headers, "te"), all(&headers, "connection")),
            (vec!["trailers"], vec!["te"])
        );
        assert_eq!(all(&headers, "accept"), ["a", "b"]);
    }

    #[test]
    fn the_client_is_added_to_those_before_it() {
        let mut parts =
            request(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")]);
        let peer: SocketAddr = "[::ffff:10.0.0.3]:99".parse().unwrap();
        parts.extensions.insert(ConnectInfo(peer));
        parts.extensions.insert(Certified);
        let headers = onward(&parts, true);
        assert_eq!(all(&headers, "x-forwarded-for"), ["10.0.0.1, 10.0.0.2, 10.0.0.3"]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-lockd-certified"), ["1"]);
        assert!(!headers.contains_key(TRANSFER_ENCODING));

        // Passed on by a node that has a certificate, for somebody who has none.
        parts.headers.insert(FORWARDED_HEADER, HeaderValue::from_static("b"));
        assert!(!onward(&parts, true).contains_key(CERTIFIED_HEADER));
        parts.headers.insert(CERTIFIED_HEADER, HeaderValue::from_static("1"));
        assert!(onward(&parts, true).contains_key(CERTIFIED_HEADER));

        let parts = request(&[("x-forwarded-proto", "https"), ("x-forwarded-host", "far")]);
        let headers = onward(&parts, true);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["far"]);
    }

    #[test]
    fn the_host_is_the_one_in_the_request_line() {
        let mut parts = request(&[("host", "other"), ("cookie", "a=1"), ("cookie", "b=2")]);
        parts.uri = "http://named:81/a".parse().unwrap();
        parts.version = Version::HTTP_2;
        let headers = onward(&parts, true);
        assert_eq!(all(&headers, "host"), ["named:81"]);
        assert_eq!(all(&headers, "cookie"), ["a=1; b=2"]);
    }

    #[test]
    fn only_http2_may_be_asked_for_in_vain() {
        assert!(wants_upgrade(&request(&[("upgrade", "websocket")]).headers));
        assert!(wants_upgrade(&request(&[("upgrade", "h2c, websocket")]).headers));
        assert!(!wants_upgrade(&request(&[("upgrade", "h2c"), ("connection", "upgrade")]).headers));
        assert!(!wants_upgrade(&request(&[]).headers));
    }

    #[test]
    fn what_the_node_is_replaces_what_was_said() {
        let mut headers = request(&[("x-role", "LEADER"), ("x-leader-epoch", "9")]).headers;
        let role = RoleReply { node_id: "n1".into(), ..RoleReply::default() };
        stamp(&mut headers, &role);
        assert_eq!(all(&headers, "x-node-id"), ["n1"]);
        assert_eq!(all(&headers, "x-role"), ["STANDBY"]);
        assert!(!headers.contains_key("x-leader-epoch") && !headers.contains_key("x-leader-id"));
        let (role, leader_id) = (Role::Leader, Some("n1".to_owned()));
        let role = RoleReply { role, leader_epoch: Some(3), leader_id, ..RoleReply::default() };
        stamp(&mut headers, &role);
        assert_eq!(all(&headers, "x-leader-epoch"), ["3"]);
        assert_eq!(all(&headers, "x-leader-id"), ["n1"]);
    }
}
