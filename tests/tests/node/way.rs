//! A way to a server that can be cut: nothing goes through any more, and nobody is told. It can
//! also be cut by what goes through it, just before that arrives.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

#[derive(Debug, Default)]
struct State {
    cut: bool,
    /// Cuts the way when it is about to be carried to the server.
    mark: Option<Vec<u8>>,
    /// What held the mark has been carried to the server, and the server has answered.
    answered: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state);
        self.changed.notify_all();
        changed
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !until(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Its threads end with the test.
#[derive(Clone, Debug)]
pub struct Way {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Way {
    pub fn to(place: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let of_all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_all);
                std::thread::spawn(move || {
                    shared.wait(|state| !state.cut);
                    let Ok(far) = TcpStream::connect(place) else { return };
                    // It is to be a way like others, not a slow one.
                    for end in [&near, &far] {
                        end.set_nodelay(true).ok();
                    }
                    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else {
                        return;
                    };
                    let carried = Arc::new(AtomicBool::new(false));
                    let (back, sent) = (Arc::clone(&shared), Arc::clone(&carried));
                    std::thread::spawn(move || carry_back(far_too, near_too, &back, &sent));
                    carry(near, far, &shared, &carried);
                });
            }
        });
        Self { address, shared }
    }

    pub fn cut(&self) {
        self.shared.change(|state| state.cut = true);
    }

    pub fn mend(&self) {
        self.shared.change(|state| (state.cut, state.mark) = (false, None));
    }

    /// Whether the server has answered what the way was cut at, once it was mended.
    pub fn is_answered(&self) -> bool {
        self.shared.change(|state| state.answered)
    }

    /// Cuts the way at the first piece that holds this.
    pub fn cut_at(&self, mark: &str) {
        self.shared.change(|state| state.mark = Some(mark.as_bytes().to_vec()));
    }

    /// Until it is cut.
    pub fn is_cut(&self) -> bool {
        self.shared.change(|state| state.cut)
    }
}

/// To the server, one piece after the other; `carried` is set with the one that has the mark.
fn carry(mut from: TcpStream, mut to: TcpStream, shared: &Shared, carried: &AtomicBool) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let read = &piece[..read];
        let is_marked = shared.change(|state| {
            let holds = |mark: &Vec<u8>| read.windows(mark.len()).any(|part| part == mark);
            let is_marked = state.mark.as_ref().is_some_and(holds);
            state.cut |= is_marked;
            is_marked
        });
        shared.wait(|state| !state.cut);
        carried.fetch_or(is_marked, Ordering::SeqCst);
        if to.write_all(read).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}

fn carry_back(mut from: TcpStream, mut to: TcpStream, shared: &Shared, carried: &AtomicBool) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut piece).unwrap_or(0);
        // The end of a connection is an answer too: nothing more will be done for it.
        if carried.load(Ordering::SeqCst) {
            shared.change(|state| state.answered = true);
        }
        if read == 0 {
            break;
        }
        shared.wait(|state| !state.cut);
        if to.write_all(&piece[..read]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}
