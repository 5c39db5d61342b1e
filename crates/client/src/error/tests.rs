//! Which refusal becomes which kind.

use super::*;

fn refused(status: u16, code: &str, outcome: Option<&str>) -> Failed {
    let body = ErrorBody {
        error: code.to_owned(),
        detail: "words for people".to_owned(),
        current_version: Some(7),
        outcome: outcome.map(str::to_owned),
        ..ErrorBody::default()
    };
    let mut failure = Failure::new(Cause::Refused(Box::new(Refusal {
        status: StatusCode::from_u16(status).unwrap(),
        body,
        retry_after: Some(Duration::from_secs(2)),
        correlation_id: Some("c-1".to_owned()),
    })));
    failure.unknown = outcome == Some("unknown");
    failure
}

#[test]
fn codes_become_kinds_of_the_operation() {
    let acquire = |status, code| Error::<AcquireKind>::from(refused(status, code, None)).kind();
    assert_eq!(acquire(409, "waiting"), AcquireKind::Busy);
    assert_eq!(acquire(409, "already_exists"), AcquireKind::Exists);
    assert_eq!(acquire(400, "missing_owner"), AcquireKind::Invalid);
    assert_eq!(acquire(503, "shutdown_draining"), AcquireKind::Unavailable);
    assert_eq!(acquire(500, "internal_error"), AcquireKind::Other);
    assert_eq!(acquire(403, "namespace_forbidden"), AcquireKind::Forbidden);
    assert_eq!(acquire(502, ""), AcquireKind::Unavailable);

    let update = |status, code| Error::<UpdateKind>::from(refused(status, code, None)).kind();
    assert_eq!(update(403, "lease_expired"), UpdateKind::LeaseLost);
    assert_eq!(update(403, "fencing_mismatch"), UpdateKind::LeaseLost);
    assert_eq!(update(403, "revoked"), UpdateKind::LeaseLost);
    assert_eq!(update(409, "version_conflict"), UpdateKind::Conflict);
    assert_eq!(update(409, "fence_failed"), UpdateKind::FenceFailed);
    assert_eq!(update(413, "document_too_large"), UpdateKind::TooLarge);
}

#[test]
fn an_unknown_outcome_is_its_own_kind_where_it_matters() {
    let failure = || refused(503, "store_unavailable", Some("unknown"));
    assert_eq!(Error::<UpdateKind>::from(failure()).kind(), UpdateKind::OutcomeUnknown);
    assert_eq!(Error::<ReleaseKind>::from(failure()).kind(), ReleaseKind::OutcomeUnknown);
    assert_eq!(Error::<ReadKind>::from(failure()).kind(), ReadKind::Unavailable);
    assert!(Error::<UpdateKind>::from(failure()).outcome_unknown());
    assert!(!Error::<UpdateKind>::from(failure()).retryable());
    assert!(Error::<AcquireKind>::from(failure()).retryable());
}

#[test]
fn an_error_tells_what_the_server_told() {
    let error = Error::<UpdateKind>::from(refused(409, "version_conflict", None));
    assert_eq!(error.code(), Some("version_conflict"));
    assert_eq!(error.status(), Some(409));
    assert_eq!(error.current_version(), Some(7));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(error.correlation_id(), Some("c-1"));
    assert_eq!(
        error.to_string(),
        "the state is not the expected one: words for people (version_conflict)"
    );
}

#[test]
fn the_cause_is_chained_not_repeated() {
    let io = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused by host");
    let failure = Failure::new(Cause::Connect).at(&Arc::from("http://h:1")).because(io);
    let error = Error::<ReadKind>::from(failure);
    assert_eq!(error.to_string(), "no server is available: no connection to http://h:1");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "refused by host");
    assert!(error.retryable());
}

#[test]
fn causes_are_said_once() {
    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no answer")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    assert_eq!(chain(&Outer(std::io::Error::other("refused"))), "no answer: refused");
    assert_eq!(chain(&Outer(std::io::Error::other("no answer"))), "no answer");
}
