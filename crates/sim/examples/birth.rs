use std::sync::Arc;
fn main() {
    let n = 300u32;
    let start = std::time::Instant::now();
    for _ in 0..n {
        let rt = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        drop(rt);
    }
    println!("runtime {:?}", start.elapsed() / n);
    let start = std::time::Instant::now();
    for _ in 0..n { let _s = lockd_server::Settings::embedded_defaults(); }
    println!("settings {:?}", start.elapsed() / n);
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let start = std::time::Instant::now();
    let mut v = vec![];
    for _ in 0..n {
        let parts = lockd_server::Parts { store: Some(Arc::new(lockd_store::MemStore::new())), ..Default::default() };
        v.push(rt.block_on(lockd_server::Server::with_parts(lockd_server::Settings::embedded_defaults(), parts)).unwrap());
    }
    println!("server {:?}", start.elapsed() / n);
    let start = std::time::Instant::now();
    for s in &v { let _h = s.handler(); }
    println!("handler {:?}", start.elapsed() / n);
    let start = std::time::Instant::now();
    drop(v);
    println!("drop {:?}", start.elapsed() / n);
}
