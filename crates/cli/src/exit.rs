//! Exit codes of the client commands, and the errors that carry them. Programs branch on these, so
//! a code never changes its meaning.

use std::fmt;

use lockd_client::{
    AcquireKind, AdminKind, DequeueKind, EnqueueKind, Error, KeepaliveKind, Kind, Lost, ReadKind,
    ReleaseKind, SettleKind, UpdateKind, chain,
};

/// What the help text and the manual say about exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed for another reason than those below
  2    the command line is wrong
  3    auth verify, store check, cluster status, ha status: it was checked, and something is
       wrong
  69   no server could be reached, or it cannot serve right now; trying again may help
  70   it is not known whether the change happened: read before doing it again
  73   the key exists already (--if-not-exists)
  74   queue dequeue: no message came in time
  75   the key is held by another (busy)
  76   the lease is lost: expired, revoked, or the key or the message is with another
  77   not allowed
  79   a condition did not hold: version, etag or fence
  126  run, queue work: the command cannot be executed
  127  run, queue work: the command was not found
  128+n  run: the command was ended by signal n; queue work: signal n came twice";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Failed,
    Usage,
    Wrong,
    Unavailable,
    Unknown,
    Exists,
    Nothing,
    Busy,
    Lost,
    Forbidden,
    Condition,
    CannotExecute,
    NotFound,
}

impl Exit {
    /// What programs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Wrong => "wrong",
            Self::Unavailable => "unavailable",
            Self::Unknown => "outcome_unknown",
            Self::Exists => "exists",
            Self::Nothing => "nothing",
            Self::Busy => "busy",
            Self::Lost => "lost",
            Self::Forbidden => "forbidden",
            Self::Condition => "condition",
            Self::CannotExecute => "cannot_execute",
            Self::NotFound => "not_found",
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Wrong => 3,
            Self::Unavailable => 69,
            Self::Unknown => 70,
            Self::Exists => 73,
            Self::Nothing => 74,
            Self::Busy => 75,
            Self::Lost => 76,
            Self::Forbidden => 77,
            Self::Condition => 79,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
        }
    }
}

/// Why a command failed: a message, what to do next, and the exit code.
#[derive(Debug)]
pub enum Problem {
    /// Nobody reads what we write any more; nothing is wrong.
    ClosedPipe,
    Told {
        exit: Exit,
        message: String,
        hint: Option<String>,
        /// The server's own code, such as `waiting`.
        code: Option<String>,
    },
}

pub type Done<T = ()> = Result<T, Problem>;

impl Problem {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Told { exit, message: message.into(), hint: None, code: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn lost(lost: &Lost) -> Self {
        Self::new(Exit::Lost, lost.to_string())
    }

    /// Says what to do next.
    pub fn hint(mut self, next: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = Some(next.into());
        }
        self
    }

    pub fn exit(&self) -> Option<Exit> {
        match self {
            Self::ClosedPipe => None,
            Self::Told { exit, .. } => Some(*exit),
        }
    }

    /// As programs read it, in one line.
    pub fn json(&self) -> String {
        let Self::Told { exit, message, hint, code } = self else {
            return "{}".to_owned();
        };
        serde_json::json!({
            "error": exit.name(),
            "exit_code": exit.code(),
            "code": code,
            "message": message,
            "hint": hint,
        })
        .to_string()
    }

    fn of<K: Kind>(error: &Error<K>, exit: Exit, hint: Option<&str>) -> Self {
        let mut problem = Self::new(exit, chain(error));
        if let Self::Told { code, .. } = &mut problem {
            *code = error.code().map(str::to_owned);
        }
        // Where something answers, though not as a lockd server on that scheme, the server runs.
        let said = problem.to_string();
        let speaks = [": it speaks TLS: ", ": it does not speak TLS: "];
        let hint = match hint {
            Some(UNREACHABLE) if speaks.iter().any(|words| said.contains(words)) => None,
            None if exit == Exit::Forbidden && error.status().is_none() => Some(FOREIGN),
            hint => hint,
        };
        match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }
}

