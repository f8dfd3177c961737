//! A write timeout: a connection whose client reads too slowly fails.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Minimum bytes that a client must accept within each interval of the timeout.
const MIN_PROGRESS: usize = 16 << 10;

/// A stream with a timeout for stalled writes.
pub(crate) struct WriteDeadline<S> {
    stream: S,
    timeout: Duration,
    stall: Option<Stall>,
}

/// A stalled write.
struct Stall {
    timer: Pin<Box<Sleep>>,
    /// Bytes that the client accepted in this interval.
    accepted: usize,
}

impl<S> WriteDeadline<S> {
    pub(crate) fn new(stream: S, timeout: Duration) -> WriteDeadline<S> {
        WriteDeadline { stream, timeout, stall: None }
    }

    /// Counts accepted bytes. Fails a pending write if the client accepted too little within the timeout.
    fn check(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let (Some(stall), Ok(bytes)) = (&mut self.stall, &written) {
                stall.accepted += bytes;
            }
            return Poll::Ready(written);
        }
        let timeout = self.timeout;
        let start = || Stall { timer: Box::pin(sleep(timeout)), accepted: 0 };
        let stall = self.stall.get_or_insert_with(start);
        loop {
            ready!(stall.timer.as_mut().poll(context));
            if stall.accepted < MIN_PROGRESS {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            stall.accepted = 0;
            stall.timer.as_mut().reset(Instant::now() + timeout);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            // The client accepted all bytes.
            self.stall = None;
            return flushed;
        }
        self.check(context, Poll::Pending).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        if shut.is_ready() {
            return shut;
        }
        self.check(context, Poll::Pending).map_ok(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(20);

    /// Accepts `refill` bytes after each stall, and sends `ping`.
    struct Client {
        window: usize,
        refill: usize,
        /// Whether a flush and a shutdown complete.
        flushes: bool,
        vectored: bool,
    }

    impl AsyncRead for Client {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            buffer.put_slice(b"ping");
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Client {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = self.window.min(bytes.len());
            self.window -= taken;
            if taken == 0 {
                self.window = self.refill;
                return Poll::Pending;
            }
            Poll::Ready(Ok(taken))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            slices: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            self.poll_write(context, &bytes)
        }

        fn is_write_vectored(&self) -> bool {
            self.vectored
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.flushes { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush(context)
        }
    }

    async fn write(stream: &mut WriteDeadline<Client>, mut bytes: usize) -> io::Result<()> {
        while bytes > 0 {
            let piece = vec![0; bytes];
            bytes -= poll_fn(|context| Pin::new(&mut *stream).poll_write(context, &piece)).await?;
        }
        poll_fn(|context| Pin::new(&mut *stream).poll_flush(context)).await
    }

    fn run(refill: usize, steps: impl AsyncFnOnce(&mut WriteDeadline<Client>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let mut stream =
            WriteDeadline::new(Client { window: 64, refill, flushes: true, vectored: true }, TIMEOUT);
        runtime.block_on(steps(&mut stream));
    }

    fn timed_out(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn a_client_that_accepts_nothing_or_too_little_times_out() {
        for refill in [0, 1, MIN_PROGRESS / 2] {
            run(refill, async |stream| {
                write(stream, 64).await.expect("the first bytes fit into the window");
                assert!(timed_out(write(stream, 4 * MIN_PROGRESS).await), "{refill}");
            });
        }
    }

    #[test]
    fn a_flush_and_a_shutdown_that_stall_time_out() {
        type Poller = fn(Pin<&mut WriteDeadline<Client>>, &mut Context<'_>) -> Poll<io::Result<()>>;
        let (flush, shutdown): (Poller, Poller) = (AsyncWrite::poll_flush, AsyncWrite::poll_shutdown);
        for poll in [flush, shutdown] {
            run(0, async |stream| {
                let end = async |stream: &mut WriteDeadline<Client>| {
                    poll_fn(|context| poll(Pin::new(&mut *stream), context)).await
                };
                end(stream).await.expect("nothing is buffered");
                stream.stream.flushes = false;
                assert!(timed_out(end(stream).await));
            });
        }
    }

    #[test]
    fn vectored_writes_have_the_same_timeout() {
        run(0, async |stream| {
            assert!(stream.is_write_vectored());
            let slices = [io::IoSlice::new(&[0; 60]), io::IoSlice::new(&[0; 60])];
            let mut write = async || {
                poll_fn(|context| Pin::new(&mut *stream).poll_write_vectored(context, &slices)).await
            };
            assert_eq!(write().await.expect("the window is open"), 64);
            assert!(timed_out(write().await.map(drop)));
            stream.stream.vectored = false;
            assert!(!stream.is_write_vectored(), "as the stream");
        });
    }

    #[test]
    fn a_client_that_does_not_read_may_still_send() {
        run(0, async |stream| {
            write(stream, 64).await.expect("the first bytes fit into the window");
            assert!(timed_out(write(stream, 1).await));
            let mut bytes = [0; 8];
            let mut buffer = ReadBuf::new(&mut bytes);
            poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer)).await.expect("bytes");
            assert_eq!(buffer.filled(), b"ping");
        });
    }

    #[test]
    fn a_client_that_accepts_enough_within_each_interval_gets_all() {
        run(MIN_PROGRESS, async |stream| {
            write(stream, 6 * MIN_PROGRESS).await.expect("it takes several intervals");
            assert!(stream.stall.is_none(), "the next response has its own timeout");
            sleep(2 * TIMEOUT).await;
            write(stream, 3 * MIN_PROGRESS).await.expect("a pause between responses does not count");
        });
    }
}
