//! Histories that were written down wrong, for what no server could be made to do.

use lockd_sim::answer::Answer;
use lockd_sim::call::Ask;
use lockd_sim::history::{History, Told};

/// The second grant of a key gets the token of the first.
pub(crate) fn repeat_token(history: &mut History) {
    let mut first: Option<(String, u64)> = None;
    for op in &mut history.ops {
        let (Ask::Acquire(ask), Some((_, Answer::Granted { held, .. }))) = (&op.ask, &mut op.heard)
        else {
            continue;
        };
        match &first {
            None => first = Some((ask.key.clone(), held.token)),
            Some((key, token)) if *key == ask.key => {
                held.token = *token;
                return;
            }
            Some(_) => {}
        }
    }
}

/// Some write was answered with one version too many.
pub(crate) fn skip_version(history: &mut History) {
    for op in &mut history.ops {
        if let Some((_, Answer::Written { version, .. })) = &mut op.heard {
            *version += 1;
            return;
        }
    }
}

/// The last document that was read becomes an earlier one.
pub(crate) fn swap_document(history: &mut History) {
    let mut texts = history.ops.iter().filter_map(|op| match op.answer() {
        Some(Answer::Document(Some(document))) => Some(document.text.clone()),
        _ => None,
    });
    let Some(first) = texts.next() else { return };
    for op in history.ops.iter_mut().rev() {
        if let Some((_, Answer::Document(Some(document)))) = &mut op.heard {
            document.text = first;
            return;
        }
    }
}

/// A watcher misses a change.
pub(crate) fn lose_event(history: &mut History) {
    for watch in &mut history.watches {
        let new = |told: &Told| matches!(told, Told::State { snapshot: false, .. });
        if let Some(place) = watch.told.iter().position(|(_, told)| new(told)) {
            watch.told.remove(place);
            return;
        }
    }
}

/// Every release was sent only at the very end, while others had long been granted the key.
pub(crate) fn late_release(history: &mut History) {
    let Some(end) = history.ops.last().map(|op| op.sent) else { return };
    history.ops.retain(|op| !matches!(&op.ask, Ask::Release(release) if release.held.token == 1));
    for op in &mut history.ops {
        if let (Ask::Acquire(_), Some((_, Answer::Granted { ttl_ms, held, .. }))) =
            (&op.ask, &mut op.heard)
            && held.token == 1
        {
            *ttl_ms = end.at / 1_000 + 1;
        }
    }
}
