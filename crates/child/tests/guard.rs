//! Programs under a guard, killed in every order. The test program is its own guard, and its own
//! starter that is killed.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockd_child::{Child, Program, Stream};

/// How long anything here may take.
const IN_TIME: Duration = Duration::from_secs(10);

type Ran = Pin<Box<dyn Future<Output = io::Result<()>>>>;
type Test = (&'static str, fn() -> Ran);

fn main() -> ExitCode {
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return ExitCode::FAILURE };
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some("as-guard") => {
            let code = runtime.block_on(lockd_child::guard(words.get(1..).unwrap_or_default()));
            ExitCode::from(code.map_or(127, |code| u8::try_from(code).unwrap_or(u8::MAX)))
        }
        Some("as-starter") => {
            let command = words.iter().skip(1).filter_map(|word| word.to_str());
            let started = runtime.block_on(start_and_wait(command.map(str::to_owned).collect()));
            if started.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        filter => run_all(&runtime, filter.filter(|word| !word.starts_with('-'))),
    }
}

fn run_all(runtime: &tokio::runtime::Runtime, filter: Option<&str>) -> ExitCode {
    let all: [Test; 13] = [
        ("the_exit_code_is_the_programs", || Box::pin(the_exit_code_is_the_programs())),
        ("a_signal_is_told_from_an_exit_code", || Box::pin(a_signal_is_told_from_an_exit_code())),
        ("one_that_cannot_be_started_is_told", || Box::pin(one_that_cannot_be_started_is_told())),
        ("input_of_any_size_arrives", || Box::pin(input_of_any_size_arrives())),
        ("input_need_not_be_read", || Box::pin(input_need_not_be_read())),
        ("output_comes_in_its_order", || Box::pin(output_comes_in_its_order())),
        ("a_program_has_as_many_files_as_before", || {
            Box::pin(a_program_has_as_many_files_as_before())
        }),
        ("lines_come_from_both_streams", || Box::pin(lines_come_from_both_streams())),
        ("a_program_is_asked_before_it_is_killed", || {
            Box::pin(a_program_is_asked_before_it_is_killed())
        }),
        ("what_left_the_group_dies_with_the_program", || {
            Box::pin(what_left_the_group_dies_with_the_program())
        }),
        ("a_killed_guard_takes_all_of_it_along", || {
            Box::pin(a_killed_guard_takes_all_of_it_along())
        }),
        ("a_stopped_guard_is_not_waited_for", || Box::pin(a_stopped_guard_is_not_waited_for())),
        ("a_killed_starter_takes_all_of_it_along", || {
            Box::pin(a_killed_starter_takes_all_of_it_along())
        }),
    ];
    let mut failed = false;
    for (name, test) in all {
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let ended = runtime.block_on(async { tokio::time::timeout(2 * IN_TIME, test()).await });
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("it takes too long")));
        failed |= ended.is_err();
        say(&match ended {
            Ok(()) => format!("test {name} ... ok"),
            Err(error) => format!("test {name} ... FAILED: {error}"),
        });
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[expect(clippy::print_stdout, reason = "the report of a test program")]
fn say(text: &str) {
    println!("{text}");
}

fn program(command: &[&str]) -> io::Result<Program> {
    let guard = vec![std::env::current_exe()?.into_os_string(), "as-guard".into()];
    let command = command.iter().map(|&word| word.to_owned()).collect();
    Ok(Program { command, guard, ..Program::default() })
}

fn ensure(holds: bool, what: impl std::fmt::Display) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other(what.to_string())) }
}

