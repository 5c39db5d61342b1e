//! Listings that come in pages: keys, namespaces, leases, transactions. The cursor moves only when a page has
//! arrived, so a page whose future was dropped is simply asked for again.

use std::fmt;
use std::marker::PhantomData;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::Method;
use lockd_wire::admin::{KeyView, KeysReply, NamespacesReply};
use lockd_wire::lease::{LeaseView, LeasesReply};
use lockd_wire::path;
use lockd_wire::txn::{TxnView, TxnsReply};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{Error, Failed, Failure, ReadKind};

/// Keys, in order.
pub type KeyPages = Pages<KeyView>;
/// Namespaces, in order.
pub type NamespacePages = Pages<String>;
/// Live leases, in order of their keys.
pub type LeasePages = Pages<LeaseView>;

/// Transactions that have a record, in order of their ids.
pub type TxnPages = Pages<TxnView>;

/// A listing that is read page by page.
pub struct Pages<T> {
    client: Client,
    namespace: Option<String>,
    prefix: String,
    limit: Option<u32>,
    cursor: Cursor,
    item: PhantomData<fn() -> T>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    Start,
    At(String),
    End,
}

impl Cursor {
    /// What to send with the request for the next page, if there is one.
    pub(crate) fn next(&self) -> Option<Option<String>> {
        match self {
            Self::Start => Some(None),
            Self::At(cursor) => Some(Some(cursor.clone())),
            Self::End => None,
        }
    }

    /// A page has arrived.
    pub(crate) fn advance(&mut self, next: Option<String>) -> Result<(), Failed> {
        let next = next.map_or(Self::End, Self::At);
        if next == *self {
            return Err(Failure::garbled("its next page is the same again"));
        }
        *self = next;
        Ok(())
    }
}

/// Pages as one item after the other. It ends after an error.
pub(crate) fn items<P, T, F>(
    pages: P,
    page: F,
) -> impl Stream<Item = Result<T, Error<ReadKind>>> + Send
where
    P: Send + 'static,
    T: Send + 'static,
    F: for<'a> Fn(&'a mut P) -> BoxFuture<'a, Result<Option<Vec<T>>, Failed>>
        + Copy
        + Send
        + 'static,
{
    let start = (Some(pages), Vec::new().into_iter());
    futures_util::stream::unfold(start, move |(pages, mut items)| async move {
        let mut pages = pages;
        loop {
            if let Some(item) = items.next() {
                return Some((Ok(item), (pages, items)));
            }
            let mut source = pages?;
            match page(&mut source).await {
                Ok(None) => return None,
                Ok(Some(page)) => items = page.into_iter(),
                Err(failure) => return Some((Err(failure.into()), (None, items))),
            }
            pages = Some(source);
        }
    })
}

/// Something that the server lists.
trait Listed: Sized {
    const PATH: &'static str;
    type Reply: DeserializeOwned;

    fn page(reply: Self::Reply) -> (Vec<Self>, Option<String>);
}

impl Listed for KeyView {
    const PATH: &'static str = path::KEYS;
    type Reply = KeysReply;

    fn page(reply: KeysReply) -> (Vec<Self>, Option<String>) {
        (reply.keys, reply.next_cursor)
    }
}

impl Listed for TxnView {
    const PATH: &'static str = path::TXNS;
    type Reply = TxnsReply;

    fn page(reply: TxnsReply) -> (Vec<Self>, Option<String>) {
        (reply.txns, reply.next_cursor)
    }
}

impl Listed for String {
    const PATH: &'static str = path::NAMESPACES;
    type Reply = NamespacesReply;

    fn page(reply: NamespacesReply) -> (Vec<Self>, Option<String>) {
        (reply.namespaces, reply.next_cursor)
    }
}

impl Listed for LeaseView {
    const PATH: &'static str = path::LEASES;
    type Reply = LeasesReply;

    fn page(reply: LeasesReply) -> (Vec<Self>, Option<String>) {
        (reply.leases, reply.next_cursor)
    }
}

impl Pages<KeyView> {
    pub(crate) fn new(client: Client, prefix: String) -> Self {
        let namespace = client.settings().namespace.clone();
        Self::start(client, namespace, prefix)
    }

    /// The namespace of the keys.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

impl Pages<String> {
    pub(crate) fn new(client: Client) -> Self {
        Self::start(client, None, String::new())
    }
}

impl Pages<TxnView> {
    pub(crate) fn new(client: Client) -> Self {
        Self::start(client, None, String::new())
    }
}

impl Pages<LeaseView> {
    pub(crate) fn new(client: Client) -> Self {
        let namespace = client.settings().namespace.clone();
        Self::start(client, namespace, String::new())
    }

    /// Only leases of this namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only leases of keys that begin with this; where no namespace is set, it is the beginning of
    /// `namespace/key`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }
}

impl<T> Pages<T> {
    fn start(client: Client, namespace: Option<String>, prefix: String) -> Self {
        let (limit, cursor, item) = (None, Cursor::Start, PhantomData);
        Self { client, namespace, prefix, limit, cursor, item }
    }

    /// How many items a page has at most; the server's choice when not set.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

#[expect(private_bounds, reason = "only what the server lists can be paged through")]
impl<T: Listed + Send + 'static> Pages<T> {
    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// When it cannot be had; the same page can be asked for again.
    pub async fn next_page(&mut self) -> Result<Option<Vec<T>>, Error<ReadKind>> {
        Ok(self.page().await?)
    }

    /// All pages, one item after the other. It ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<T, Error<ReadKind>>> + Send {
        items(self, |pages| Box::pin(pages.page()))
    }

    async fn page(&mut self) -> Result<Option<Vec<T>>, Failed> {
        let Some(cursor) = self.cursor.next() else { return Ok(None) };
        let prefix = Some(self.prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let limit = self.limit.map(|limit| limit.to_string());
        let call = self
            .client
            .call(Method::GET, T::PATH)
            .query_if("namespace", self.namespace.as_deref())
            .query_if("prefix", prefix)
            .query_if("limit", limit.as_deref())
            .query_if("cursor", cursor.as_deref());
        let (items, next) = T::page(self.client.fetch(&call).await?.json()?);
        self.cursor.advance(next)?;
        Ok(Some(items))
    }
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("namespace", &self.namespace)
            .field("prefix", &self.prefix)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}