/// What cannot be told apart by a program: the sentence says it all.
macro_rules! plain_failures {
    ($($error:ty),*) => {$(
        impl From<$error> for Problem {
            fn from(error: $error) -> Self {
                Self::failed(chain(&error))
            }
        }
    )*};
}

plain_failures! { lockd_pki::BundleError, lockd_pki::FileError, lockd_pki::IssueError }

const UNREACHABLE: &str = "is the server running? name it with --server or LOCKD_CLIENT_SERVER";
const FOREIGN: &str =
    "show the bundle of a client of that server's CA: --bundle or LOCKD_CLIENT_BUNDLE";
const LOST: &str = "acquire the key again and read its state before going on";
const READ_FIRST: &str = "read the key before doing it again";
const REREAD: &str = "read the state again, and its version with it";
const NOT_OURS: &str = "somebody else gets the message, or has got it: take the next one";
const SAME_NAME: &str = "enqueue it again with the same --idempotency-key, or look with peek";
const FENCED: &str = "another holder has taken over the fence key: stop";

/// What kinds mean as exit codes, with a hint where there is one.
macro_rules! exits {
    ($($kind:ident { $($variant:ident => $exit:ident $(, $hint:expr)?;)* })*) => {$(
        impl From<Error<$kind>> for Problem {
            fn from(error: Error<$kind>) -> Self {
                let (exit, hint): (Exit, Option<&str>) = match error.kind() {
                    $($kind::$variant => (Exit::$exit, exits!(@hint $($hint)?)),)*
                    _ => (Exit::Failed, None),
                };
                Self::of(&error, exit, hint)
            }
        }
    )*};
    (@hint) => { None };
    (@hint $hint:expr) => { Some($hint) };
}

exits! {
    AcquireKind {
        Busy => Busy;
        Exists => Exists;
        Lost => Lost, "ask for a longer --ttl";
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
    }
    KeepaliveKind {
        LeaseLost => Lost, LOST;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
    }
    ReleaseKind {
        LeaseLost => Lost, LOST;
        FenceFailed => Condition, FENCED;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown, READ_FIRST;
    }
    UpdateKind {
        LeaseLost => Lost, LOST;
        Conflict => Condition, REREAD;
        FenceFailed => Condition, FENCED;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown, READ_FIRST;
    }
    EnqueueKind {
        FenceFailed => Condition, FENCED;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown, SAME_NAME;
    }
    DequeueKind {
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown, "roll the transaction back: it may hold an unseen message";
    }
    SettleKind {
        LeaseLost => Lost, NOT_OURS;
        FenceFailed => Condition, FENCED;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown, "doing it again does no harm";
    }
    ReadKind {
        LeaseLost => Lost, LOST;
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
    }
    AdminKind {
        Forbidden => Forbidden;
        Unavailable => Unavailable, UNREACHABLE;
        OutcomeUnknown => Unknown;
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedPipe => f.write_str("the output was closed"),
            Self::Told { message, hint: None, .. } => f.write_str(message),
            Self::Told { message, hint: Some(hint), .. } => write!(f, "{message}\n  {hint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: &str = include_str!("../../../docs/cli.md");

    const ALL: [Exit; 13] = [
        Exit::Failed,
        Exit::Usage,
        Exit::Wrong,
        Exit::Unavailable,
        Exit::Unknown,
        Exit::Exists,
        Exit::Nothing,
        Exit::Busy,
        Exit::Lost,
        Exit::Forbidden,
        Exit::Condition,
        Exit::CannotExecute,
        Exit::NotFound,
    ];

    #[test]
    fn every_code_is_documented_and_its_own() {
        let mut seen = Vec::new();
        for exit in ALL {
            let code = exit.code();
            assert!(!seen.contains(&code), "{code} twice");
            seen.push(code);
            let documented =
                EXIT_CODES.lines().any(|line| line.trim_start().starts_with(&format!("{code} ")));
            assert!(documented, "{code} is not in the help");
            assert!(MANUAL.contains(&format!("\n| {code} | ")), "{code} is not in the manual");
        }
    }

    #[test]
    fn busy_and_lost_keep_their_numbers() {
        assert_eq!((Exit::Busy.code(), Exit::Lost.code()), (75, 76));
    }
}
