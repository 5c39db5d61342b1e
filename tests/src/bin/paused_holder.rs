//! A worker that is stopped between deciding to write and writing, as a virtual machine is that
//! stands still, or a process in a long pause of its garbage collector. It holds two keys, stops
//! itself, and when it is woken writes as if no time had passed. What the server answered goes to
//! standard output, a line each.

use std::io::Write as _;
use std::net::SocketAddr;

use lockd_tests::http::Connection;
use lockd_tests::{Ask, Client, Held, Place, Reply};
use lockd_wire::header;
use rustix::process::{Signal, getpid, kill_process};

fn main() {
    let mut args = std::env::args().skip(1);
    let address: SocketAddr = args.next().expect("an address").parse().expect("an address");
    let place = Place::Tcp(address);
    let mut client = Client::new(&place);
    let leader = client.acquire(&Ask::new("leader", "paused").ttl_ms(500));
    let other = client.acquire(&Ask::new("other", "paused").ttl_ms(60_000));
    // One write is under way already: the server has seen its head and half of its body.
    let half = format!("\"{}", "x".repeat(100_000));
    let slow = leader.update(half).query("then", "commit");
    let body = slow.body.clone().unwrap_or_default();
    let mut begun = Connection::open(&place).expect("a connection");
    let head = slow.head(&format!("content-length: {}\r\n", body.len() + 1));
    begun.socket.write_all(&head).and_then(|()| begun.socket.write_all(&body)).expect("sent");
    say(&format!("holding {}", leader.token));

    // It has looked: the lease is there, the write is decided upon. And then ...
    kill_process(getpid(), Signal::STOP).expect("this process stops itself");

    begun.socket.write_all(b"\"").expect("the rest of the body is sent");
    tell("half sent", &begun.reply().expect("an answer"));
    tell("own key", &client.call(&leader.commit(r#"{"by":"paused"}"#)));
    tell("staged", &client.call(&leader.update(r#"{"by":"paused"}"#)));
    tell("release", &client.call(&leader.release()));
    tell("keepalive", &client.call(&leader.keepalive(60_000)));
    tell("other key", &client.call(&fenced(other.commit(r#"{"by":"paused"}"#), &leader)));
    tell("unfenced", &client.call(&other.keepalive(60_000)));
}

/// "Only if I am still the leader."
fn fenced(request: lockd_tests::Request, leader: &Held) -> lockd_tests::Request {
    request
        .header(header::FENCE_KEY, format!("default/{}", leader.key))
        .header(header::FENCE_TOKEN, leader.token)
}

fn tell(what: &str, reply: &Reply) {
    say(&format!("{what}: {} {}", reply.status, reply.code()));
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody listens");
}
