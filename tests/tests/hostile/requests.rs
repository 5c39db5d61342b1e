//! Makes hostile requests: good ones that were spoiled here and there, so that they get as far as
//! they can before somebody notices.

use futures_util::stream;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use lockd_server::Body;
use lockd_tests::{Dice, Held};
use lockd_wire::{header, path};
use serde_json::{Value, json};

/// Paths that this server answers with 503.
pub fn is_coordinators(path: &str) -> bool {
    path.starts_with("/v1/tc/") || path.starts_with("/v1/txn/")
}

/// Paths that this server answers with 501.
pub const SERVER_LACKS: &[&str] = &[path::QUERY, path::INDEX_FLUSH, path::NAMESPACE, path::BACKUP];

const METHODS: &[&str] = &["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW", "CONNECT"];
const NAMES: &[&str] = &[
    "h0",
    "h1",
    "h2",
    "H3",
    "h4/a",
    "h4/b",
    "/h5",
    " h6 ",
    "",
    "/",
    "a//b",
    "..",
    "../..",
    "%00",
    "a b",
    "ä",
    "\u{202e}x",
    "x'; drop",
    "default/h0",
    ".ha",
    "a\nb",
    "\u{0}",
];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "-1",
    "-0",
    "+1",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e3",
    "0x10",
    "٣",
    "",
    " ",
    "NaN",
    "1.5",
    "00000000000000000000000000001",
    "1,1",
];
const TEXTS: &[&str] = &["", " ", "x", "ä", "\u{7f}", "a,b", "\"\"", "true", "false", "null", "1"];
const MUTATIONS: &[&str] = &[
    "/n++",
    "/n--",
    "/n=+7",
    "/n=-7",
    "/a/b/c=1",
    "/a=\"x\"",
    "/a='y'",
    "rm:/a",
    "rm:/*",
    "/*=1",
    "time:/t=NOW",
    "time:/t=1",
    "/x{/a=1,/b=2}",
    "/x{/a{/b{/c=1}}}",
    "/x{",
    "/x}",
    "/**=1",
    "/n",
    "file:/a=/etc/passwd",
    "/a/0=1",
    "/a[0]=1",
    "/...=1",
    "/n=1e308",
    "/n=+1e308",
    "/=1",
    "",
    "/ä=ö",
    "/a=\u{0}",
    "/n=99999999999999999999",
    "rm:/a/b/c/d/e/f",
    "/~0~1=1",
    "//=1",
    "=",
    "{",
];
const HEADERS: &[&str] = &[
    header::FENCING_TOKEN,
    header::LEASE_ID,
    header::TXN_ID,
    header::IF_VERSION,
    header::IF_STATE_ETAG,
    header::EXPECTED_SHA256,
    header::EXPECTED_BYTES,
    header::QUERY_HIDDEN,
    header::CORRELATION_ID,
    header::IDEMPOTENCY_KEY,
    header::FENCE_KEY,
    header::FENCE_TOKEN,
    "last-event-id",
    "content-length",
    "content-type",
    "x-unknown",
    "host",
    "expect",
    "connection",
];
const DOCUMENTS: &[&str] = &[
    "{}",
    "[]",
    "null",
    "0",
    "-0",
    "1e999",
    "\"\"",
    "{\"n\":1}",
    "{\"a\":{\"b\":[1,2,{\"c\":null}]}}",
    "{\"a\":1,\"a\":2}",
    "  [ 1 , 2 ]  ",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "[1,]",
    "{",
    "",
    "tru",
    "123456789012345678901234567890",
    "{\"\":\"\"}",
    "\"\\u0000\"",
];

/// A request that can be shown when it went wrong.
#[derive(Debug)]
pub struct Hostile {
    pub method: String,
    pub path: String,
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<Result<Vec<u8>, String>>,
    /// It may wait for a key or for events, and must then be dropped.
    pub may_wait: bool,
    /// Under whose name it asks for a key, if a grant that is dropped must be given back.
    pub owner: Option<String>,
}

impl Hostile {
    pub fn request(&self) -> Request<Body> {
        let body = match self.body.as_slice() {
            [Ok(whole)] => Body::from(whole.clone()),
            pieces => Body::from_stream(stream::iter(pieces.to_vec())),
        };
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(self.method.as_bytes()).expect("a method");
        *request.uri_mut() = self.uri.clone();
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        request
    }
}

pub struct Generator {
    pub dice: Dice,
    worker: usize,
    made: usize,
}

impl Generator {
    pub fn new(dice: Dice, worker: usize) -> Self {
        Self { dice, worker, made: 0 }
    }

