//! Bodies of requests: bounded in size and time, and JSON.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;
use lockd_wire::error::ErrorCode;
use lockd_wire::job::JobSpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use super::answer::{Refused, too_large, too_slow, wrong};

/// The largest body of a job and of everything else but a result. A result may have as much output
/// as is kept, all of it escaped.
pub(super) const BODY_MAX: usize = 5 * 1024 * 1024 / 2;
pub(super) const RESULT_MAX: usize = 6 * crate::job::OUTPUT_MAX + 1024 * 1024;
/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is read of a body that nobody wants, and for how long: whoever is still sending when its
/// connection is closed loses the answer.
const UNWANTED_MAX: usize = 64 * 1024 * 1024;
const UNWANTED_PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn read<T: DeserializeOwned>(body: Body, most: usize) -> Result<T, Refused> {
    let bytes = tokio::time::timeout(PATIENCE, all(body, most)).await.map_err(|_| too_slow())??;
    serde_json::from_slice(&bytes)
        .map_err(|error| wrong(ErrorCode::InvalidBody, &error.to_string()))
}

async fn all(body: Body, most: usize) -> Result<Vec<u8>, Refused> {
    let (mut pieces, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| wrong(ErrorCode::InvalidBody, &error.to_string()))?;
        if bytes.len() + piece.len() > most {
            drop(bytes);
            let_go(pieces).await;
            return Err(too_large(most));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Reads on, and keeps nothing.
pub(super) async fn let_go(mut pieces: BodyDataStream) {
    let reading = async {
        let mut left = UNWANTED_MAX;
        while let Some(Ok(piece)) = pieces.next().await {
            let Some(rest) = left.checked_sub(piece.len()) else { return };
            left = rest;
        }
    };
    let _in_time = tokio::time::timeout(UNWANTED_PATIENCE, reading).await.is_ok();
}

/// A job, and the leader it is meant for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Submission {
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    input: Option<Box<RawValue>>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    max_attempts: Option<u32>,
    #[serde(default)]
    timeout_seconds: Option<u64>,
    #[serde(default)]
    deadline_seconds: Option<u64>,
    #[serde(default)]
    leader_epoch: Option<u64>,
}

impl Submission {
    pub(super) fn parts(self) -> (JobSpec, Option<u64>) {
        let spec = JobSpec {
            command: self.command,
            env: self.env,
            input: self.input.unwrap_or_else(|| RawValue::NULL.to_owned()),
            priority: self.priority,
            max_attempts: self.max_attempts.unwrap_or(3),
            timeout_seconds: self.timeout_seconds.unwrap_or(60),
            deadline_seconds: self.deadline_seconds,
        };
        (spec, self.leader_epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left out is as it is where a job is read without the leader it is meant for.
    #[test]
    fn a_submission_is_a_job_with_the_same_defaults() {
        let texts = [
            r#"{"command": ["a"]}"#,
            r#"{"command": ["a"], "input": {"b": [1e999]}, "env": {"A": "b"}, "priority": -3,
                "max_attempts": 9, "timeout_seconds": 8, "deadline_seconds": 7}"#,
        ];
        for text in texts {
            let submission: Submission = serde_json::from_str(text).unwrap();
            let (spec, leader_epoch) = submission.parts();
            assert_eq!(spec, serde_json::from_str::<JobSpec>(text).unwrap());
            assert_eq!(leader_epoch, None);
        }
        assert!(serde_json::from_str::<Submission>(r#"{"command": ["a"], "x": 1}"#).is_err());
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_or_no_json_is_refused() {
        assert!(read::<u64>(Body::from("12"), 2).await.is_ok());
        assert!(read::<u64>(Body::from("123"), 2).await.is_err());
        assert!(read::<u64>(Body::from("1 2"), 9).await.is_err());
    }

    #[tokio::test]
    async fn a_body_that_is_refused_is_read_to_its_end() {
        let taken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&taken);
        let pieces = futures_util::stream::iter(0..100).map(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, std::io::Error>("piece")
        });
        assert!(read::<u64>(Body::from_stream(pieces), 7).await.is_err());
        assert_eq!(taken.load(std::sync::atomic::Ordering::Relaxed), 100);
    }
}