/// What it wrote, so far.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn add(&self, piece: &[u8]) {
        if let Ok(mut bytes) = self.0.lock() {
            bytes.extend_from_slice(piece);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().map(|bytes| bytes.clone()).unwrap_or_default()
    }

    /// Numbers, one per line, when there are so many.
    async fn numbers(&self, count: usize) -> io::Result<Vec<u32>> {
        until("it has written", || {
            let text = String::from_utf8_lossy(&self.bytes()).into_owned();
            let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
            let all: Vec<u32> = whole.lines().filter_map(|line| line.parse().ok()).collect();
            (all.len() >= count).then_some(all)
        })
        .await
    }
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> io::Result<T> {
    let looked = tokio::time::timeout(IN_TIME, async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    looked.await.map_err(|_| io::Error::other(format!("never: {what}")))
}

/// Whether a process runs; one that has ended and was not reaped does not.
fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).is_some_and(|c| c != 'Z')
}

async fn all_gone(ids: &[u32]) -> io::Result<()> {
    until(&format!("all of {ids:?} are gone"), || ids.iter().all(|id| !runs(*id)).then_some(()))
        .await
}

fn kill(id: u32, signal: rustix::process::Signal) -> io::Result<()> {
    let id = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
    let id = id.ok_or_else(|| io::Error::other("no number of a process"))?;
    Ok(rustix::process::kill_process(id, signal)?)
}

fn start(command: &[&str], input: &[u8]) -> io::Result<(Child, Written)> {
    let written = Written::default();
    let into = written.clone();
    let child = Child::start_with_input(&program(command)?, input, move |piece| into.add(piece))?;
    Ok((child, written))
}

/// Its own number, that of a child in its group, and that of one that has left the group.
const FAMILY: &str = "echo $$; sleep 1000 & echo $!; \
    setsid sh -c 'echo $$; exec sleep 1000' & wait";

async fn start_and_wait(command: Vec<String>) -> io::Result<()> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut child = Child::start(&program(&words)?, |_, line| say(line))?;
    child.wait().await.map(drop)
}

async fn the_exit_code_is_the_programs() -> io::Result<()> {
    for code in [0, 3, 127, 137] {
        let (mut child, _) = start(&["sh", "-c", &format!("exit {code}")], b"")?;
        let ended = child.wait().await?;
        ensure(ended.code() == Some(code), ended)?;
    }
    Ok(())
}

async fn a_signal_is_told_from_an_exit_code() -> io::Result<()> {
    let (mut child, _) = start(&["sh", "-c", "kill -9 $$"], b"")?;
    let ended = child.wait().await?;
    ensure(ended.signal() == Some(9), ended)
}

async fn one_that_cannot_be_started_is_told() -> io::Result<()> {
    let (mut child, _) = start(&["/no/such/program"], b"")?;
    match child.wait().await {
        Err(error) => ensure(error.kind() == io::ErrorKind::NotFound, error),
        Ok(ended) => ensure(false, ended),
    }
}

async fn input_of_any_size_arrives() -> io::Result<()> {
    for size in [0, 1, 70_000, 3_000_000] {
        let input: Vec<u8> = (0..size).map(|at: u32| (at % 251).to_le_bytes()[0]).collect();
        let (mut child, written) = start(&["cat"], &input)?;
        let ended = child.wait().await?;
        ensure(ended.success() && written.bytes() == input, format!("{size} bytes: {ended}"))?;
    }
    Ok(())
}

async fn input_need_not_be_read() -> io::Result<()> {
    let (mut child, _) = start(&["true"], &vec![b'x'; 3_000_000])?;
    let ended = child.wait().await?;
    ensure(ended.success(), ended)
}

async fn output_comes_in_its_order() -> io::Result<()> {
    let script = "for i in 1 2 3 4 5; do echo out$i; printf 'err%s\\r\\n' $i >&2; done; printf end";
    let (mut child, written) = start(&["sh", "-c", script], b"")?;
    child.wait().await?;
    let mut wanted = String::new();
    for i in 1..=5 {
        wanted += &format!("out{i}\nerr{i}\r\n");
    }
    let text = String::from_utf8_lossy(&written.bytes()).into_owned();
    ensure(text == wanted + "end", text)
}

