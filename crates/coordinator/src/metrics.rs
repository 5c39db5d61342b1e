//! Numbers of all instances, added up by the leader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

/// The most numbers that an instance may push, and that are added up.
pub(crate) const NUMBERS_MAX: usize = 512;
/// The longest name of one.
pub(crate) const NAME_MAX: usize = 128;

/// One number over all instances that have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    #[serde(serialize_with = "plainly")]
    pub sum: f64,
    #[serde(serialize_with = "plainly")]
    pub min: f64,
    #[serde(serialize_with = "plainly")]
    pub max: f64,
}

/// What the leader has added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Global {
    /// Of the leader who wrote it.
    pub epoch: u64,
    /// Seconds since 1970.
    pub updated_at: u64,
    /// How many instances it is made of.
    pub instances: usize,
    pub metrics: BTreeMap<String, Total>,
}

/// Numbers of one instance, as it pushes them.
#[must_use]
pub(crate) fn written(numbers: &BTreeMap<String, f64>) -> String {
    let plain: BTreeMap<&String, Plain> =
        numbers.iter().map(|(name, number)| (name, Plain(*number))).collect();
    serde_json::to_string(&plain).unwrap_or_default()
}

/// Adds up what instances have pushed. What is no number is left out.
#[must_use]
pub(crate) fn added_up<'a>(
    pushed: impl Iterator<Item = &'a str>,
) -> (usize, BTreeMap<String, Total>) {
    let mut totals: BTreeMap<String, Total> = BTreeMap::new();
    let mut instances = 0;
    for json in pushed {
        let Ok(numbers) = serde_json::from_str::<BTreeMap<String, serde_json::Value>>(json) else {
            continue;
        };
        instances += 1;
        for (name, value) in numbers.into_iter().take(NUMBERS_MAX) {
            let Some(number) = value.as_f64().filter(|number| number.is_finite()) else { continue };
            if let Some(total) = totals.get_mut(&name) {
                total.sum += number;
                total.min = total.min.min(number);
                total.max = total.max.max(number);
            } else if totals.len() < NUMBERS_MAX && name.len() <= NAME_MAX {
                totals.insert(name, Total { sum: number, min: number, max: number });
            }
        }
    }
    (instances, totals)
}

/// Whole numbers without a point.
struct Plain(f64);

impl Serialize for Plain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        plainly(&self.0, serializer)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
#[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
fn plainly<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_up() {
        let pushed = [r#"{"rps":10,"cpu":0.5}"#, r#"{"rps":-2.0,"zone":"a","cpu":null}"#, "broken"];
        let (instances, totals) = added_up(pushed.into_iter());
        assert_eq!(instances, 2);
        assert_eq!(totals["rps"], Total { sum: 8.0, min: -2.0, max: 10.0 });
        assert_eq!(totals["cpu"], Total { sum: 0.5, min: 0.5, max: 0.5 });
        assert_eq!(totals.len(), 2);
        let json = serde_json::to_string(&totals["rps"]).unwrap();
        assert_eq!(json, r#"{"sum":8,"min":-2,"max":10}"#);
    }

    #[test]
    fn there_is_a_bound() {
        let many: BTreeMap<String, f64> = (0..2_000).map(|n| (format!("m{n}"), 1.0)).collect();
        let json = written(&many);
        let other = written(&BTreeMap::from([("x".repeat(NAME_MAX + 1), 1.5)]));
        let (_, totals) = added_up([json.as_str(), other.as_str()].into_iter());
        assert_eq!(totals.len(), NUMBERS_MAX);
    }
}
