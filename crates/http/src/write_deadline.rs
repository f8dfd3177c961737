//! A connection whose client must keep reading: one that accepts too little for too long fails with a timeout.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a client must accept within each limit while more wait for it.
const LEAST: usize = 16 << 10;

/// A stream with a limit on how long writes may stall.
pub(crate) struct WriteDeadline<S> {
    stream: S,
    limit: Duration,
    stall: Option<Stall>,
}

/// Writes that wait for the client since the limit began.
struct Stall {
    timer: Pin<Box<Sleep>>,
    accepted: usize,
}

impl<S> WriteDeadline<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> WriteDeadline<S> {
        WriteDeadline { stream, limit, stall: None }
    }

    /// Counts what a write gave, or fails it where the client accepted too little within the limit.
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
        let limit = self.limit;
        let start = || Stall { timer: Box::pin(sleep(limit)), accepted: 0 };
        let stall = self.stall.get_or_insert_with(start);
        loop {
            ready!(stall.timer.as_mut().poll(context));
            if stall.accepted < LEAST {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            stall.accepted = 0;
            stall.timer.as_mut().reset(Instant::now() + limit);
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
            // All was accepted.
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

    const LIMIT: Duration = Duration::from_millis(20);

    /// Accepts `refill` bytes after each time that it had no room.
    struct Client {
        room: usize,
        refill: usize,
    }

    impl AsyncWrite for Client {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = self.room.min(bytes.len());
            self.room -= taken;
            if taken == 0 {
                self.room = self.refill;
                return Poll::Pending;
            }
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
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
        let mut stream = WriteDeadline::new(Client { room: 64, refill }, LIMIT);
        runtime.block_on(steps(&mut stream));
    }

    fn timed_out(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn a_client_that_accepts_nothing_or_too_little_times_out() {
        for refill in [0, 1, LEAST / 2] {
            run(refill, async |stream| {
                write(stream, 64).await.expect("what there is room for waits for nobody");
                assert!(timed_out(write(stream, 4 * LEAST).await), "{refill}");
            });
        }
        run(0, async |stream| {
            assert!(timed_out(poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await));
        });
    }

    #[test]
    fn a_client_that_accepts_enough_within_each_limit_gets_all() {
        run(LEAST, async |stream| {
            write(stream, 6 * LEAST).await.expect("it takes several limits");
            assert!(stream.stall.is_none(), "the next answer has a limit of its own");
            sleep(2 * LIMIT).await;
            write(stream, 3 * LEAST).await.expect("a pause between answers does not count");
        });
    }
}