    pub fn next(&mut self, leases: &[Held]) -> Hostile {
        self.made += 1;
        let path = self.path();
        let held =
            (!leases.is_empty() && !self.dice.one_in(5)).then(|| self.dice.pick(leases).clone());
        let method = self.method(&path);
        let owner = format!("hostile-{}-{}", self.worker, self.made);
        let (body, intact) = self.body(&path, held.as_ref(), &owner);
        let headers = self.headers(held.as_ref());
        let stamped = headers.iter().any(|(name, _)| *name == header::IDEMPOTENCY_KEY);
        let owner = (path == path::ACQUIRE && intact && !stamped).then_some(owner);
        let may_wait = path == path::ACQUIRE || path == path::WATCH;
        let uri = self.uri(&path, held.as_ref());
        Hostile { method, path, uri, headers, body, may_wait, owner }
    }

    fn path(&mut self) -> String {
        let dice = &mut self.dice;
        // The description is long and always the same.
        let path = match *dice.pick(path::ALL) {
            path::OPENAPI if !dice.one_in(20) => path::ACQUIRE,
            path::HEALTHZ | path::READYZ | path::NAMESPACES => path::MUTATE,
            other => other,
        };
        match dice.below(40) {
            0 => format!("{path}/"),
            1 => path.to_uppercase(),
            2 => format!("/{}", "a/".repeat(dice.below(200))),
            3 => path
                .get(..dice.below(path.len()))
                .filter(|p| !p.is_empty())
                .unwrap_or("/")
                .to_owned(),
            4 => "*".to_owned(),
            _ => path.to_owned(),
        }
    }

    fn method(&mut self, path: &str) -> String {
        if self.dice.one_in(10) {
            return (*self.dice.pick(METHODS)).to_owned();
        }
        let reads = [
            path::DESCRIBE,
            path::LEASES,
            path::KEYS,
            path::NAMESPACES,
            path::WATCH,
            path::OPENAPI,
        ];
        let reads = reads.contains(&path) || path == path::HEALTHZ || path == path::READYZ;
        if reads { "GET".to_owned() } else { "POST".to_owned() }
    }

    fn uri(&mut self, path: &str, held: Option<&Held>) -> Uri {
        if path == "*" {
            return Uri::from_static("*");
        }
        let mut text = path.to_owned();
        let mut mark = '?';
        let count = if self.dice.one_in(50) { 200 } else { self.dice.below(4) };
        let mut pairs: Vec<(String, String)> = Vec::new();
        if let Some(held) = held.filter(|_| !self.dice.one_in(4)) {
            pairs.push(("key".into(), held.key.clone()));
        }
        for _ in 0..count {
            let names = [
                "key",
                "namespace",
                "public",
                "then",
                "limit",
                "cursor",
                "prefix",
                "lease_id",
                "last_event_id",
                "",
                "ä",
            ];
            let name = (*self.dice.pick(&names)).to_owned();
            let value = match self.dice.below(6) {
                0 => *self.dice.pick(NUMBERS),
                1 => *self.dice.pick(TEXTS),
                2 => *self.dice.pick(&["commit", "release", "1", "yes", "ns1", "default"]),
                _ => *self.dice.pick(NAMES),
            };
            pairs.push((name, value.to_owned()));
        }
        for (name, value) in pairs {
            text.push(mark);
            mark = '&';
            text.push_str(&self.escaped(&name));
            if !self.dice.one_in(30) {
                text.push('=');
            }
            text.push_str(&self.escaped(&value));
        }
        if self.dice.one_in(60) {
            let tails = ["&%", "&%zz", "&=", "&&&", "&key=%ff%fe", "&namespace=%"];
            let tail = *self.dice.pick(&tails);
            text.push_str(tail);
        }
        text.parse().unwrap_or_else(|_| Uri::from_static("/v1/describe"))
    }

    /// Mostly as it should be; what must not stand in a target is always escaped.
    fn escaped(&mut self, text: &str) -> String {
        let raw = self.dice.one_in(4);
        text.bytes().fold(String::new(), |mut out, byte| {
            if byte.is_ascii_alphanumeric() || (raw && b"/.-_+:,".contains(&byte)) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
            out
        })
    }

