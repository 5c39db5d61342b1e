//! A CA key under a password: Argon2id makes the key, XChaCha20-Poly1305 seals, and everything
//! that says how is authenticated with it. The costs that a file asks for are bounded before any
//! work is done, so that a hostile file cannot take the memory of the machine.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::entropy;
use crate::error::{BundleFault, IssueError};
use crate::key::{Form, PrivateKey};
use crate::pem::Block;

/// The label of the block.
pub(crate) const LABEL: &str = "LOCKD ENCRYPTED PRIVATE KEY";
const KDF: &str = "argon2id";
const CIPHER: &str = "xchacha20poly1305";
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 24;
const KEY_BYTES: usize = 32;
/// No private key that we seal is longer.
const SEALED_BYTES_MAX: usize = 16 * 1024;
const MEMORY_KIB_MAX: u32 = 256 * 1024;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 16;

/// What somebody typed. Wiped when dropped, never printed.
pub struct Password(Zeroizing<String>);

/// What one guess at the password costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    pub memory_kib: u32,
    pub passes: u32,
    pub lanes: u32,
}

/// A private key that only the password opens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Sealed {
    cost: Cost,
    salt: [u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    bytes: Vec<u8>,
}

/// Why a protected key cannot be opened, whatever the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    #[error("the protected CA key has no {0}; the file may be damaged")]
    Missing(&'static str),
    #[error("the protected CA key has a {0} that cannot be read; the file may be damaged")]
    Unreadable(&'static str),
    #[error("the protected CA key has a header \"{0}\" that is not known or there twice")]
    Header(String),
    #[error(
        "the protected CA key asks for {memory_kib} KiB of memory, {passes} passes and {lanes} \
         lanes; at most {MEMORY_KIB_MAX}, {PASSES_MAX} and {LANES_MAX} are accepted"
    )]
    Cost { memory_kib: u32, passes: u32, lanes: u32 },
    #[error("the protected CA key opens, but is no private key")]
    NotAKey,
}

