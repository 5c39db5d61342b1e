//! The password of a CA key: from a file, from the terminal, or from the environment. Never from
//! the command line, where other users of the machine could read it.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use lockd_pki::{Password, files};
use zeroize::Zeroizing;

use crate::exit::{Done, Problem};

const VARIABLE: &str = "LOCKD_CA_PASSWORD";
const ELSEWHERE: &str = "use --ca-pass-file FILE or the variable LOCKD_CA_PASSWORD";

/// Where the password comes from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Password of the CA key")]
pub(super) struct PasswordArgs {
    /// Ask for it at the terminal
    #[arg(long, conflicts_with = "ca_pass_file")]
    pub(super) ca_pass_prompt: bool,
    /// Take the first line of this file [env: LOCKD_CA_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(super) ca_pass_file: Option<PathBuf>,
}

/// Somebody who can be asked.
pub(super) trait Terminal {
    fn is_there(&self) -> bool;

    /// What was typed, without showing it.
    fn ask(&self, question: &str) -> io::Result<String>;
}

/// The terminal of this process, wherever its input comes from.
pub(super) struct ControllingTerminal;

impl Terminal for ControllingTerminal {
    fn is_there(&self) -> bool {
        std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok()
    }

    fn ask(&self, question: &str) -> io::Result<String> {
        rpassword::prompt_password(question)
    }
}

/// All the places that a password may come from.
pub(super) struct Passwords<'a> {
    args: &'a PasswordArgs,
    environment: Option<Zeroizing<String>>,
    terminal: &'a dyn Terminal,
}

impl<'a> Passwords<'a> {
    pub(super) fn new(args: &'a PasswordArgs) -> Self {
        let environment = std::env::var_os(VARIABLE).and_then(|value| value.into_string().ok());
        Self::of(args, environment, &ControllingTerminal)
    }

    fn of(args: &'a PasswordArgs, environment: Option<String>, terminal: &'a dyn Terminal) -> Self {
        let environment = environment.filter(|value| !value.is_empty()).map(Zeroizing::new);
        Self { args, environment, terminal }
    }

    /// For a key that is being made; none means that it is not protected.
    pub(super) fn for_new_key(&self) -> Done<Option<Password>> {
        if let Some(path) = &self.args.ca_pass_file {
            return of_file(path).map(Some);
        }
        if self.args.ca_pass_prompt && self.terminal.is_there() {
            return self.ask_twice().map(Some);
        }
        match &self.environment {
            Some(value) => password(value.to_string()).map(Some),
            None if self.args.ca_pass_prompt => Err(no_terminal()),
            None => Ok(None),
        }
    }

    /// For a key that is protected. Somebody at a terminal is asked without being told to ask.
    pub(super) fn to_open(&self, file: &Path) -> Done<Password> {
        if let Some(path) = &self.args.ca_pass_file {
            return of_file(path);
        }
        let asked = self.args.ca_pass_prompt && self.terminal.is_there();
        match &self.environment {
            Some(value) if !asked => password(value.to_string()),
            Some(_) | None if self.terminal.is_there() => {
                self.ask(&format!("Password of the CA key in {}: ", file.display()))
            }
            Some(_) | None if self.args.ca_pass_prompt => Err(no_terminal()),
            Some(_) | None => {
                let message =
                    format!("the CA key in {} is protected by a password", file.display());
                Err(Problem::usage(message).hint(format!("{ELSEWHERE}, or run it at a terminal")))
            }
        }
    }

    fn ask_twice(&self) -> Done<Password> {
        let first = Zeroizing::new(self.typed("New password of the CA key: ")?);
        let again = Zeroizing::new(self.typed("The same again: ")?);
        if first != again {
            return Err(Problem::failed("the two passwords differ; nothing was made"));
        }
        password(first.to_string())
    }

    fn ask(&self, question: &str) -> Done<Password> {
        password(self.typed(question)?)
    }

    fn typed(&self, question: &str) -> Done<String> {
        self.terminal.ask(question).map_err(|error| {
            Problem::failed(format!("cannot ask at the terminal: {error}")).hint(ELSEWHERE)
        })
    }
}

fn no_terminal() -> Problem {
    Problem::usage("there is no terminal to ask at").hint(ELSEWHERE)
}

/// The first line of a file; line ends are not part of a password.
fn of_file(path: &Path) -> Done<Password> {
    let loaded = files::read(path)?;
    let line = loaded.text.lines().next().unwrap_or_default();
    password(line.to_owned())
}