    fn headers(&mut self, held: Option<&Held>) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers: Vec<(&str, Vec<u8>)> = Vec::new();
        if let Some(held) = held {
            let proof = [
                (header::LEASE_ID, held.lease.clone()),
                (header::TXN_ID, held.txn.clone()),
                (header::FENCING_TOKEN, held.token.to_string()),
            ];
            for (name, value) in proof {
                if !self.dice.one_in(8) {
                    headers.push((name, value.into_bytes()));
                }
            }
        }
        let more = if self.dice.one_in(40) { 60 } else { self.dice.below(3) };
        for _ in 0..more {
            let name = *self.dice.pick(HEADERS);
            let value = self.header_value();
            headers.push((name, value));
        }
        let valid = headers.into_iter().filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(&value).ok()?))
        });
        valid.collect()
    }

    fn header_value(&mut self) -> Vec<u8> {
        let dice = &mut self.dice;
        match dice.below(9) {
            0 => dice.pick(TEXTS).as_bytes().to_vec(),
            1 => {
                let count = dice.below(40);
                dice.bytes(count)
            }
            2 => format!("default/{}", dice.pick(NAMES)).into_bytes(),
            3 if dice.one_in(20) => vec![b'x'; 70_000],
            3 => vec![b'x'; dice.below(2000)],
            4 => vec![b'a'; 64],
            5 => vec![b'0'; 20],
            6 => [dice.pick(NUMBERS).as_bytes(), b",", dice.pick(NUMBERS).as_bytes()].concat(),
            _ => dice.pick(NUMBERS).as_bytes().to_vec(),
        }
    }

    /// The body in pieces, and whether it is still what its path takes.
    fn body(
        &mut self,
        path: &str,
        held: Option<&Held>,
        owner: &str,
    ) -> (Vec<Result<Vec<u8>, String>>, bool) {
        let mut body = match path {
            path::UPDATE | path::UPDATE_STATE => self.document(),
            _ => self.command(path, held, owner).to_string().into_bytes(),
        };
        if !self.dice.one_in(5) {
            return (vec![Ok(body)], true);
        }
        match self.dice.below(9) {
            0 => body.truncate(self.dice.below(body.len() + 1)),
            1 => body.extend_from_slice(b" {}"),
            2 => body = self.dice.bytes(200),
            3 => body = [&b"["[..]; 1000].concat(),
            4 => body = vec![b'{'; 5000],
            5 => body = self.document(),
            6 => {
                for _ in 0..=self.dice.below(4) {
                    let at = self.dice.below(body.len());
                    let byte = self.dice.next() as u8;
                    if let Some(place) = body.get_mut(at) {
                        *place = byte;
                    }
                }
            }
            7 => {
                let cut = self.dice.below(body.len() + 1);
                let rest = body.split_off(cut);
                return (vec![Ok(body), Ok(Vec::new()), Ok(rest)], false);
            }
            _ => return (vec![Ok(body), Err("the line is dead".into())], false),
        }
        (vec![Ok(body)], false)
    }

    fn document(&mut self) -> Vec<u8> {
        let dice = &mut self.dice;
        match dice.below(30) {
            0 => format!("\"{}\"", "x".repeat(dice.below(300_000))).into_bytes(),
            1 => {
                let depth = dice.below(1000);
                ("[".repeat(depth) + &"]".repeat(depth)).into_bytes()
            }
            2 => dice.bytes(100),
            _ => dice.pick(DOCUMENTS).as_bytes().to_vec(),
        }
    }

    fn command(&mut self, path: &str, held: Option<&Held>, owner: &str) -> Value {
        let dice = &mut self.dice;
        let name = |dice: &mut Dice| Value::from(*dice.pick(NAMES));
        let mut body = match path {
            path::MUTATE => {
                let count = dice.below(4);
                let list: Vec<&str> = (0..=count).map(|_| *dice.pick(MUTATIONS)).collect();
                json!({"mutations": list})
            }
            path::KEEPALIVE | path::RELEASE => {
                let key = held.map_or("h0", |held| held.key.as_str());
                let (lease, txn) = held.map_or(("", ""), |held| (&held.lease, &held.txn));
                json!({"key": key, "lease_id": lease, "txn_id": txn})
            }
            path::READ => json!({"keys": [name(dice), name(dice)], "full_names": dice.one_in(2)}),
            path::LEASES_REVOKE => json!({"key": name(dice), "reason": "why not"}),
            path::METADATA => json!({"query_hidden": dice.one_in(2)}),
            _ => {
                let block = *dice.pick(&[-1, -1, -1, 0, 1, 2, -2, i64::MAX, i64::MIN]);
                let ttl = *dice.pick(&[10, 20, 50, 200, 0, 5, 60_000, u64::MAX]);
                let key = *dice.pick(&NAMES[..8]);
                json!({"key": key, "owner": owner, "block_seconds": block, "ttl_ms": ttl})
            }
        };
        if dice.one_in(6) {
            let fields = [
                "key",
                "namespace",
                "ttl_ms",
                "ttl_seconds",
                "block_seconds",
                "if_not_exists",
                "txn_id",
                "rollback",
                "lease_id",
                "mutations",
                "keys",
                "reason",
                "unknown",
            ];
            let values = [
                json!(null),
                json!(true),
                json!(-1),
                json!(i64::MIN),
                json!(u64::MAX),
                json!(1.5e300),
                json!("ns1"),
                json!(""),
                json!([]),
                json!({}),
                name(dice),
                json!(" "),
                json!([null]),
            ];
            let field = *dice.pick(&fields);
            body[field] = dice.pick(&values).clone();
        }
        body
    }
}