impl Password {
    /// # Errors
    /// When it is empty, which protects nothing.
    pub fn new(text: String) -> Result<Self, IssueError> {
        let text = Zeroizing::new(text);
        if text.is_empty() { Err(IssueError::EmptyPassword) } else { Ok(Self(text)) }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

impl Default for Cost {
    /// The second choice of RFC 9106: about a tenth of a second.
    fn default() -> Self {
        Self { memory_kib: 64 * 1024, passes: 3, lanes: 4 }
    }
}

impl Cost {
    fn params(self) -> Result<Params, SealFault> {
        let Self { memory_kib, passes, lanes } = self;
        let fault = SealFault::Cost { memory_kib, passes, lanes };
        if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX || lanes > LANES_MAX {
            return Err(fault);
        }
        Params::new(memory_kib, passes, lanes, Some(KEY_BYTES)).map_err(|_| fault)
    }
}

impl Sealed {
    pub(crate) fn seal(
        key: &PrivateKey,
        password: &Password,
        cost: Cost,
    ) -> Result<Self, IssueError> {
        let failed = |what: &str| IssueError::Failed(what.to_owned());
        let plain = key.pkcs8().ok_or(IssueError::CaKeyType)?;
        let mut sealed =
            Self { cost, salt: entropy::bytes()?, nonce: entropy::bytes()?, bytes: Vec::new() };
        let cipher = sealed.cipher(password).map_err(|fault| failed(&fault.to_string()))?;
        let about = sealed.about();
        let payload = Payload { msg: plain, aad: about.as_bytes() };
        sealed.bytes = cipher
            .encrypt(&XNonce::from(sealed.nonce), payload)
            .map_err(|_| failed("the CA key could not be sealed"))?;
        Ok(sealed)
    }

    pub(crate) fn open(&self, password: &Password) -> Result<PrivateKey, BundleFault> {
        let cipher = self.cipher(password)?;
        let about = self.about();
        let payload = Payload { msg: &self.bytes, aad: about.as_bytes() };
        let plain = cipher
            .decrypt(&XNonce::from(self.nonce), payload)
            .map_err(|_| BundleFault::WrongPassword)?;
        let key = PrivateKey::parse(Form::Pkcs8, Zeroizing::new(plain));
        key.ok_or(BundleFault::Seal(SealFault::NotAKey))
    }

    pub(crate) fn of_block(block: &Block) -> Result<Self, BundleFault> {
        let contents = block.contents()?;
        if contents.bytes.len() > SEALED_BYTES_MAX {
            return Err(SealFault::Unreadable("contents").into());
        }
        let headers = Headers::of(contents.headers)?;
        headers.is("KDF", KDF)?;
        headers.is("Cipher", CIPHER)?;
        let cost = Cost {
            memory_kib: headers.number("Memory-KiB")?,
            passes: headers.number("Passes")?,
            lanes: headers.number("Lanes")?,
        };
        cost.params()?;
        let (salt, nonce) = (headers.octets("Salt")?, headers.octets("Nonce")?);
        Ok(Self { cost, salt, nonce, bytes: contents.bytes.to_vec() })
    }

    pub(crate) fn to_block(&self) -> Block {
        Block::new(LABEL, &self.headers(), &self.bytes)
    }

    fn headers(&self) -> [(&'static str, String); 7] {
        [
            ("KDF", KDF.to_owned()),
            ("Memory-KiB", self.cost.memory_kib.to_string()),
            ("Passes", self.cost.passes.to_string()),
            ("Lanes", self.cost.lanes.to_string()),
            ("Salt", hex(&self.salt)),
            ("Cipher", CIPHER.to_owned()),
            ("Nonce", hex(&self.nonce)),
        ]
    }

    /// What is authenticated beside the key: the headers, in one order and one spelling.
    fn about(&self) -> String {
        let lines = self.headers().map(|(name, value)| format!("{name}: {value}\n"));
        format!("{LABEL}\n{}", lines.concat())
    }

    fn cipher(&self, password: &Password) -> Result<XChaCha20Poly1305, SealFault> {
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, self.cost.params()?);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        argon
            .hash_password_into(password.0.as_bytes(), &self.salt, key.as_mut_slice())
            .map_err(|_| SealFault::Unreadable("cost"))?;
        XChaCha20Poly1305::new_from_slice(key.as_slice()).map_err(|_| SealFault::Unreadable("cost"))
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({:?}, ..)", self.cost)
    }
}

/// The headers of a sealed key, each known and each once.
struct Headers(Vec<(&'static str, String)>);

impl Headers {
    const KNOWN: [&'static str; 7] =
        ["KDF", "Memory-KiB", "Passes", "Lanes", "Salt", "Cipher", "Nonce"];

    fn of(headers: Vec<(String, String)>) -> Result<Self, SealFault> {
        let mut kept: Vec<(&'static str, String)> = Vec::new();
        for (name, value) in headers {
            let known = Self::KNOWN.into_iter().find(|known| *known == name);
            match known {
                Some(known) if kept.iter().all(|(name, _)| *name != known) => {
                    kept.push((known, value));
                }
                Some(_) | None => return Err(SealFault::Header(name)),
            }
        }
        Ok(Self(kept))
    }

    fn get(&self, wanted: &'static str) -> Result<&str, SealFault> {
        let found = self.0.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value.as_str()).ok_or(SealFault::Missing(wanted))
    }

    fn is(&self, name: &'static str, expected: &str) -> Result<(), SealFault> {
        if self.get(name)? == expected { Ok(()) } else { Err(SealFault::Unreadable(name)) }
    }

    fn number(&self, name: &'static str) -> Result<u32, SealFault> {
        self.get(name)?.parse().map_err(|_| SealFault::Unreadable(name))
    }

    fn octets<const N: usize>(&self, name: &'static str) -> Result<[u8; N], SealFault> {
        let text = self.get(name)?;
        let fault = SealFault::Unreadable(name);
        if text.len() != 2 * N || !text.is_ascii() {
            return Err(fault);
        }
        let mut octets = [0; N];
        for (octet, pair) in octets.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).unwrap_or_default();
            *octet = u8::from_str_radix(digits, 16).map_err(|_| fault.clone())?;
        }
        Ok(octets)
    }
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Cost, Password, SealFault, Sealed};
    use crate::error::BundleFault;
    use crate::fixture::CHEAP;
    use crate::key::PrivateKey;
    use crate::pem;

    fn password(text: &str) -> Password {
        Password::new(text.to_owned()).unwrap()
    }

    /// The same block with one thing said differently.
    fn changed(sealed: &Sealed, from: &str, to: &str) -> Result<Sealed, BundleFault> {
        let text = pem::join([&sealed.to_block()]).as_str().to_owned();
        assert!(text.contains(from), "{text}");
        Sealed::of_block(&pem::parse(&text.replace(from, to)).unwrap()[0])
    }

    #[test]
    fn a_sealed_key_opens_with_its_password_only() {
        let key = PrivateKey::generate().unwrap();
        let sealed = Sealed::seal(&key, &password("correct horse"), CHEAP).unwrap();
        let read = Sealed::of_block(&sealed.to_block()).unwrap();
        assert_eq!(read, sealed);
        assert_eq!(read.open(&password("correct horse")).unwrap().pkcs8(), key.pkcs8());
        assert_eq!(read.open(&password("wrong")).unwrap_err(), BundleFault::WrongPassword);
        let shown = pem::join([&sealed.to_block()]);
        let plain = pem::join([&key.to_block()]);
        assert!(!shown.contains(plain.lines().nth(1).unwrap()));
    }

    #[test]
    fn the_same_key_never_looks_the_same() {
        let key = PrivateKey::generate().unwrap();
        let seal = || Sealed::seal(&key, &password("x"), CHEAP).unwrap();
        let (one, two) = (seal(), seal());
        assert_ne!(one.salt, two.salt);
        assert_ne!(one.nonce, two.nonce);
        assert_ne!(one.bytes, two.bytes);
    }

    #[test]
    fn headers_are_part_of_what_is_sealed() {
        let key = PrivateKey::generate().unwrap();
        let sealed = Sealed::seal(&key, &password("x"), CHEAP).unwrap();
        let other = changed(&sealed, "Passes: 1", "Passes: 2").unwrap();
        assert_eq!(other.open(&password("x")).unwrap_err(), BundleFault::WrongPassword);
        // A cost that gives another key proves little, so the text itself is looked at.
        for name in ["KDF", "Memory-KiB", "Passes", "Lanes", "Salt", "Cipher", "Nonce"] {
            assert!(sealed.about().contains(&format!("\n{name}: ")), "{name}");
        }
    }

    #[test]
    fn hostile_costs_are_refused_before_any_work() {
        let key = PrivateKey::generate().unwrap();
        let sealed = Sealed::seal(&key, &password("x"), CHEAP).unwrap();
        for (from, to) in [
            ("Memory-KiB: 64", "Memory-KiB: 104857600"),
            ("Memory-KiB: 64", "Memory-KiB: 1"),
            ("Passes: 1", "Passes: 17"),
            ("Passes: 1", "Passes: 0"),
            ("Lanes: 1", "Lanes: 17"),
        ] {
            let fault = changed(&sealed, from, to).unwrap_err();
            assert!(matches!(fault, BundleFault::Seal(SealFault::Cost { .. })), "{to}: {fault}");
        }
        for (from, to) in [
            ("Memory-KiB: 64", "Memory-KiB: 99999999999"),
            ("argon2id", "argon2i"),
            ("xchacha20poly1305", "none"),
            ("Nonce: ", "Nonce: 00"),
            ("Salt: ", "Salt: zz"),
        ] {
            let fault = changed(&sealed, from, to).unwrap_err();
            assert!(matches!(fault, BundleFault::Seal(SealFault::Unreadable(_))), "{to}: {fault}");
        }
        for (from, to) in [("Lanes: 1\n", "Lanes: 1\nLanes: 2\n"), ("KDF: ", "Extra: x\nKDF: ")] {
            let fault = changed(&sealed, from, to).unwrap_err();
            assert!(matches!(fault, BundleFault::Seal(SealFault::Header(_))), "{to}: {fault}");
        }
        let missing = changed(&sealed, "Lanes: 1\n", "").unwrap_err();
        assert_eq!(missing, BundleFault::Seal(SealFault::Missing("Lanes")));
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", password("hunter2")), "Password(..)");
        assert_eq!(format!("{:?}", PrivateKey::generate().unwrap()), "PrivateKey(..)");
        assert!(Password::new(String::new()).is_err());
        assert!(Cost::default().params().is_ok());
    }
}
