//! Bearer tokens, of which only the hash is kept.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

const SECRET_MIN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has at least {SECRET_MIN} visible ASCII characters")]
pub struct SecretError;

/// What whoever asks must show.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// # Errors
    /// When it is too short to be a secret, or cannot be sent.
    pub fn new(secret: &str) -> Result<Self, SecretError> {
        let sendable = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if secret.len() < SECRET_MIN || !sendable {
            return Err(SecretError);
        }
        Ok(Self(Sha256::digest(secret).into()))
    }

    /// Of hashes, so that the time it takes tells nothing about a secret.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(shown).into();
        self.0 == hash
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The token that a request shows.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_what_is_shown() {
        let secret = Secret::new("0123456789abcdef").unwrap();
        assert!(secret.is("0123456789abcdef") && !secret.is("0123456789abcdeF"));
        assert_eq!(Secret::new("short").unwrap_err(), SecretError);
        assert_eq!(Secret::new("0123456789 abcdef").unwrap_err(), SecretError);
    }

    #[test]
    fn a_bearer_is_named_in_any_case() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), None);
        headers.insert(AUTHORIZATION, "bEARER  abc ".parse().unwrap());
        assert_eq!(bearer(&headers), Some("abc"));
        headers.insert(AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
