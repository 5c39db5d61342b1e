//! Two tenants of one server. Nothing that one of them has shows in an answer to the other: no
//! name, no id, and not whether it is there.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use http_body_util::BodyExt as _;
use lockd_pki::Role;
use lockd_wire::path;
use serde_json::{Value, json};

use super::rights::{Needs, TXN, cases};
use super::{Answer, Ask, Who, World, client, in_role};

/// In every name that the other tenant has chosen.
const MARK: &str = "zq7";
/// Namespaces of the other tenant, on both sides of ours, which is `m`.
const THEIRS: [&str; 6] = ["a-zq7", "m-zq7", "m.zq7", "m0zq7", "m_zq7", "zq7"];

struct Tenants {
    world: World,
    us: Who,
    them: Who,
    /// What must not be seen by us: the mark, and ids that the server has given them.
    secrets: Vec<String>,
    lease: Value,
    message: String,
}

fn post(path: &str, body: &Value) -> Ask {
    Ask::new("POST", path).json(body)
}

fn acquire(namespace: &str, key: &str) -> Ask {
    let owner = if namespace == "m" { "us" } else { "zq7-owner" };
    let body = json!({"namespace": namespace, "key": key, "owner": owner, "ttl_seconds": 60,
        "block_seconds": -1});
    post(path::ACQUIRE, &body)
}

fn under(lease: &Value, ask: Ask) -> Ask {
    let text = |name: &str| lease[name].as_str().unwrap().to_owned();
    ask.with("x-lease-id", text("lease_id"))
        .with("x-txn-id", text("txn_id"))
        .with("x-fencing-token", lease["fencing_token"].to_string())
}

impl Tenants {
    /// Each of their namespaces has a held key with a document and an attachment, and a queue
    /// with a message.
    async fn new() -> Self {
        let world = World::new().await;
        let claims: Vec<String> = THEIRS.iter().map(|name| format!("{name}=rw")).collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        let (us, them) = (client(&["m=rw"]), client(&claims));
        let secrets = vec![MARK.to_owned()];
        let (lease, message) = (Value::Null, String::new());
        let mut tenants = Self { world, us, them, secrets, lease, message };
        for namespace in THEIRS {
            let lease = tenants.fill(namespace).await;
            for name in ["lease_id", "txn_id"] {
                tenants.secrets.push(lease[name].as_str().unwrap().to_owned());
            }
            tenants.lease = lease;
        }
        let peek = post(path::QUEUE_PEEK, &json!({"namespace": "zq7", "queue": "zq7-q"}));
        let seen = tenants.theirs(&peek).await;
        tenants.message = seen["messages"][0]["message_id"].as_str().unwrap().to_owned();
        tenants.secrets.push(tenants.message.clone());
        tenants
    }

    async fn fill(&self, namespace: &str) -> Value {
        let lease = self.theirs(&acquire(namespace, "zq7-k")).await;
        let about = format!("namespace={namespace}&key=zq7-k");
        let update = Ask::new("POST", format!("{}?{about}&then=commit", path::UPDATE));
        self.theirs(&under(&lease, update.json(&json!({"zq7": "zq7-document"})))).await;
        let attach = Ask::new("POST", format!("{}?{about}&name=zq7-file", path::ATTACHMENTS));
        self.theirs(&under(&lease, attach.json(&json!("zq7-bytes")))).await;
        let meta = json!({"namespace": namespace, "queue": "zq7-q", "attributes": {"zq7": 1}});
        let enqueue = Ask::new("POST", path::QUEUE_ENQUEUE).message(&meta, "zq7-payload");
        self.theirs(&enqueue.with("x-correlation-id", "zq7-correlation")).await;
        lease
    }

    async fn theirs(&self, ask: &Ask) -> Value {
        let answer = self.world.send(&self.them, ask).await;
        assert_eq!(answer.status, StatusCode::OK, "{ask:?}");
        answer.json().await
    }

    async fn ours(&self, ask: &Ask) -> Value {
        let answer = self.world.send(&self.us, ask).await;
        assert_eq!(answer.status, StatusCode::OK, "{ask:?}");
        answer.json().await
    }

    /// Fails if any of the secrets is in the text, or in a part of it that is base64.
    fn assert_clean(&self, text: &str, asked: &dyn std::fmt::Debug) {
        let mut texts = vec![text.to_owned()];
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !"-_+/=".contains(c)) {
            let decoded = URL_SAFE_NO_PAD.decode(word).or_else(|_| STANDARD.decode(word));
            texts.extend(decoded.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        }
        for secret in &self.secrets {
            assert!(!texts.iter().any(|text| text.contains(secret)), "{secret}: {asked:?}: {text}");
        }
    }
}

