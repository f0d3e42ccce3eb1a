//! A pipeline with back-pressure: a sink of inputs, and a stream of their results.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use futures_core::Stream;
use futures_sink::Sink;

use crate::core::error::Error;
use crate::tensor::handle::Tensor;
use crate::wait::ready::Ready;

/// A [`Sink`] of inputs and a [`Stream`] of their results. The pipeline submits operations for each input,
/// and yields the results in the order of the inputs.
///
/// The sink accepts an input while fewer than `limit` results are outstanding: submitted, and not taken from
/// the stream. Beyond that the sender waits. `futures::StreamExt::split` makes two halves, which tasks of
/// their own may use. Once the sink is closed, the stream ends after the last result. A submission that is
/// refused, or panics, closes the sink: the sender gets the error, and the reader what was accepted before. A
/// pipeline that is dropped drops its results; their operations run. No half learns that the other one was
/// dropped: a sender without a reader waits once `limit` results are outstanding.
///
/// ```
/// use estafette::{Engine, Pipeline, Produced};
/// use futures::{SinkExt, StreamExt};
///
/// let engine = Engine::builder().workers(2).build()?;
/// let (inputs, results) = Pipeline::new(4, |n: i64| {
///     engine.op("square").produce(move |[]| Ok(Produced::from_vec(vec![n * n], &[1])?))
/// })
/// .split();
/// let numbers = futures::stream::iter((0..100).map(Ok));
/// let sums = results.map(|result| Ok::<_, estafette::Error>(result?.to_vec::<i64>()?[0]));
/// let (sent, squares) = futures::executor::block_on(futures::future::join(
///     numbers.forward(inputs),
///     sums.collect::<Vec<_>>(),
/// ));
/// sent?;
/// assert_eq!(squares.len(), 100);
/// assert_eq!(*squares[99].as_ref().unwrap(), 99 * 99);
/// # Ok::<(), estafette::Error>(())
/// ```
pub struct Pipeline<S> {
    submit: S,
    limit: usize,
    outstanding: VecDeque<(Tensor, Ready)>,
    is_closed: bool,
    /// Waits for room.
    sender: Option<Waker>,
    /// Waits for an input.
    reader: Option<Waker>,
}

impl<S> Pipeline<S> {
    /// A pipeline of what `submit` submits for an input. `submit` returns the result, which need not be
    /// ready, or an error, after which the pipeline takes no more inputs. A sender waits while `limit`
    /// results are outstanding; at least one may be.
    ///
    /// `submit` must not block: `limit` times the operations of an input should be less than the
    /// [limit](crate::engine::EngineBuilder::in_flight_limit) of the engine.
    pub fn new<I>(limit: usize, submit: S) -> Self
    where
        S: FnMut(I) -> Result<Tensor, Error>,
    {
        Self {
            submit,
            limit: limit.max(1),
            outstanding: VecDeque::new(),
            is_closed: false,
            sender: None,
            reader: None,
        }
    }
}

// Nothing of a pipeline is pinned.
impl<S> Unpin for Pipeline<S> {}

impl<S> fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, outstanding, is_closed, .. } = self;
        f.debug_struct("Pipeline")
            .field("limit", limit)
            .field("outstanding", &outstanding.len())
            .field("is_closed", is_closed)
            .finish_non_exhaustive()
    }
}

impl<S, I> Sink<I> for Pipeline<S>
where
    S: FnMut(I) -> Result<Tensor, Error>,
{
    /// The error by which `submit` was refused, which closes the pipeline. The failure of an operation is in
    /// the stream.
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A closed pipeline refuses the input that comes next.
        if self.outstanding.len() < self.limit || self.is_closed {
            return Poll::Ready(Ok(()));
        }
        self.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_send(mut self: Pin<&mut Self>, input: I) -> Result<(), Error> {
        if self.is_closed {
            return Err(Error::invalid("the pipeline is closed"));
        }
        // `forward` sends nothing after an error and does not close, and a sender that panics sends nothing
        // either: the reader would wait for ever. Woken by the drop, the reader finds the pipeline closed
        // where no result was accepted.
        let Self { submit, outstanding, is_closed, reader, .. } = &mut *self;
        let _woken = WakeOnDrop(reader);
        *is_closed = true;
        let result = submit(input)?;
        *is_closed = false;
        let ready = result.ready();
        outstanding.push_back((result, ready));
        Ok(())
    }

    /// At once, as every input is submitted when it is sent.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.is_closed = true;
        wake(&mut self.sender);
        wake(&mut self.reader);
        Poll::Ready(Ok(()))
    }
}

impl<S> Stream for Pipeline<S> {
    /// A result that is ready, or the failure of what should have written it. [`Error::LeaseHeld`] says that
    /// only leases hold up the next result, which comes once they have ended.
    type Item = Result<Tensor, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some((result, front)) = self.outstanding.front_mut() else {
            if self.is_closed {
                return Poll::Ready(None);
            }
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let ended = ready!(Pin::new(&mut *front).poll(cx));
        if let Err(error @ Error::LeaseHeld(_)) = ended {
            *front = result.ready();
            return Poll::Ready(Some(Err(error)));
        }
        let result = self.outstanding.pop_front().map(|(result, _)| ended.map(|()| result));
        wake(&mut self.sender);
        Poll::Ready(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let outstanding = self.outstanding.len();
        (outstanding, self.is_closed.then_some(outstanding))
    }
}

struct WakeOnDrop<'a>(&'a mut Option<Waker>);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        wake(self.0);
    }
}

