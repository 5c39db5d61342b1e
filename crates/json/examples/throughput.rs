//! Measures the compactor on one core: `cargo run --release -p lockd-json --example throughput`.
//!
//! Two documents of realistic records, made the same way each time: one pretty-printed, one compact.
//! Each is fed in chunks as a socket would deliver them; the best of several rounds is printed.
//! The last line is one mutation of the compact document, its check and its copy included.

use lockd_json::mutate::{NoFiles, Source, apply, parse};
use lockd_json::{Compactor, Limits};

const CHUNK_BYTES: usize = 16 * 1024;
const ROUNDS: usize = 9;
const PRETTY_BYTES: usize = 45_000_000;
const COMPACT_BYTES: usize = 47_000_000;

fn main() {
    report("pretty", &document(PRETTY_BYTES, true), compacted);
    let compact = document(COMPACT_BYTES, false);
    report("compact", &compact, compacted);
    report("mutate", &[b"{\"records\":", compact.as_slice(), b"}"].concat(), mutated);
}

#[expect(clippy::print_stdout, reason = "the numbers are the point of this program")]
fn report(name: &str, document: &[u8], work: fn(&[u8]) -> u64) {
    let mut best = f64::INFINITY;
    let mut worst = 0.0_f64;
    let mut bytes_out = 0;
    for _ in 0..ROUNDS {
        let seconds = timed(|| bytes_out = work(document));
        best = best.min(seconds);
        worst = worst.max(seconds);
    }
    let megabytes = document.len() as f64 / 1e6;
    println!(
        "{name:8} {megabytes:5.1} MB -> {:5.1} MB  best {:6.0} MB/s  worst {:6.0} MB/s",
        bytes_out as f64 / 1e6,
        megabytes / best,
        megabytes / worst,
    );
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock itself")]
fn timed(work: impl FnOnce()) -> f64 {
    let started = std::time::Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

#[expect(clippy::expect_used, reason = "the document was made here and is valid")]
fn compacted(document: &[u8]) -> u64 {
    let mut compactor = Compactor::new(Limits::default());
    let mut out = Vec::with_capacity(CHUNK_BYTES);
    for chunk in document.chunks(CHUNK_BYTES) {
        out.clear();
        compactor.push(chunk, &mut out).expect("valid");
    }
    compactor.finish(&mut out).expect("whole");
    compactor.bytes_out()
}

#[expect(clippy::expect_used, reason = "the document and the expression were made here")]
fn mutated(document: &[u8]) -> u64 {
    let mutations = parse("/records/100/score=+1.5", Source::Server).expect("valid");
    let out = apply(Some(document), &mutations, "2025-11-15T18:56:00Z", &NoFiles);
    out.expect("a record with a score").len() as u64
}

fn document(bytes: usize, pretty: bool) -> Vec<u8> {
    let mut writer = Writer { out: Vec::with_capacity(bytes + 4096), pretty, depth: 0 };
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    writer.open("[");
    while writer.out.len() < bytes {
        record(&mut writer, &mut dice);
    }
    writer.close("]");
    writer.out
}

fn record(writer: &mut Writer, dice: &mut Dice) {
    const NAMES: [&str; 6] =
        ["Ada Lovelace", "Grace Hopper", "Zoë Müller", "山田 太郎", "Alan Turing", "Łukasz Żak"];
    const NOTES: [&str; 3] = [
        r#"first line\nsecond line with a \"quote\""#,
        "a longer remark, as people leave them on orders that were late again this week",
        "ok",
    ];
    writer.open("{");
    writer.member("id", &dice.below(10_000_000).to_string());
    writer.member("name", &quoted(dice.choose(&NAMES)));
    writer.member("active", if dice.below(2) == 0 { "true" } else { "false" });
    writer.member("score", &format!("{}.{:04}", dice.below(100), dice.below(10_000)));
    writer.member("updated_at", "\"2025-11-15T18:56:00.123456789Z\"");
    writer.member("parent", "null");
    writer.name("tags");
    writer.open("[");
    for _ in 0..dice.below(4) {
        writer.item(&quoted(&format!("tag-{}", dice.below(50))));
    }
    writer.close("]");
    writer.name("position");
    writer.open("{");
    writer.member("x", &format!("-{}.{}e-3", dice.below(10), dice.below(1_000_000)));
    writer.member("y", &dice.below(1_000).to_string());
    writer.name("path");
    writer.open("[");
    for _ in 0..dice.below(6) {
        writer.item(&dice.below(100_000).to_string());
    }
    writer.close("]");
    writer.close("}");
    writer.member("note", &quoted(dice.choose(&NOTES)));
    writer.close("}");
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

struct Writer {
    out: Vec<u8>,
    pretty: bool,
    depth: usize,
}

impl Writer {
    fn open(&mut self, bracket: &str) {
        if !self.out.ends_with(b":") && !self.out.ends_with(b": ") && !self.out.is_empty() {
            self.separate();
        }
        self.out.extend_from_slice(bracket.as_bytes());
        self.depth += 1;
    }

    fn close(&mut self, bracket: &str) {
        self.depth -= 1;
        if !self.out.ends_with(b"[") && !self.out.ends_with(b"{") {
            self.line();
        }
        self.out.extend_from_slice(bracket.as_bytes());
    }

    fn member(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.extend_from_slice(value.as_bytes());
    }

    fn name(&mut self, name: &str) {
        self.separate();
        self.out.extend_from_slice(quoted(name).as_bytes());
        self.out.extend_from_slice(if self.pretty { b": " } else { b":" });
    }

    fn item(&mut self, value: &str) {
        self.separate();
        self.out.extend_from_slice(value.as_bytes());
    }

    fn separate(&mut self) {
        if !self.out.ends_with(b"[") && !self.out.ends_with(b"{") {
            self.out.push(b',');
        }
        self.line();
    }

    fn line(&mut self) {
        if self.pretty {
            self.out.push(b'\n');
            self.out.resize(self.out.len() + 2 * self.depth, b' ');
        }
    }
}

/// A small generator, so that every run measures the same documents.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn choose<'a>(&mut self, from: &[&'a str]) -> &'a str {
        let index = usize::try_from(self.below(from.len() as u64)).unwrap_or_default();
        from.get(index).copied().unwrap_or_default()
    }
}
