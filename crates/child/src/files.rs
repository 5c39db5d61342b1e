//! How many files a process may have open at a time. A daemon with many connections needs more than
//! systems give by default, and programs that it runs may not cope with more.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit};

/// Tells a guard what its program is to have.
pub(crate) const VARIABLE: &str = "LOCKD_GUARD_OPEN_FILES";
/// Where the system names no most, it has one all the same.
const MOST: u64 = 1_048_576;

/// Before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises it to what the system allows. Programs that are started under a [`guard`](crate::guard)
/// have what there was before.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MOST);
    if let Some(now) = limit.current.filter(|now| *now < most)
        && set(most)
    {
        let _first = BEFORE.set(now).is_ok();
    }
}

pub(crate) fn before() -> Option<String> {
    BEFORE.get().map(ToString::to_string)
}

/// In the guard: as it was before in the process that started it.
pub(crate) fn lower(told: Option<&str>) {
    if let Some(before) = told.and_then(|told| told.parse().ok()) {
        let _lowered = set(before);
    }
}

fn set(current: u64) -> bool {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).is_ok()
}