fn wake(waiting: &mut Option<Waker>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use futures::executor::{LocalPool, block_on};
    use futures::stream::SplitSink;
    use futures::task::LocalSpawnExt;
    use futures::{FutureExt, SinkExt, StreamExt};

    use super::*;
    use crate::engine::Engine;
    use crate::lease::Access;
    use crate::operation::import::Produced;

    #[test]
    fn a_sender_waits_while_the_limit_is_outstanding() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let submit = |n: i64| engine.op("one").produce(move |[]| Ok(Produced::from_vec(vec![n], &[1])?));
        let mut pipeline = Pipeline::new(2, submit);
        for n in 0..2 {
            assert!(pipeline.send(n).now_or_never().is_some());
        }
        assert!(pipeline.feed(2).now_or_never().is_none(), "two results are outstanding");
        let first = block_on(pipeline.next()).unwrap().unwrap();
        assert_eq!(first.to_vec::<i64>().unwrap(), [0]);
        assert!(pipeline.send(2).now_or_never().is_some());
        block_on(SinkExt::<i64>::close(&mut pipeline)).unwrap();
        assert!(matches!(block_on(pipeline.send(3)), Err(Error::Invalid(_))));
        assert_eq!(pipeline.size_hint(), (2, Some(2)));
        let rest: Vec<_> =
            block_on(pipeline.map(|result| result.unwrap().to_vec::<i64>().unwrap()[0]).collect());
        assert_eq!(rest, [1, 2]);
    }

    #[test]
    fn a_failure_takes_the_place_of_its_result_and_a_refusal_reaches_the_sender() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let submit = |n: i64| match n {
            0 => Err(Error::invalid("refused")),
            n => engine.op("odd").produce(move |[]| {
                if n % 2 == 0 { Err("even".into()) } else { Ok(Produced::from_vec(vec![n], &[1])?) }
            }),
        };
        let mut pipeline = Pipeline::new(8, submit);
        for n in 1..4 {
            block_on(pipeline.send(n)).unwrap();
        }
        assert!(block_on(pipeline.send(0)).unwrap_err().to_string().contains("refused"));
        block_on(SinkExt::<i64>::close(&mut pipeline)).unwrap();
        let failed: Vec<_> = block_on(pipeline.map(|result| result.is_err()).collect());
        assert_eq!(failed, [false, true, false]);
    }

    /// The result of a reader that waits once `spoil` has sent what is not accepted.
    fn reads_after<S>(
        pipeline: Pipeline<S>,
        spoil: impl FnOnce(&mut SplitSink<Pipeline<S>, i64>),
    ) -> Vec<Result<Tensor, Error>>
    where
        S: FnMut(i64) -> Result<Tensor, Error> + 'static,
    {
        let (mut inputs, results) = pipeline.split();
        let mut tasks = LocalPool::new();
        let reader = tasks.spawner().spawn_local_with_handle(results.collect::<Vec<_>>()).unwrap();
        tasks.run_until_stalled();
        spoil(&mut inputs);
        tasks.run_until_stalled();
        reader.now_or_never().expect("the reader has been woken, and the stream has ended")
    }

    #[test]
    fn a_refusal_ends_the_stream_after_what_was_accepted() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let submit = {
            let engine = engine.clone();
            move |n: i64| engine.op("n").produce(move |[]| Ok(Produced::from_vec(vec![n], &[1])?))
        };
        let pipeline = Pipeline::new(2, submit);
        let read = reads_after(pipeline, |inputs| {
            block_on(inputs.send(1)).unwrap();
            engine.shutdown_timeout(Duration::from_secs(30));
            assert!(matches!(block_on(inputs.send(2)), Err(Error::Shutdown)));
            let error = block_on(inputs.send(3)).unwrap_err();
            assert!(error.to_string().contains("the pipeline is closed"), "{error}");
        });
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].as_ref().unwrap().to_vec::<i64>().unwrap(), [1]);
    }

    #[test]
    fn a_panic_of_the_submission_ends_the_stream() {
        let pipeline = Pipeline::new(2, |_: i64| panic!("on purpose"));
        let read = reads_after(pipeline, |inputs| {
            let sent = catch_unwind(AssertUnwindSafe(|| block_on(inputs.send(1))));
            assert!(sent.is_err());
        });
        assert!(read.is_empty());
    }

    #[test]
    fn a_result_behind_a_lease_comes_once_the_lease_has_ended() {
        let engine = Engine::builder().workers(1).lease_timeout(Duration::from_millis(50)).build().unwrap();
        let x = engine.from_vec(vec![7_i64], &[1]).unwrap();
        let lease = block_on(x.lease(Access::Write, "the test")).unwrap();
        let mut pipeline = Pipeline::new(2, move |()| {
            let copy = engine.op("copy").reads([&x]);
            copy.produce(|[x]| Ok(Produced::from_vec(x.as_slice::<i64>()?.to_vec(), &[1])?))
        });
        block_on(pipeline.send(())).unwrap();
        assert!(matches!(block_on(pipeline.next()), Some(Err(Error::LeaseHeld(_)))));
        drop(lease);
        assert_eq!(block_on(pipeline.next()).unwrap().unwrap().to_vec::<i64>().unwrap(), [7]);
    }

    #[test]
    fn tasks_of_their_own_send_and_take() {
        let engine = Engine::builder().workers(2).build().unwrap();
        let submit = {
            let engine = engine.clone();
            move |n: i64| engine.op("n").produce(move |[]| Ok(Produced::from_vec(vec![n], &[1])?))
        };
        let (mut inputs, results) = Pipeline::new(3, submit).split();
        let taker = std::thread::spawn(move || {
            block_on(results.map(|result| result.unwrap().to_vec::<i64>().unwrap()[0]).collect::<Vec<_>>())
        });
        for n in 0..1000 {
            block_on(inputs.send(n)).unwrap();
        }
        block_on(inputs.close()).unwrap();
        assert_eq!(taker.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }
}
