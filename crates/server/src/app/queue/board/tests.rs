//! Who gets which message, and in which order.

use std::sync::Arc;

use lockd_core::ids::LeaseId;
use lockd_core::message::Place;
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::time::{Now, Span, Tick, UnixMillis};
use tokio::sync::Semaphore;

use super::{ACKED_MAX, BOARDS_MAX, Board, Boards, Candidate, Counts, Seat};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(ms) }
}

fn queued(ms: u64) -> Place {
    Place::Queued(at(ms).plus(Span::ZERO))
}

fn name() -> QueueName {
    QueueName::parse("ns", "jobs").unwrap()
}

fn loaded(known: &[(u128, u64)]) -> (Boards, Arc<Board>) {
    let boards = Boards::new(100);
    let board = boards.get(&name(), at(0));
    board.load(known.iter().map(|(id, ms)| (MessageId(*id), queued(*ms))), at(0));
    (boards, board)
}

fn ids(candidates: &[Candidate]) -> Vec<u128> {
    candidates.iter().map(|candidate| candidate.id.0).collect()
}

/// What was given, taken for good.
fn given(seat: &Seat, now: u64) -> Vec<u128> {
    let given = seat.given(at(now)).unwrap_or_default();
    let ids = ids(&given);
    given.into_iter().for_each(|candidate| candidate.found(Place::InFlight, at(now)));
    ids
}

#[test]
fn messages_come_in_the_order_in_which_they_became_visible() {
    let (_boards, board) = loaded(&[(1, 30), (2, 10), (3, 10), (4, 99)]);
    let taken = board.take(9, at(50));
    assert_eq!(ids(&taken), [2, 3, 1]);
    assert!(board.take(9, at(50)).is_empty(), "each is handed out once");
    drop(taken);
    assert_eq!(ids(&board.take(1, at(50))), [2], "back at its place");
}

#[test]
fn consumers_are_served_in_the_order_in_which_they_wait() {
    let (boards, board) = loaded(&[]);
    let first = boards.sit(&board, 1, at(0)).unwrap();
    let second = boards.sit(&board, 1, at(0)).unwrap();
    boards.follow(&name(), MessageId(1), queued(5), at(5));
    assert!(board.take(1, at(5)).is_empty(), "nobody overtakes");
    assert_eq!(given(&first, 5), [1]);
    assert_eq!(given(&second, 5), []);
    boards.follow(&name(), MessageId(2), queued(6), at(6));
    assert_eq!(given(&second, 6), [2]);
    drop((first, second));
    assert_eq!(boards.waiting(), 0);
}

#[tokio::test]
async fn messages_that_come_together_go_to_one_who_wants_several() {
    let (boards, board) = loaded(&[]);
    let first = boards.sit(&board, 3, at(0)).unwrap();
    let second = boards.sit(&board, 3, at(0)).unwrap();
    for id in 1..=2 {
        boards.follow(&name(), MessageId(id), queued(5), at(5));
    }
    first.called().await;
    assert_eq!(given(&second, 5), [], "the line is kept");
    assert_eq!(given(&first, 5), [1, 2]);
    for id in 3..=6 {
        boards.follow(&name(), MessageId(id), queued(6), at(6));
    }
    drop(first);
    assert_eq!(given(&second, 6), [3, 4, 5], "no more than it wants");
}

#[test]
fn what_was_given_to_one_who_left_goes_to_the_next() {
    let (boards, board) = loaded(&[]);
    let first = boards.sit(&board, 2, at(0)).unwrap();
    let second = boards.sit(&board, 2, at(0)).unwrap();
    boards.follow(&name(), MessageId(1), queued(1), at(1));
    drop(first);
    assert_eq!(given(&second, 1), [1]);
}

#[tokio::test]
async fn the_first_in_line_knows_when_to_look_again() {
    let (boards, board) = loaded(&[(1, 50)]);
    let first = boards.sit(&board, 1, at(0)).unwrap();
    let second = boards.sit(&board, 1, at(0)).unwrap();
    assert_eq!((first.next_due(), second.next_due()), (Some(Tick(50)), None));
    boards.follow(&name(), MessageId(2), queued(20), at(1));
    first.called().await;
    assert_eq!(first.next_due(), Some(Tick(20)));
    drop(first);
    second.called().await;
    assert_eq!(second.next_due(), Some(Tick(20)));
    assert_eq!(given(&second, 20), [2]);
}

#[test]
fn what_happens_during_the_load_is_newer_than_what_it_finds() {
    let boards = Boards::new(1);
    let board = boards.get(&name(), at(0));
    boards.follow(&name(), MessageId(1), Place::Gone, at(1));
    boards.follow(&name(), MessageId(2), Place::InFlight, at(1));
    boards.follow(&name(), MessageId(3), queued(1), at(1));
    board.load([(MessageId(1), queued(0)), (MessageId(2), queued(0))], at(2));
    let counts = Counts { ready: 1, in_flight: 1, ..Counts::default() };
    assert_eq!(board.counts(at(2)), counts);
}

