//! Listings of queues and of messages, page by page. As with all listings, a page whose future was
//! dropped is simply asked for again.

use futures_util::Stream;
use http::Method;
use lockd_wire::path;
use lockd_wire::queue::{MessageView, PeekReply, PeekRequest, QueueRequest, QueuesReply};

use super::Queue;
use crate::client::Client;
use crate::error::{Error, Failed, ReadKind};
use crate::listing::{Cursor, items};

/// Messages as one who only looks sees them, read page by page.
#[derive(Debug)]
pub struct MessagePages {
    queue: Queue,
    path: &'static str,
    limit: Option<u32>,
    cursor: Cursor,
}

impl MessagePages {
    pub(super) fn new(queue: Queue, path: &'static str) -> Self {
        Self { queue, path, limit: None, cursor: Cursor::Start }
    }

    /// How many messages a page has at most; the server's choice when not set.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// When it cannot be had; the same page can be asked for again.
    pub async fn next_page(&mut self) -> Result<Option<Vec<MessageView>>, Error<ReadKind>> {
        Ok(self.page().await?)
    }

    /// All pages, one message after the other. It ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<MessageView, Error<ReadKind>>> + Send {
        items(self, |pages| Box::pin(pages.page()))
    }

    async fn page(&mut self) -> Result<Option<Vec<MessageView>>, Failed> {
        let Some(cursor) = self.cursor.next() else { return Ok(None) };
        let QueueRequest { namespace, queue } = self.queue.request();
        let limit = self.limit.map(u64::from);
        let request = PeekRequest { namespace, queue, limit, cursor };
        let call = self.queue.call(self.path).json(&request)?;
        let reply: PeekReply = self.queue.client.fetch(&call).await?.json()?;
        self.cursor.advance(reply.next_cursor)?;
        Ok(Some(reply.messages))
    }
}

/// Names of queues in order, read page by page.
#[derive(Debug)]
pub struct QueuePages {
    client: Client,
    namespace: Option<String>,
    limit: Option<u32>,
    cursor: Cursor,
}

impl QueuePages {
    pub(crate) fn new(client: Client) -> Self {
        let namespace = client.settings().namespace.clone();
        Self { client, namespace, limit: None, cursor: Cursor::Start }
    }

    /// The namespace of the queues; the client's when not set.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How many names a page has at most; the server's choice when not set.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// When it cannot be had; the same page can be asked for again.
    pub async fn next_page(&mut self) -> Result<Option<Vec<String>>, Error<ReadKind>> {
        Ok(self.page().await?)
    }

    /// All pages, one name after the other. It ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<String, Error<ReadKind>>> + Send {
        items(self, |pages| Box::pin(pages.page()))
    }

    async fn page(&mut self) -> Result<Option<Vec<String>>, Failed> {
        let Some(cursor) = self.cursor.next() else { return Ok(None) };
        let limit = self.limit.map(|limit| limit.to_string());
        let call = self
            .client
            .call(Method::GET, path::QUEUES)
            .query_if("namespace", self.namespace.as_deref())
            .query_if("limit", limit.as_deref())
            .query_if("cursor", cursor.as_deref());
        let reply: QueuesReply = self.client.fetch(&call).await?.json()?;
        self.cursor.advance(reply.next_cursor)?;
        Ok(Some(reply.queues))
    }
}
