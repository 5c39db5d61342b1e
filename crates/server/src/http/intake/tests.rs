//! Bodies in all cuts, and at all paces.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use proptest::prelude::*;

use super::{BLOCK_BYTES_MIN, Body, GRACE, Intake, Joined, PIECES_AS_THEY_COME, Pace, Whole};
use crate::app::Refused;

const PACE: Pace = Pace { pause_max: Duration::from_secs(30), rate_min: 1_024 };

fn cut(whole: &[u8], sizes: &[usize]) -> Vec<Bytes> {
    let (mut rest, mut pieces) = (whole, Vec::new());
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    pieces
}

fn at_once(pieces: Vec<Bytes>) -> Intake {
    let pieces = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    Intake::at(PACE, Body::from_stream(pieces))
}

/// Bytes that were written to memory to join these pieces, buffers that moved included.
fn work(pieces: Vec<Bytes>) -> u64 {
    let (mut joined, mut moved, mut capacity) = (Joined::default(), 0, 0);
    for piece in pieces {
        let before = joined.all.len();
        joined.push(piece);
        moved += joined.all.len() - before;
        if joined.all.capacity() != capacity {
            capacity = joined.all.capacity();
            moved += before;
        }
    }
    moved as u64
}

proptest! {
    #[test]
    fn a_body_stays_the_same_and_its_blocks_are_few_however_it_is_cut(
        whole in prop::collection::vec(any::<u8>(), 0..100_000),
        sizes in prop::collection::vec(1_usize..400, 1..20),
    ) {
        let pieces = cut(&whole, &sizes);
        prop_assert!(work(pieces.clone()) <= 4 * whole.len() as u64);
        let blocks = at_once(pieces).into_pieces().map(Result::unwrap).collect::<Vec<Bytes>>();
        let blocks = blocks.now_or_never().expect("nothing to wait for");
        prop_assert_eq!(blocks.concat(), whole.clone());
        let most = PIECES_AS_THEY_COME + whole.len() / BLOCK_BYTES_MIN + 1;
        prop_assert!(blocks.len() <= most, "{} blocks, {most} at most", blocks.len());
        // What keeps all bytes and looks at them again with each block.
        let looked_at = blocks.iter().scan(0, |kept, block| {
            *kept += block.len();
            Some(*kept)
        });
        let (looked_at, single) = (looked_at.sum::<usize>(), PIECES_AS_THEY_COME * 400);
        let bound = 4 * whole.len() + PIECES_AS_THEY_COME * single;
        prop_assert!(looked_at <= bound, "{looked_at} bytes looked at, {bound} at most");
    }
}

#[test]
fn a_whole_body_in_one_byte_pieces_is_the_same_body() {
    let text: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let pieces = cut(&text, &[1]);
    assert!(work(pieces.clone()) <= 4 * text.len() as u64);
    let whole = at_once(pieces).whole(text.len()).now_or_never().unwrap().unwrap();
    assert!(matches!(whole, Whole::Bytes(bytes) if bytes == text));
}

#[test]
fn a_body_in_one_piece_is_not_copied() {
    let text = Bytes::from(vec![7; 40_000]);
    let whole = at_once(vec![text.clone()]).whole(40_000).now_or_never().unwrap().unwrap();
    assert!(matches!(whole, Whole::Bytes(bytes) if bytes.as_ptr() == text.as_ptr()));
}

#[test]
fn a_body_over_its_limit_is_handed_back() {
    let whole = at_once(cut(&[0; 100], &[30])).whole(99).now_or_never().unwrap().unwrap();
    assert!(matches!(whole, Whole::TooLarge(_)));
}

/// A client that sends a piece of `size` bytes after each pause, without end.
fn every(pause: Duration, size: usize) -> Body {
    Body::from_stream(stream::unfold((), move |()| async move {
        tokio::time::sleep(pause).await;
        Some((Ok::<_, Infallible>(Bytes::from(vec![b' '; size])), ()))
    }))
}

async fn taken(body: Body, bytes_max: usize) -> (Result<(), Refused>, Duration) {
    let start = tokio::time::Instant::now();
    let whole = Intake::at(PACE, body).whole(bytes_max).await;
    (whole.map(drop), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_given_up_after_the_grace() {
    let (taken, took) = taken(every(Duration::from_secs(1), 1), 1_000_000).await;
    assert!(matches!(taken, Err(Refused::BodySlow(1_024))), "{taken:?}");
    assert!(took >= GRACE && took < GRACE + Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_body_is_bounded_by_its_bytes() {
    // A little below the rate: the grace is used up slowly.
    let (taken, took) = taken(every(Duration::from_secs(1), 1_000), 100_000_000).await;
    assert!(matches!(taken, Err(Refused::BodySlow(1_024))), "{taken:?}");
    let bytes = took.as_secs() * 1_000;
    assert!(took <= GRACE + Duration::from_secs(bytes / 1_024 + 2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_megabytes_over_a_slow_link_come_through() {
    // 16 KiB a second, with a pause of 20 seconds now and then.
    let mut count = 0_u32;
    let body = Body::from_stream(stream::unfold((), move |()| {
        count += 1;
        let pause = if count.is_multiple_of(100) { 20 } else { 1 };
        async move {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(&[0; 16 * 1024])), ()))
        }
    }));
    let start = tokio::time::Instant::now();
    let mut pieces = Intake::at(PACE, body).into_pieces();
    let mut bytes = 0;
    while bytes < 100_000_000 {
        bytes += pieces.next().await.unwrap().unwrap().len();
    }
    assert!(start.elapsed() > Duration::from_secs(6_000));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_is_given_up_however_much_came_before() {
    let some = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![0; 1_000_000]))]);
    let body = Body::from_stream(some.chain(stream::pending()));
    let (taken, took) = taken(body, 2_000_000).await;
    assert!(matches!(taken, Err(Refused::BodyTimeout(pause)) if pause == PACE.pause_max));
    assert!(took < PACE.pause_max + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn time_that_the_server_takes_is_not_the_clients() {
    let quick = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b"x"))).take(100);
    let mut pieces = Intake::at(PACE, Body::from_stream(quick)).into_pieces();
    let mut bytes = 0;
    while let Some(piece) = pieces.next().await {
        bytes += piece.unwrap().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(bytes, 100);
}

#[tokio::test(start_paused = true)]
async fn without_a_least_rate_only_pauses_count() {
    let pace = Pace { rate_min: 0, ..PACE };
    let body = every(Duration::from_secs(20), 1);
    let whole = Intake::at(pace, body).whole(1_000).await.unwrap();
    assert!(matches!(whole, Whole::TooLarge(_)));
}