/// Status, headers and body; streams by what they have at once. What is random in every answer
/// is left out.
async fn whole(answer: Answer) -> String {
    let mut text = format!("{}\n", answer.status);
    for (name, value) in &answer.headers {
        if name != "x-correlation-id" {
            text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    let mut body = answer.body;
    let streams =
        answer.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    while let Some(frame) = body.frame().await {
        let bytes = frame.unwrap().into_data().unwrap_or_default();
        text.push_str(&String::from_utf8_lossy(&bytes));
        if streams && text.contains("\"complete\":true") || text.contains("queue_watch") {
            break;
        }
    }
    let (head, last) = text.trim_end().rsplit_once('\n').unwrap_or_default();
    match serde_json::from_str::<Value>(last) {
        Ok(Value::Object(mut body)) => {
            body.remove("correlation_id");
            format!("{head}\n{}", Value::Object(body))
        }
        Ok(_) | Err(_) => text,
    }
}

/// The entries of all pages of a listing, and how many pages there were.
async fn pages(tenants: &Tenants, who: &Who, target: &str, limit: usize) -> (Vec<String>, usize) {
    let (mut names, mut count, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let ask = Ask::new("GET", format!("{target}limit={limit}{cursor}"));
        let answer = tenants.world.send(who, &ask).await;
        assert_eq!(answer.status, StatusCode::OK, "{ask:?}");
        let text = whole(answer).await;
        tenants.assert_clean(&text, &ask);
        let body: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        for list in ["leases", "keys", "namespaces", "queues"] {
            for one in body[list].as_array().into_iter().flatten() {
                names.push(one.as_str().or(one["key"].as_str()).unwrap().to_owned());
            }
        }
        count += 1;
        match body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (names, count),
        }
        assert!(count < 99, "without end: {ask:?}");
    }
}

#[tokio::test]
async fn listings_and_their_cursors_name_only_what_the_caller_may_read() {
    let tenants = Tenants::new().await;
    for key in ["k1", "k2", "k3"] {
        tenants.ours(&acquire("m", key)).await;
    }
    for queue in ["q1", "q2"] {
        let meta = json!({"namespace": "m", "queue": queue});
        tenants.ours(&Ask::new("POST", path::QUEUE_ENQUEUE).message(&meta, "x")).await;
    }
    let keys = ["k1", "k2", "k3"];
    for limit in [1, 2, 3, 4, 100] {
        let us = &tenants.us;
        let leases = |query: &str| format!("{}?{query}", path::LEASES);
        for prefix in ["", "prefix=m&", "prefix=m/k&", "namespace=m&", "namespace=m&prefix=k&"] {
            let got = pages(&tenants, us, &leases(prefix), limit).await;
            // The last page is known to be the last: nothing more is looked for behind it.
            assert_eq!(
                got,
                (keys.map(str::to_owned).to_vec(), 3_usize.div_ceil(limit)),
                "{prefix}"
            );
        }
        for prefix in ["prefix=a&", "prefix=m-&", "prefix=zq7&", "prefix=zq7/zq7&", "prefix=n&"] {
            let got = pages(&tenants, us, &leases(prefix), limit).await;
            assert_eq!(got, (Vec::new(), 1), "{prefix}");
        }
        let got = pages(&tenants, us, &format!("{}?", path::NAMESPACES), limit).await;
        assert_eq!(got, (vec!["m".to_owned()], 1));
        let got = pages(&tenants, us, &format!("{}?namespace=m&", path::QUEUES), limit).await;
        assert_eq!(got, (vec!["q1".to_owned(), "q2".to_owned()], 2_usize.div_ceil(limit)));
        let got =
            pages(&tenants, us, &format!("{}?namespace=m&prefix=k&", path::KEYS), limit).await;
        assert_eq!(got, (keys.map(str::to_owned).to_vec(), 3_usize.div_ceil(limit)));
    }
}

#[tokio::test]
async fn a_claim_to_write_does_not_list() {
    let tenants = Tenants::new().await;
    tenants.ours(&acquire("m", "k1")).await;
    let named: Vec<String> = THEIRS.iter().map(|name| format!("{name}=w")).collect();
    let claims: Vec<&str> = named.iter().map(String::as_str).chain(["ALL=r"]).collect();
    for limit in [1, 2, 100] {
        let who = client(&claims);
        let got = pages(&tenants, &who, &format!("{}?", path::NAMESPACES), limit).await;
        assert_eq!(got, (vec!["m".to_owned()], 1));
        let got = pages(&tenants, &who, &format!("{}?", path::LEASES), limit).await;
        assert_eq!(got, (vec!["k1".to_owned()], 1));
    }
}

#[tokio::test]
async fn a_cursor_of_one_listing_begins_no_other() {
    let tenants = Tenants::new().await;
    for key in ["k1", "k2"] {
        tenants.ours(&acquire("m", key)).await;
    }
    let first = tenants.ours(&Ask::new("GET", format!("{}?limit=1", path::LEASES))).await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let again = Ask::new("GET", format!("{}?limit=9&cursor={cursor}", path::LEASES));
    assert_eq!(tenants.ours(&again).await["leases"][0]["key"], "k2", "with another limit");
    for target in [
        format!("{}?cursor=zq7/zq7-k", path::LEASES),
        format!("{}?namespace=m&cursor={cursor}", path::LEASES),
        format!("{}?namespace=m&cursor={cursor}", path::KEYS),
        format!("{}?cursor={cursor}", path::NAMESPACES),
        format!("{}?namespace=m&cursor={cursor}", path::QUEUES),
    ] {
        let ask = Ask::new("GET", target);
        let answer = tenants.world.send(&tenants.us, &ask).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{ask:?}");
        assert_eq!(answer.json().await["error"], "invalid_cursor", "{ask:?}");
    }
}

/// The same request about another thing: the namespace, key, queue and ids of `cases` replaced.
fn about(ask: &Ask, [namespace, key, queue, message, lease]: [&str; 5]) -> Ask {
    let change = |text: &str| {
        text.replace("namespace=a", &format!("namespace={namespace}"))
            .replace("\"namespace\":\"a\"", &format!("\"namespace\":\"{namespace}\""))
            .replace("key=k", &format!("key={key}"))
            .replace("\"key\":\"k\"", &format!("\"key\":\"{key}\""))
            .replace("[\"k\"]", &format!("[\"{key}\"]"))
            .replace("queue=q", &format!("queue={queue}"))
            .replace("\"queue\":\"q\"", &format!("\"queue\":\"{queue}\""))
            .replace(&format!("message_id={TXN}"), &format!("message_id={message}"))
            .replace(&format!("\"message_id\":\"{TXN}\""), &format!("\"message_id\":\"{message}\""))
            .replace("\"lease_id\":\"l\"", &format!("\"lease_id\":\"{lease}\""))
    };
    let mut other = ask.clone();
    other.target = change(&ask.target);
    other.body = change(std::str::from_utf8(&ask.body).unwrap()).into_bytes();
    for (name, value) in &mut other.headers {
        if *name == "x-lease-id" {
            *value = lease.to_owned();
        }
    }
    other
}

#[tokio::test]
async fn every_route_answers_a_stranger_alike_whether_a_thing_is_there_or_not() {
    let tenants = Tenants::new().await;
    let lease = tenants.lease["lease_id"].as_str().unwrap();
    let there = ["zq7", "zq7-k", "zq7-q", &tenants.message, lease];
    let absent = ["zq8", "zq8-k", "zq8-q", "01900000-0000-7000-8000-000000000000", "zq8-lease"];
    let mut checked = 0;
    for (needs, ask) in cases() {
        if matches!(needs, Needs::Nothing | Needs::Claims) {
            continue;
        }
        for role in [Role::Sdk("worker".to_owned()), Role::Tc("worker".to_owned())] {
            let who = in_role(&tenants.us, role);
            let mut answers = Vec::new();
            for names in [there, absent] {
                let text = whole(tenants.world.send(&who, &about(&ask, names)).await).await;
                let forms = names.iter().fold(text, |text, name| text.replace(name, "*"));
                answers.push(forms);
            }
            assert_eq!(answers[0], answers[1], "{ask:?}");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

#[tokio::test]
async fn a_lease_of_a_stranger_is_as_unknown_as_none() {
    let tenants = Tenants::new().await;
    let theirs = tenants.lease["lease_id"].as_str().unwrap();
    let fenced = |ask: Ask, key: &str| ask.with("x-fence-key", key).with("x-fence-token", "7");
    for make in [
        (|id: &str| post(path::KEEPALIVE, &json!({"lease_id": id}))) as fn(&str) -> Ask,
        |id| post(path::RELEASE, &json!({"lease_id": id})),
        |id| Ask::new("POST", path::GET_STATE).with("x-lease-id", id),
        |id| Ask::new("POST", path::UPDATE_STATE).with("x-lease-id", id).json(&json!({})),
    ] {
        let mut answers = Vec::new();
        for id in [theirs, "a-lease-never-granted"] {
            let answer = tenants.world.send(&tenants.us, &make(id)).await;
            answers.push(whole(answer).await);
        }
        assert_eq!(answers[0], answers[1]);
        tenants.assert_clean(&answers[0], &make("*"));
    }
    for key in ["zq7/zq7-k", "zq7/zq7-j", "zq8/zq8-k"] {
        let ask = fenced(post(path::RELEASE, &json!({"lease_id": "l"})), key);
        let text = whole(tenants.world.send(&tenants.us, &ask).await).await;
        assert!(text.contains("namespace_forbidden"), "{text}");
        assert!(!text.contains("current_fencing_token"), "{text}");
    }
}

#[tokio::test]
async fn nothing_of_theirs_is_in_any_answer_about_ours() {
    let tenants = Tenants::new().await;
    for (_, ask) in cases() {
        let ask = about(&ask, ["m", "k", "q", TXN, "l"]);
        for role in [Role::Sdk("n".to_owned()), Role::Tc("n".to_owned())] {
            let who = in_role(&tenants.us, role);
            let text = whole(tenants.world.send(&who, &ask).await).await;
            tenants.assert_clean(&text, &ask);
        }
    }
    // Who reads the metrics shows no certificate.
    let page = tenants.world.entry.api.metrics_page();
    let names_queues = |line: &&str| line.starts_with("lockd_queue_");
    let rest: Vec<&str> = page.lines().filter(|line| !names_queues(line)).collect();
    tenants.assert_clean(&rest.join("\n"), &"metrics");
}

#[tokio::test]
async fn a_watch_tells_nothing_of_what_a_stranger_does() {
    let tenants = Tenants::new().await;
    for scope in ["namespace=m", "namespace=m&prefix=k", "namespace=m&key=k-last"] {
        let ask = Ask::new("GET", format!("{}?{scope}", path::WATCH));
        let mut body = tenants.world.send(&tenants.us, &ask).await.body;
        let mut text = String::new();
        while !text.contains("\"complete\":true") {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
        }
        let theirs = tenants.theirs(&acquire("zq7", "k-last")).await;
        let ours = tenants.ours(&acquire("m", "k-last")).await;
        while !text.contains("k-last") {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
        }
        tenants.assert_clean(&text, &ask);
        for (lease, who) in [(theirs, &tenants.them), (ours, &tenants.us)] {
            let release = post(path::RELEASE, &json!({"lease_id": lease["lease_id"]}));
            assert_eq!(tenants.world.send(who, &release).await.status, StatusCode::OK);
        }
    }
}

#[tokio::test]
async fn a_fence_of_another_participant_is_not_named() {
    let tenants = Tenants::new().await;
    let leader = tenants.theirs(&acquire("zq7", "zq7-leader")).await;
    let worker = tenants.theirs(&acquire("zq7", "zq7-work")).await;
    // Both tenants take part in one transaction.
    let txn = worker["txn_id"].as_str().unwrap();
    let mut join = acquire("m", "k");
    join.body = String::from_utf8(join.body)
        .unwrap()
        .replacen('{', &format!("{{\"txn_id\":\"{txn}\","), 1)
        .into_bytes();
    let ours = tenants.ours(&join).await;
    let update = Ask::new("POST", format!("{}?namespace=zq7&key=zq7-work", path::UPDATE));
    let update = under(&worker, update.json(&json!({})))
        .with("x-fence-key", "zq7/zq7-leader")
        .with("x-fence-token", leader["fencing_token"].to_string());
    tenants.theirs(&update).await;
    let revoke = json!({"namespace": "zq7", "key": "zq7-leader", "reason": "over"});
    tenants.theirs(&post(path::LEASES_REVOKE, &revoke)).await;
    let release = post(path::RELEASE, &json!({"lease_id": ours["lease_id"]}));
    let answer = tenants.world.send(&tenants.us, &release).await;
    let (status, text) = (answer.status, whole(answer).await);
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    assert!(text.contains("fence_failed") && !text.contains("current_fencing_token"), "{text}");
    tenants.assert_clean(&text, &release);
}

#[tokio::test]
async fn a_coordinator_decides_no_transaction_beyond_its_claims() {
    let tenants = Tenants::new().await;
    let first = tenants.theirs(&acquire("zq7", "zq7-a")).await;
    let txn = first["txn_id"].as_str().unwrap();
    let mut join = acquire("zq7", "zq7-b");
    join.body = String::from_utf8(join.body)
        .unwrap()
        .replacen('{', &format!("{{\"txn_id\":\"{txn}\","), 1)
        .into_bytes();
    tenants.theirs(&join).await;
    let coordinator = in_role(&tenants.us, Role::Tc("n".to_owned()));
    let body = json!({"txn_id": txn, "state": "rollback",
        "participants": [{"namespace": "m", "key": "k"}]});
    for path in [path::TXN_DECIDE, path::TXN_COMMIT, path::TXN_ROLLBACK, path::TXN_REPLAY] {
        let answer = tenants.world.send(&coordinator, &post(path, &body)).await;
        let text = whole(answer).await;
        assert!(text.contains("namespace_forbidden"), "{path}: {text}");
        assert!(!text.contains(MARK), "{path}: {text}");
    }
    tenants.theirs(&post(path::KEEPALIVE, &json!({"lease_id": first["lease_id"]}))).await;
}
