//! The usual ports of all programs, in one place. No two of them are the same, so that everything
//! runs side by side on one machine; a test reads the table of `docs/deploy.md`, the help texts and
//! the files in `deploy/`.

/// A port as it is written in defaults and help texts.
macro_rules! ports {
    ($($(#[$about:meta])* $name:ident = $port:literal;)*) => {
        $($(#[$about])* pub mod $name {
            pub const PORT: u16 = $port;
            /// On loopback.
            pub const LISTEN: &str = concat!("127.0.0.1:", $port);
            pub const URL: &str = concat!("http://127.0.0.1:", $port);
        })*

        /// Every program and its port.
        pub const ALL: &[(&str, u16)] = &[$((stringify!($name), $port),)*];
    };
}

ports! {
    /// `lockd`; its own list of settings and the client's addresses say the same.
    server = 9341;
    /// `lockd coordinator`
    coordinator = 9342;
    /// `lockd controller`
    controller = 9343;
    /// `lockd node-controller`
    node = 9344;
    /// `lockd` with `--metrics-listen`
    server_metrics = 9345;
}

/// The lock of nodes and the store of jobs: the usual server, over mutual TLS.
pub const LOCKD_URL: &str = concat!("lockd://127.0.0.1:", 9341);
