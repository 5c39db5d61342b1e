//! Taking in request bodies. The work grows with their bytes, however small the pieces are in which
//! they come; and a body that comes too slowly, or not at all, is given up.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use tokio::time::Instant;

use super::body::{Body, BodyError};
use crate::app::document::Pieces;
use crate::app::{App, Refused};

/// So many pieces go on as they come; the others are joined, so that what follows has no more work
/// with many small pieces than with few large ones.
const PIECES_AS_THEY_COME: usize = 64;
/// Pieces are joined until they have so many bytes together: as many as came before them, within
/// these bounds. What looks at all bytes again with each block then looks at each a few times.
const BLOCK_BYTES_MIN: usize = 16 * 1024;
const BLOCK_BYTES_MAX: usize = 256 * 1024;

/// From then on a body must have come at the least rate, on average.
const GRACE: Duration = Duration::from_secs(30);

/// How slowly a body may come. Only time that is spent waiting for the client counts.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Between two pieces.
    pause_max: Duration,
    /// Bytes a second; zero for any rate.
    rate_min: u64,
}

impl Pace {
    /// How long a body may have taken in all when so many bytes have come.
    fn time_for(self, bytes: u64) -> Duration {
        match bytes.checked_mul(1_000).and_then(|bytes| bytes.checked_div(self.rate_min)) {
            Some(earned_ms) => GRACE.saturating_add(Duration::from_millis(earned_ms)),
            None => Duration::MAX,
        }
    }
}

/// A body on its way in.
pub(super) struct Intake {
    body: Body,
    pace: Pace,
    waited: Duration,
    bytes: u64,
    pieces: usize,
    joined: Joined,
    ended: bool,
}

/// A body as a whole, or not.
pub(super) enum Whole {
    Bytes(Bytes),
    /// With what is left of it.
    TooLarge(Body),
}

impl Intake {
    pub(super) fn new(app: &App, body: Body) -> Self {
        let limits = &app.limits;
        let pace = Pace { pause_max: limits.body_timeout, rate_min: limits.body_min_rate };
        Self::at(pace, body)
    }

    fn at(pace: Pace, body: Body) -> Self {
        let (waited, joined) = (Duration::ZERO, Joined::default());
        Self { body, pace, waited, bytes: 0, pieces: 0, joined, ended: false }
    }

    /// The next piece as it comes.
    async fn piece(&mut self) -> Result<Option<Bytes>, Refused> {
        if self.ended {
            return Ok(None);
        }
        // Most pieces are there already and need no timer.
        if let Some(piece) = self.body.piece().now_or_never() {
            return self.counted(piece);
        }
        let left = self.pace.time_for(self.bytes).saturating_sub(self.waited);
        let start = Instant::now();
        let piece = tokio::time::timeout(left.min(self.pace.pause_max), self.body.piece()).await;
        self.waited += start.elapsed();
        match piece {
            Ok(piece) => self.counted(piece),
            Err(_) if left < self.pace.pause_max => Err(Refused::BodySlow(self.pace.rate_min)),
            Err(_) => Err(Refused::BodyTimeout(self.pace.pause_max)),
        }
    }

    fn counted(
        &mut self,
        piece: Option<Result<Bytes, BodyError>>,
    ) -> Result<Option<Bytes>, Refused> {
        let Some(piece) = piece else {
            self.ended = true;
            return Ok(None);
        };
        let piece = piece.map_err(|error| Refused::BodyBroken(error.to_string()))?;
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        self.pieces += 1;
        Ok(Some(piece))
    }

    /// The next piece, or many small ones in one. What was joined stays here if the caller goes
    /// away in the middle.
    async fn block(&mut self) -> Result<Option<Bytes>, Refused> {
        while let Some(piece) = self.piece().await? {
            let as_it_comes = self.pieces <= PIECES_AS_THEY_COME || piece.len() >= BLOCK_BYTES_MIN;
            self.joined.push(piece);
            let block = self.joined.len();
            let before = usize::try_from(self.bytes).unwrap_or(usize::MAX).saturating_sub(block);
            if as_it_comes || block >= before.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX) {
                return Ok(Some(self.joined.take()));
            }
        }
        Ok(Some(self.joined.take()).filter(|rest| !rest.is_empty()))
    }

    /// The body as it streams.
    pub(super) fn into_pieces(self) -> Pieces {
        Box::pin(stream::try_unfold(self, |mut intake| async move {
            Ok(intake.block().await?.map(|block| (block, intake)))
        }))
    }

    /// The whole body, if it has at most so many bytes.
    pub(super) async fn whole(mut self, bytes_max: usize) -> Result<Whole, Refused> {
        while let Some(piece) = self.piece().await? {
            if self.joined.len() + piece.len() > bytes_max {
                return Ok(Whole::TooLarge(self.body));
            }
            self.joined.push(piece);
        }
        Ok(Whole::Bytes(self.joined.take()))
    }
}

/// Pieces made one. A single one is taken as it is; of several each byte is copied once, and again
/// as often as a growing buffer moves, which doubles each time.
#[derive(Debug, Default)]
struct Joined {
    first: Bytes,
    /// All of them, once there are several.
    all: Vec<u8>,
}

impl Joined {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&piece);
    }

    fn take(&mut self) -> Bytes {
        if self.all.is_empty() {
            return std::mem::take(&mut self.first);
        }
        Bytes::from(std::mem::take(&mut self.all))
    }
}

#[cfg(test)]
mod tests;
