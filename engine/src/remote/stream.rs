//! Tensors that come over a link, as a stream of `futures`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::{Link, this_line};
use crate::core::error::Error;
use crate::lease::CallSite;
use crate::tensor::handle::Tensor;

/// A [`Link::receive`] that has begun.
type Receiving<'a> = Pin<Box<dyn Future<Output = Result<Option<Tensor>, Error>> + Send + 'a>>;

struct Tensors<'a> {
    link: &'a Link,
    site: Option<CallSite>,
    next: Option<Receiving<'a>>,
    is_over: bool,
}

impl Link {
    /// The tensors of the other process, as [`receive`](Self::receive) returns them. The stream ends once
    /// that process has closed the link in good order, and after an error.
    #[track_caller]
    pub fn stream(&self) -> impl Stream<Item = Result<Tensor, Error>> + Send + Unpin + use<'_> {
        Tensors { link: self, site: this_line(), next: None, is_over: false }
    }
}

impl Stream for Tensors<'_> {
    type Item = Result<Tensor, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Self { link, site, next, .. } = &mut *self;
        let receiving = next.get_or_insert_with(|| Box::pin(link.receive_at(site.clone())));
        let received = ready!(receiving.as_mut().poll(context));
        self.next = None;
        self.is_over = !matches!(received, Ok(Some(_)));
        Poll::Ready(received.transpose())
    }
}