async fn a_program_has_as_many_files_as_before() -> io::Result<()> {
    let limit = async || {
        let (mut child, written) = start(&["sh", "-c", "ulimit -S -n"], b"")?;
        child.wait().await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&written.bytes()).trim().to_owned())
    };
    let before = limit().await?;
    lockd_child::raise_open_files();
    let own = std::fs::read_to_string("/proc/self/limits")?;
    let own = own.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let mut own = own.split_whitespace().skip(3);
    ensure(own.next() == own.next(), "this process has not all that it could have")?;
    let after = limit().await?;
    ensure(after == before, format!("{after} after {before}"))
}

async fn lines_come_from_both_streams() -> io::Result<()> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&lines);
    let on_line = move |stream, line: &str| {
        if let Ok(mut lines) = into.lock() {
            lines.push((stream, line.to_owned()));
        }
    };
    let read = "cat; echo out; echo err >&2";
    let mut child = Child::start(&program(&["sh", "-c", read])?, on_line)?;
    child.wait().await?;
    let lines = lines.lock().map(|lines| lines.clone()).unwrap_or_default();
    let has = |stream, text: &str| lines.contains(&(stream, text.to_owned()));
    let both = has(Stream::Output, "out") && has(Stream::Error, "err");
    ensure(both && lines.len() == 2, format!("{lines:?}"))
}

async fn a_program_is_asked_before_it_is_killed() -> io::Result<()> {
    let script = "trap 'echo asked; exit 7' TERM; echo 1; while :; do sleep 0.05; done";
    let (mut child, written) = start(&["sh", "-c", script], b"")?;
    written.numbers(1).await?;
    child.terminate().await;
    let ended = child.wait().await?;
    ensure(ended.code() == Some(7) && written.bytes().ends_with(b"asked\n"), ended)
}

async fn what_left_the_group_dies_with_the_program() -> io::Result<()> {
    let (mut child, written) = start(&["sh", "-c", FAMILY], b"")?;
    let family = written.numbers(3).await?;
    ensure(family.iter().all(|id| runs(*id)), "all of it runs")?;
    child.kill();
    let ended = child.wait().await?;
    ensure(ended.signal() == Some(9), ended)?;
    // The guard has reaped them: nobody has to be waited for.
    ensure(family.iter().all(|id| !runs(*id)), format!("{family:?} are gone"))
}

async fn a_killed_guard_takes_all_of_it_along() -> io::Result<()> {
    let (mut child, written) = start(&["sh", "-c", FAMILY], b"")?;
    let family = written.numbers(3).await?;
    let guard = child.id().ok_or_else(|| io::Error::other("it runs"))?;
    kill(guard, rustix::process::Signal::KILL)?;
    let ended = child.wait().await?;
    ensure(ended.signal() == Some(9), ended)?;
    all_gone(&family).await
}

async fn a_stopped_guard_is_not_waited_for() -> io::Result<()> {
    let (mut child, written) = start(&["sh", "-c", FAMILY], b"")?;
    let family = written.numbers(3).await?;
    let guard = child.id().ok_or_else(|| io::Error::other("it runs"))?;
    kill(guard, rustix::process::Signal::STOP)?;
    child.kill();
    let ended = tokio::time::timeout(IN_TIME, child.wait()).await??;
    ensure(ended.signal() == Some(9), ended)?;
    all_gone(&family).await
}

async fn a_killed_starter_takes_all_of_it_along() -> io::Result<()> {
    let starter = std::env::current_exe()?.to_string_lossy().into_owned();
    let written = Written::default();
    let into = written.clone();
    let command = [&starter, "as-starter", "sh", "-c", FAMILY].map(str::to_owned).to_vec();
    let program = Program { command, ..Program::default() };
    let mut child = Child::start_with_input(&program, b"", move |piece| into.add(piece))?;
    let family = written.numbers(3).await?;
    kill(child.id().ok_or_else(|| io::Error::other("it runs"))?, rustix::process::Signal::KILL)?;
    child.wait().await?;
    all_gone(&family).await
}
