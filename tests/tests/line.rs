//! Waiting for a key: who came first is served first, who left is skipped, and a grant that nobody
//! took is handed on at once instead of lasting until its end.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::http::Connection;
use lockd_tests::{Ask, Client, Dice, Held, Options, Request, Server, eventually, within};

/// Far longer than any hand-over may take: a lease of this length never ends in time by itself.
const LONG_MS: u64 = 600_000;
/// "Well before its end", with room for a busy machine.
const SOON: Duration = Duration::from_secs(40);

/// Sends an acquire that waits, and returns when it stands in line as the `place`th.
fn stand(server: &Server, watcher: &mut Client, ask: &Ask, place: u64) -> Connection {
    let mut connection = Connection::open(&server.place).expect("a connection");
    connection.send(&ask.request()).expect("sent");
    eventually("it stands in line", || watcher.waiters("k") == place);
    connection
}

fn waiter(owner: usize) -> Ask {
    Ask::new("k", &format!("waiter-{owner}")).ttl_ms(LONG_MS).block(0)
}

fn granted(connection: &mut Connection) -> Held {
    connection.socket.patience(SOON).expect("a timeout");
    Held::of(&connection.reply().expect("the grant comes soon"))
}

#[test]
fn sixty_four_waiters_are_served_in_the_order_in_which_they_came() {
    let server = Server::usual();
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let mut line: Vec<Connection> = (0..64)
        .map(|place| stand(&server, &mut client, &waiter(place), place as u64 + 1))
        .collect();
    client.release(&first);
    for (place, connection) in line.iter_mut().enumerate() {
        let held = granted(connection);
        assert_eq!(held.token, first.token + 1 + place as u64, "somebody was served out of turn");
        assert_eq!(client.waiters("k"), 63 - place as u64);
        client.release(&held);
    }
    assert_eq!(client.owner("k"), None);
}

#[test]
fn a_waiter_that_disconnects_is_skipped() {
    let server = Server::usual();
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let line: Vec<Connection> = (0..12)
        .map(|place| stand(&server, &mut client, &waiter(place), place as u64 + 1))
        .collect();
    let mut stayed = Vec::new();
    for (place, connection) in line.into_iter().enumerate() {
        match place % 3 {
            0 => drop(connection),
            1 => connection.socket.reset(),
            _ => stayed.push(connection),
        }
    }
    eventually("those who left are out of the line", || client.waiters("k") == 4);
    client.release(&first);
    for (turn, connection) in stayed.iter_mut().enumerate() {
        let held = granted(connection);
        assert_eq!(held.token, first.token + 1 + turn as u64, "a token went to nobody");
        client.release(&held);
    }
}

/// The first in line breaks its connection with `leave` around the moment at which the key
/// becomes free, `times` over; each time the second must get it soon. A lease that did reach the
/// leaver is given back.
fn hand_over_past_a_leaver(
    times: usize,
    mut leave: impl FnMut(Connection, &mut dyn FnMut()) -> Option<Held>,
) {
    let server = Server::usual();
    let mut client = server.client();
    let mut holder = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    for turn in 0..times {
        let leaver = stand(&server, &mut client, &waiter(turn), 1);
        let mut second = stand(&server, &mut client, &waiter(turn), 2);
        if let Some(held) = leave(leaver, &mut || client.release(&holder)) {
            client.release(&held);
        }
        holder = granted(&mut second);
    }
}

#[test]
fn a_grant_to_a_connection_that_was_reset_is_handed_on() {
    // The server may not have noticed yet when it grants: then writing the answer fails.
    hand_over_past_a_leaver(200, |leaver, release| {
        leaver.socket.reset();
        release();
        None
    });
}

#[test]
fn a_grant_to_a_client_that_hung_up_is_handed_on_unless_it_arrived() {
    let mut dice = Dice::announced("hang up");
    let (mut arrived, mut gone) = (0, 0);
    hand_over_past_a_leaver(200, |mut leaver, release| {
        // The client ends its side at some moment around the grant, and looks what still comes.
        // An answer that did come is a lease it holds; any other is not its business, and the
        // next in line must get the key all the same.
        let pause = dice.below(3_000);
        let answer = std::thread::scope(|scope| {
            let leaving = scope.spawn(|| {
                (0..pause).for_each(|_| std::hint::spin_loop());
                leaver.socket.finish_sending().expect("a shutdown");
                leaver.reply().ok().filter(|reply| reply.status == 200)
            });
            release();
            leaving.join().expect("no panic")
        });
        *(if answer.is_some() { &mut arrived } else { &mut gone }) += 1;
        answer.as_ref().map(Held::of)
    });
    println!("{arrived} answers came before the end, {gone} clients were gone before");
}