/// Messages that came and went between two looks.
#[test]
fn messages_that_become_due_are_counted_on() {
    let (boards, board) = loaded(&[(1, 0), (2, 50), (3, 60)]);
    let ready = |ms| (board.counts(at(ms)).ready, board.counts(at(ms)).delayed);
    assert_eq!(ready(10), (1, 2));
    boards.follow(&name(), MessageId(4), queued(5), at(11));
    boards.follow(&name(), MessageId(5), queued(70), at(11));
    assert_eq!(ready(11), (2, 3));
    assert_eq!(ready(55), (3, 2));
    boards.follow(&name(), MessageId(2), Place::Gone, at(56));
    boards.follow(&name(), MessageId(3), Place::InFlight, at(56));
    assert_eq!(ready(100), (3, 0));
    let taken = board.take(3, at(100));
    assert_eq!(ready(100), (0, 0));
    drop(taken);
    assert_eq!(ready(101), (3, 0));
    assert_eq!(board.oldest_ready(at(101)), Span(101));
    board.load([(MessageId(9), queued(200))], at(150));
    assert_eq!((ready(150), board.oldest_ready(at(150))), ((0, 1), Span::ZERO));
}

#[test]
fn messages_are_counted_where_they_stand() {
    let (boards, board) = loaded(&[(1, 0), (2, 50)]);
    boards.follow(&name(), MessageId(3), Place::InFlight, at(1));
    boards.follow(&name(), MessageId(4), Place::Dead(UnixMillis(1)), at(1));
    let counts = Counts { ready: 1, delayed: 1, in_flight: 1, dead: 1, ..Counts::default() };
    assert_eq!(board.counts(at(10)), counts);
    let taken = board.take(1, at(10));
    let on_its_way = Counts { ready: 0, in_flight: 2, ..counts };
    assert_eq!(board.counts(at(10)), on_its_way);
    drop(taken);
    assert_eq!(board.counts(at(10)), counts);
    for id in 1..=4 {
        boards.follow(&name(), MessageId(id), Place::Gone, at(1));
    }
    assert_eq!(board.counts(at(99)), Counts::default());
}

#[test]
fn a_message_that_comes_back_gives_back_its_permit_once() {
    let (boards, board) = loaded(&[]);
    let permits = Arc::new(Semaphore::new(0));
    boards.follow(&name(), MessageId(1), Place::InFlight, at(1));
    board.lend(MessageId(1), &permits);
    boards.follow(&name(), MessageId(1), Place::InFlight, at(2));
    assert_eq!(permits.available_permits(), 0, "an extension is no end");
    boards.follow(&name(), MessageId(1), queued(3), at(3));
    boards.follow(&name(), MessageId(1), Place::InFlight, at(4));
    boards.follow(&name(), MessageId(1), Place::Gone, at(5));
    assert_eq!(permits.available_permits(), 1);
    board.lend(MessageId(1), &permits);
    assert_eq!(permits.available_permits(), 2, "it was over before");
}

#[test]
fn a_candidate_whose_record_says_otherwise_is_not_offered_again() {
    let (_boards, board) = loaded(&[(1, 0), (2, 0), (3, 0)]);
    let mut taken = board.take(3, at(1)).into_iter();
    taken.next().unwrap().found(Place::InFlight, at(1));
    taken.next().unwrap().found(Place::Gone, at(1));
    taken.next().unwrap().found(queued(40), at(1));
    assert!(board.take(3, at(39)).is_empty());
    assert_eq!(ids(&board.take(3, at(40))), [3]);
}

#[test]
fn lines_are_bounded_and_idle_queues_forgotten() {
    let boards = Boards::new(1);
    let board = boards.get(&name(), at(0));
    board.load([], at(0));
    let seat = boards.sit(&board, 1, at(0)).unwrap();
    assert!(boards.sit(&board, 1, at(0)).is_err());
    boards.forget_idle(at(9_000_000));
    assert_eq!(boards.boards.lock().len(), 1, "somebody is there");
    drop((seat, board));
    boards.forget_idle(at(1));
    assert_eq!(boards.boards.lock().len(), 1);
    boards.forget_idle(at(9_000_000));
    assert_eq!(boards.boards.lock().len(), 0);
}

#[test]
fn asking_for_ever_new_queues_does_not_fill_the_memory() {
    let boards = Boards::new(1);
    let used = boards.get(&name(), at(0));
    for number in 0..BOARDS_MAX + 10 {
        boards.get(&QueueName::parse("ns", &number.to_string()).unwrap(), at(0));
    }
    assert!(boards.boards.lock().len() < 20);
    assert!(Arc::ptr_eq(&boards.get(&name(), at(0)), &used));
}

#[test]
fn acknowledgements_are_remembered_for_a_while() {
    let boards = Boards::new(1);
    let lease = |number: usize| LeaseId::new(&number.to_string());
    for number in 0..=ACKED_MAX {
        boards.remember_acked(lease(number));
    }
    assert!(!boards.was_acked(&lease(0)));
    assert!(boards.was_acked(&lease(1)));
    assert!(boards.was_acked(&lease(ACKED_MAX)));
}
