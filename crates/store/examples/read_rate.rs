//! What a read of one record costs, by the number of records in the store: random names, one
//! thread, after everything is at rest. Run with `--release`; arguments: folder, seconds,
//! numbers of records. A folder that is there already is read again as it is.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockd_store::{EmbeddedOptions, EmbeddedStore, Expect, Name, Op, Store, StoreError, Write};

const VALUE_BYTES: usize = 400;
const COMMIT_RECORDS: usize = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| "read-rate-data".into());
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut sizes = arguments.map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![1_000, 100_000, 1_000_000];
    }
    for records in sizes {
        let path = Path::new(&folder).join(records.to_string());
        let store = EmbeddedStore::open(EmbeddedOptions::new(&path))?;
        runtime.block_on(fill(&store, records))?;
        runtime.block_on(store.close());
        drop(store);
        let store = EmbeddedStore::open(EmbeddedOptions::new(&path))?;
        let took = runtime.block_on(read(&store, records, Duration::from_secs(seconds)))?;
        println!("{records:>9} records: {took:?} a read");
        runtime.block_on(store.close());
    }
    Ok(())
}

fn name(number: usize) -> Name {
    Arc::from(format!("k/default/key-{number:09}"))
}

async fn fill(store: &EmbeddedStore, records: usize) -> Result<(), StoreError> {
    let last = store.load(&name(records - 1)).await?;
    let mut next = if last.is_some() { records } else { 0 };
    while next < records {
        let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
        let until = (next + COMMIT_RECORDS).min(records);
        let ops = (next..until).map(|number| {
            let write = Write::Put(value.clone());
            Op { name: name(number), expect: Expect::Any, write }
        });
        store.commit(ops.collect()).await?;
        next = until;
    }
    Ok(())
}

async fn read(
    store: &EmbeddedStore,
    records: usize,
    span: Duration,
) -> Result<Duration, StoreError> {
    let mut dice: usize = 88_172_645_463_325_252;
    let (mut reads, begun) = (0, Instant::now());
    while begun.elapsed() < span {
        for _ in 0..1_000 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            store.load(&name(dice % records)).await?;
            reads += 1;
        }
    }
    Ok(begun.elapsed() / reads)
}