#[test]
fn a_connection_reset_at_any_moment_costs_at_most_the_time_of_its_lease() {
    // Here the reset races with the answer. What the socket took counts as delivered, so the
    // worst case is one short lease that nobody uses; the line goes on in any case.
    let mut dice = Dice::announced("reset");
    let server = Server::usual();
    let mut client = server.client();
    let mut holder = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    for turn in 0..100 {
        let short = Ask::new("k", "leaver").ttl_ms(300).block(0);
        let leaver = stand(&server, &mut client, &short, 1);
        let mut second = stand(&server, &mut client, &waiter(turn), 2);
        let pause = dice.below(6_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..pause).for_each(|_| std::hint::spin_loop());
                leaver.socket.reset();
            });
            client.release(&holder);
        });
        let next = granted(&mut second);
        assert!(next.token <= holder.token + 2, "a token was spent on nobody");
        holder = next;
    }
}

/// Sends many acquires over one connection and reads no answer, until the socket is full and the
/// server stops in the middle of an answer. A unix socket has a fixed size, so that a few hundred
/// are enough. Returns the key of that last grant, which is in the server and not in the socket.
fn granted_but_stuck(
    server: &Server,
    client: &mut Client,
    ask: impl Fn(&str) -> Ask,
) -> (Connection, String) {
    let key = |number: usize| format!("stuck/{number:04}");
    let mut connection = Connection::open(&server.place).expect("a connection");
    // In one go: the way to the server must not be full before the way back is.
    let asks = (0..600).flat_map(|number| ask(&key(number)).request().bytes());
    connection.socket.write_all(&asks.collect::<Vec<u8>>()).expect("sent");
    let all = Request::get("/v1/leases").query("prefix", "default/stuck").query("limit", "1000");
    let (mut granted, mut same) = (0, 0);
    eventually("the server is stuck", || {
        let leases = client.call(&all).ok().json();
        let now = leases["leases"].as_array().expect("a list").len();
        same = if now > 0 && now == granted { same + 1 } else { 0 };
        granted = now;
        same > 300
    });
    assert!((2..600).contains(&granted), "{granted} of 600 answers fit into the socket");
    (connection, key(granted - 1))
}

fn unix_server(home: &tempfile::TempDir) -> Server {
    let listen = format!("unix://{}", home.path().join("lockd.sock").display());
    // In memory: waiting for a disk would look like being stuck.
    Server::start(Options::in_memory().listen(&listen))
}

#[test]
fn a_grant_whose_answer_the_socket_did_not_take_is_handed_on() {
    let home = tempfile::tempdir().expect("a folder");
    let server = unix_server(&home);
    let mut client = server.client();
    let (connection, key) =
        granted_but_stuck(&server, &mut client, |key| Ask::new(key, "stuck").ttl_ms(LONG_MS));
    let mut second = Connection::open(&server.place).expect("a connection");
    let next = Ask::new(&key, "next").ttl_ms(LONG_MS).block(0);
    second.send(&next.request()).expect("sent");
    eventually("it waits", || client.waiters(&key) == 1);
    // The answer could still be taken: as long as the connection is there, the lease is too.
    assert_eq!(client.owner(&key).as_deref(), Some("stuck"));
    drop(connection);
    assert_eq!(granted(&mut second).token, 2);
    // What the socket had taken counts as delivered.
    assert_eq!(client.owner("stuck/0000").as_deref(), Some("stuck"));
}

#[test]
fn with_an_idempotency_key_an_undelivered_grant_is_kept_for_the_retry() {
    let home = tempfile::tempdir().expect("a folder");
    let server = unix_server(&home);
    let mut client = server.client();
    let ask = |key: &str| Ask::new(key, "stuck").ttl_ms(LONG_MS).block(0).repeatable("once");
    let (connection, key) = granted_but_stuck(&server, &mut client, ask);
    let mut second = Connection::open(&server.place).expect("a connection");
    let next = Ask::new(&key, "next").ttl_ms(LONG_MS).block(0);
    second.send(&next.request()).expect("sent");
    eventually("it waits", || client.waiters(&key) == 1);
    drop(connection);
    let again = Held::of(&Client::new(&server.place).call(&ask(&key).request()));
    assert_eq!(again.token, 1, "the grant was not kept");
    let once_more = client.acquire(&ask(&key));
    assert_eq!((&once_more.lease, once_more.token), (&again.lease, again.token));
    assert_eq!(client.waiters(&key), 1, "the other one waits all the while");
    client.release(&again);
    assert_eq!(granted(&mut second).token, 2);
}

