//! What the load is made of: documents that do not compress and differ from each other, and the
//! keys that a connection works on, which no other connection of the same load touches.

use std::io::Write as _;

/// Enough letters that two documents of one storage block hardly ever share a stretch.
const NOISE_BYTES: usize = 1 << 20;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A small generator of random numbers; the same seed gives the same load in every run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64, whose every output bit is good enough to be cut off.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// JSON documents of any size, cut from one stretch of random letters.
#[derive(Debug)]
pub(crate) struct Documents {
    noise: Vec<u8>,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let mut random = Random::new(1);
        let noise = (0..NOISE_BYTES).map(|_| letter(random.next())).collect();
        Self { noise }
    }

    /// Writes document number `seed` of exactly `bytes` bytes (at least 32, at most 1 MiB).
    pub(crate) fn write(&self, seed: u64, bytes: usize, into: &mut Vec<u8>) {
        into.clear();
        // Writing to a vector cannot fail.
        write!(into, "{{\"n\":{},\"pad\":\"", seed % 10_000_000_000 + 10_000_000_000).ok();
        let pad = bytes.saturating_sub(into.len() + 2);
        let room = u64::try_from(NOISE_BYTES.saturating_sub(pad)).unwrap_or(1);
        let start = usize::try_from(Random::new(seed).below(room)).unwrap_or(0);
        into.extend_from_slice(self.noise.get(start..start + pad).unwrap_or_default());
        into.extend_from_slice(b"\"}");
    }

    /// One compact document of about `bytes` bytes, like a table that was exported as JSON.
    pub(crate) fn large(&self, bytes: usize) -> Vec<u8> {
        let mut random = Random::new(2);
        let mut out = Vec::with_capacity(bytes + 512);
        out.extend_from_slice(b"{\"rows\":[");
        for row in 0_u64.. {
            if row > 0 {
                out.push(b',');
            }
            let start = usize::try_from(random.below(1 << 19)).unwrap_or(0);
            let name = self.noise.get(start..start + 24).unwrap_or_default();
            let text = self.noise.get(start + 24..start + 72).unwrap_or_default();
            let (amount, cents) = (random.below(1_000_000), random.below(100));
            write!(
                out,
                "{{\"id\":{row},\"active\":{},\"amount\":{amount}.{cents:02}",
                row % 3 == 0
            )
            .ok();
            out.extend_from_slice(b",\"name\":\"");
            out.extend_from_slice(name);
            out.extend_from_slice(b"\",\"note\":\"caf\xc3\xa9 \\\"");
            out.extend_from_slice(text);
            out.extend_from_slice(
                b"\\\"\\n\",\"tags\":[\"a\",\"bc\"],\"at\":{\"x\":-1.5e3,\"y\":12,\"z\":null}}",
            );
            if out.len() + 2 >= bytes {
                break;
            }
        }
        out.extend_from_slice(b"]}");
        out
    }
}

fn letter(number: u64) -> u8 {
    let index = usize::try_from(number >> 58).unwrap_or(0);
    LETTERS.get(index).copied().unwrap_or(b'A')
}

/// The name of key number `id`. All names are of one length, and so are all requests.
pub(crate) fn write_key(id: u64, into: &mut String) {
    use std::fmt::Write as _;
    into.clear();
    // Writing to a string cannot fail.
    write!(into, "bench/{id:09}").ok();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other, and from the start again.
    Turn,
    Random,
}

/// The keys of one of `stride` connections: every `stride`-th, beginning with its own number.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    first: u64,
    stride: u64,
    count: u64,
    order: Order,
    turn: u64,
    random: Random,
}

impl Keys {
    /// Shares `total` keys among `stride` connections; this is the share of number `first`.
    pub(crate) fn share(first: u64, stride: u64, total: u64, order: Order) -> Self {
        let count = (total / stride.max(1)).max(1);
        Self { first, stride, count, order, turn: 0, random: Random::new(first + 1000) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let slot = match self.order {
            Order::Turn => {
                self.turn += 1;
                self.turn % self.count
            }
            Order::Random => self.random.below(self.count),
        };
        self.first + slot * self.stride
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn documents_are_json_of_the_size_asked_for() {
        let documents = Documents::new();
        let mut out = Vec::new();
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            for bytes in [256, 1024] {
                documents.write(seed, bytes, &mut out);
                assert_eq!(out.len(), bytes);
                serde_json::from_slice::<serde_json::Value>(&out).unwrap();
                assert!(seen.insert(out.clone()), "document {seed} came twice");
            }
        }
    }

    #[test]
    fn the_large_document_is_compact_json() {
        let large = Documents::new().large(100_000);
        assert!((100_000..100_512).contains(&large.len()));
        let value: serde_json::Value = serde_json::from_slice(&large).unwrap();
        assert!(value["rows"].as_array().unwrap().len() > 100);
        assert_eq!(crate::parse::find(&large, b": "), None);
    }

    #[test]
    fn no_two_connections_share_a_key() {
        for order in [Order::Turn, Order::Random] {
            let mut owner = std::collections::BTreeMap::new();
            for connection in 0..64 {
                let mut keys = Keys::share(connection, 64, 1_000, order);
                for _ in 0..200 {
                    let key = keys.next();
                    assert!(key < 1_000);
                    assert_eq!(*owner.entry(key).or_insert(connection), connection);
                }
            }
            assert_eq!(owner.len(), 960);
        }
    }

    #[test]
    fn keys_are_of_one_length() {
        let (mut first, mut last) = (String::new(), String::new());
        write_key(0, &mut first);
        write_key(1_000_000, &mut last);
        assert_eq!((first.as_str(), last.as_str()), ("bench/000000000", "bench/001000000"));
    }
}