fn password(text: String) -> Done<Password> {
    Ok(Password::new(text)?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use lockd_pki::{Authority, CaBundle, Cost};

    use super::*;

    /// Types what it is told to.
    struct Typist {
        there: bool,
        lines: RefCell<Vec<&'static str>>,
    }

    impl Typist {
        fn types(lines: &[&'static str]) -> Self {
            let lines = lines.iter().rev().copied().collect();
            Self { there: true, lines: RefCell::new(lines) }
        }

        fn absent() -> Self {
            Self { there: false, lines: RefCell::default() }
        }
    }

    impl Terminal for Typist {
        fn is_there(&self) -> bool {
            self.there
        }

        fn ask(&self, _question: &str) -> io::Result<String> {
            let line = self.lines.borrow_mut().pop();
            line.map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        }
    }

    const PROMPT: PasswordArgs = PasswordArgs { ca_pass_prompt: true, ca_pass_file: None };
    const NOTHING: PasswordArgs = PasswordArgs { ca_pass_prompt: false, ca_pass_file: None };

    /// Whether a password is this one: only opening a key with it can tell.
    fn is(password: &Password, text: &str) -> bool {
        let cheap = Cost { memory_kib: 64, passes: 1, lanes: 1 };
        let authority = Authority::create("ca", jiff::Timestamp::now()).unwrap();
        let sealed = CaBundle::new(&authority, Some(password), cheap).unwrap();
        sealed.authority(Some(&Password::new(text.to_owned()).unwrap())).is_ok()
    }

    fn env(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_new_password_is_typed_twice_and_must_be_the_same() {
        let typist = Typist::types(&["secret", "secret"]);
        let made = Passwords::of(&PROMPT, None, &typist).for_new_key().unwrap().unwrap();
        assert!(is(&made, "secret"));
        let typist = Typist::types(&["secret", "secert"]);
        let differ = Passwords::of(&PROMPT, None, &typist).for_new_key().unwrap_err();
        assert!(differ.to_string().contains("differ"), "{differ}");
    }

    #[test]
    fn without_a_terminal_the_other_ways_are_named_or_taken() {
        let absent = Typist::absent();
        for said in [
            Passwords::of(&PROMPT, None, &absent).for_new_key().unwrap_err().to_string(),
            Passwords::of(&PROMPT, None, &absent).to_open(Path::new("x")).unwrap_err().to_string(),
            Passwords::of(&NOTHING, None, &absent).to_open(Path::new("x")).unwrap_err().to_string(),
        ] {
            assert!(said.contains("--ca-pass-file") && said.contains(VARIABLE), "{said}");
        }
        let made = Passwords::of(&PROMPT, env("e"), &absent).for_new_key().unwrap().unwrap();
        assert!(is(&made, "e"));
        assert!(is(&Passwords::of(&PROMPT, env("e"), &absent).to_open("x".as_ref()).unwrap(), "e"));
    }

    #[test]
    fn an_old_password_is_typed_once_and_asked_for_unasked() {
        let typist = Typist::types(&["old"]);
        let open = Passwords::of(&NOTHING, None, &typist).to_open(Path::new("ca.pem")).unwrap();
        assert!(is(&open, "old"));
        let typist = Typist::types(&["typed"]);
        let open = Passwords::of(&PROMPT, env("e"), &typist).to_open(Path::new("x")).unwrap();
        assert!(is(&open, "typed"), "the flag beats the variable");
        let typist = Typist::types(&["typed"]);
        let open = Passwords::of(&NOTHING, env("e"), &typist).to_open(Path::new("x")).unwrap();
        assert!(is(&open, "e"), "nobody is asked who has set the variable");
    }

    #[test]
    fn a_file_gives_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        std::fs::write(&path, "two words \r\nmore\n").unwrap();
        let args = PasswordArgs { ca_pass_prompt: false, ca_pass_file: Some(path.clone()) };
        let passwords = Passwords::of(&args, env("e"), &ControllingTerminal);
        assert!(is(&passwords.for_new_key().unwrap().unwrap(), "two words "));
        assert!(is(&passwords.to_open(Path::new("x")).unwrap(), "two words "));
        std::fs::write(&path, "\nsecond\n").unwrap();
        assert!(passwords.for_new_key().is_err(), "an empty password protects nothing");
    }

    #[test]
    fn nothing_asked_for_is_no_password() {
        let typist = Typist::types(&["x", "x"]);
        assert!(Passwords::of(&NOTHING, None, &typist).for_new_key().unwrap().is_none());
        assert!(Passwords::of(&NOTHING, env(""), &typist).for_new_key().unwrap().is_none());
    }
}