#[test]
fn a_retry_of_a_waiting_acquire_takes_over_its_place() {
    let server = Server::usual();
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let ask = waiter(1).repeatable("mine");
    let mut before = stand(&server, &mut client, &ask, 1);
    let mut other = stand(&server, &mut client, &waiter(2), 2);
    let mut again = Connection::open(&server.place).expect("a connection");
    again.send(&ask.request()).expect("sent");
    before.reply().expect("the former request is answered").refused(409, "waiting");
    assert_eq!(client.waiters("k"), 2, "the retry stands where the first one stood");
    // Another wish under the same idempotency key is no retry, and takes nobody's place.
    let other_wish = waiter(9).repeatable("mine").request();
    client.call(&other_wish).refused(409, "idempotency_key_reused");
    client.release(&first);
    let held = granted(&mut again);
    assert_eq!(held.token, first.token + 1);
    client.release(&held);
    assert_eq!(granted(&mut other).token, first.token + 2);
}

#[test]
fn an_acquire_that_does_not_wait_never_overtakes() {
    let server = Server::usual();
    let mut client = server.client();
    let mut holder = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let line: Vec<Connection> = (0..40)
        .map(|place| stand(&server, &mut client, &waiter(place), place as u64 + 1))
        .collect();
    let (stop, tried) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let pushers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.client();
                    let push = Ask::new("k", "pusher").request();
                    while !stop.load(Ordering::Relaxed) {
                        client.call(&push).refused(409, "waiting");
                        tried.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut line = line.into_iter();
        // The last one stays in line, so that there is somebody to overtake until the end.
        for mut connection in line.by_ref().take(39) {
            client.release(&holder);
            let next = granted(&mut connection);
            assert_eq!(next.token, holder.token + 1, "somebody pushed in");
            holder = next;
        }
        within(SOON, "the pushers tried", || tried.load(Ordering::Relaxed) > 200);
        stop.store(true, Ordering::Relaxed);
        for pusher in pushers {
            pusher.join().expect("a pusher was granted the key");
        }
        client.release(&holder);
        assert_eq!(granted(&mut line.next().expect("the last")).token, holder.token + 1);
    });
}

#[test]
fn a_wait_for_ever_lasts_until_the_client_goes() {
    let server = Server::start(Options::new().flag("acquire-block", "1s"));
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let patient = stand(&server, &mut client, &waiter(1), 1);
    // A wait that the server limits, begun later, is over first.
    let start = Instant::now();
    let limited = client.call(&waiter(2).block(-2).request());
    limited.refused(409, "waiting");
    assert!(start.elapsed() >= Duration::from_millis(990), "it waited {:?}", start.elapsed());
    assert_eq!(client.waiters("k"), 1, "the patient one still waits");
    drop(patient);
    eventually("the line is empty", || client.waiters("k") == 0);
    client.release(&first);
    let next = client.acquire(&Ask::new("k", "next"));
    assert_eq!(next.token, first.token + 1, "the key was granted to one who had gone");
}

#[test]
fn a_bounded_wait_ends_in_time_and_says_when_to_come_back() {
    let server = Server::usual();
    let mut client = server.client();
    client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let start = Instant::now();
    let reply = client.call(&waiter(1).block(1).request());
    reply.refused(409, "waiting");
    let took = start.elapsed();
    assert!((Duration::from_millis(990)..SOON).contains(&took), "{took:?}");
    let after: u64 = reply.header("retry-after").expect("a hint").parse().expect("a number");
    let seconds = LONG_MS / 1_000;
    assert!((seconds - 60..=seconds).contains(&after), "{after}");
    assert_eq!(reply.json()["retry_after_seconds"], after);
}

#[test]
fn a_lease_that_runs_out_goes_to_the_next_in_line() {
    let server = Server::usual();
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(300));
    let mut line: Vec<Connection> = (0..3)
        .map(|place| {
            let ask = Ask::new("k", &format!("w{place}")).ttl_ms(200).block(0);
            let mut connection = Connection::open(&server.place).expect("a connection");
            connection.send(&ask.request()).expect("sent");
            connection
        })
        .collect();
    let mut tokens: Vec<u64> =
        line.iter_mut().map(|connection| granted(connection).token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [first.token + 1, first.token + 2, first.token + 3]);
}

#[test]
fn too_many_waiters_are_sent_away() {
    let server = Server::start(Options::new().flag("max-waiters", 3));
    let mut client = server.client();
    let first = client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let mut line: Vec<Connection> =
        (0..3).map(|place| stand(&server, &mut client, &waiter(place), place as u64 + 1)).collect();
    let reply = client.call(&waiter(9).request());
    reply.refused(503, "too_many_waiters");
    assert!(reply.header("retry-after").is_some());
    // A retry of one who waits needs no further place, and room that was made can be used.
    drop(line.pop());
    eventually("there is room", || client.waiters("k") == 2);
    line.push(stand(&server, &mut client, &waiter(3), 3));
    client.release(&first);
    for connection in &mut line {
        let held = granted(connection);
        client.release(&held);
    }
}
