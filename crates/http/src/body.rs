//! Reads request bodies within limits.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use crate::memory_budget::{RequestMemory, Reservation};
use crate::refusal::{Kind, Refusal};
use crate::settings::Settings;

/// Maximum bytes of an unused body that is drained to keep its connection alive.
const MAX_DRAINED: u64 = 64 << 10;
/// Timeout for draining.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Drains a short body. Returns whether it was read to its end.
pub async fn drain(headers: &HeaderMap, mut body: Body) -> bool {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_none_or(|bytes: u64| bytes > MAX_DRAINED) {
        return body.is_end_stream();
    }
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::time::timeout(DRAIN_TIMEOUT, reading).await.is_ok() && body.is_end_stream()
}

/// Reads the whole body and returns it with its memory reservation.
pub async fn read(
    settings: &Settings,
    memory: &RequestMemory,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<u8>, Reservation), Refusal> {
    let limit = settings.max_body;
    let too_large = || Refusal::new(Kind::TooLarge, format!("the body exceeds the limit of {limit} bytes"));
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(Refusal::new(
            Kind::Encoding,
            "unsupported `content-encoding`: send the body uncompressed",
        ));
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(too_large());
    }
    let reading = async {
        let (mut bytes, mut reservation, mut body) = (Vec::new(), memory.reserve_none(), body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::new(Kind::Syntax, "the body is incomplete"))?;
            let Ok(piece) = frame.into_data() else { continue };
            if bytes.len() + piece.len() > limit {
                return Err(too_large());
            }
            reservation.grow(piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, reservation))
    };
    let timeout = settings.read_limit;
    tokio::time::timeout(timeout, reading).await.unwrap_or_else(|_| {
        let message = format!("reading the body timed out after {} s", timeout.as_secs_f64());
        Err(Refusal::new(Kind::Syntax, message))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use hyper::body::{Bytes, Frame};

    use super::*;
    use crate::keys::TenantId;
    use crate::memory_budget::MemoryBudget;

    /// How a body ends.
    #[derive(Clone, Copy, PartialEq)]
    enum End {
        Complete,
        Broken,
        Stalled,
    }

    /// A body that arrives in pieces.
    struct Pieces(VecDeque<Frame<Bytes>>, End);

    impl hyper::body::Body for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            match (self.0.pop_front(), self.1) {
                (Some(piece), _) => Poll::Ready(Some(Ok(piece))),
                (None, End::Complete) => Poll::Ready(None),
                (None, End::Broken) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
                (None, End::Stalled) => Poll::Pending,
            }
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty() && self.1 == End::Complete
        }
    }

    fn pieces<const N: usize>(pieces: [&'static str; N], end: End) -> Body {
        Body::new(Pieces(pieces.map(|piece| Frame::data(piece.into())).into(), end))
    }

    fn announcing(length: usize) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, length.into())])
    }

    /// Reads a body of at most 4 bytes.
    async fn read_4(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Kind> {
        let settings = Settings { max_body: 4, read_limit: Duration::from_millis(20), ..Settings::default() };
        let memory = RequestMemory::new(&Arc::new(MemoryBudget::new(100)), TenantId(1));
        let read = read(&settings, &memory, headers, body).await;
        read.map(|(bytes, _)| bytes).map_err(|refusal| refusal.kind)
    }

    #[tokio::test]
    async fn a_body_is_read_whole_and_holds_its_memory() {
        let budget = Arc::new(MemoryBudget::new(10));
        let [memory, other] = [1, 1].map(|tenant| RequestMemory::new(&budget, TenantId(tenant)));
        let [first, empty, second] = ["ab", "", "cde"].map(|piece| Frame::data(piece.into()));
        let frames = [first, empty, second, Frame::trailers(HeaderMap::new())];
        let body = Body::new(Pieces(frames.into(), End::Complete));
        let read = read(&Settings::default(), &memory, &HeaderMap::new(), body).await;
        let (bytes, reservation) = read.expect("a body");
        assert_eq!(bytes, b"abcde");
        assert!(other.reserve(6).is_err() && other.reserve(5).is_ok());
        drop(reservation);
        assert!(other.reserve(10).is_ok());
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_read_and_a_larger_one_is_refused() {
        for headers in [HeaderMap::new(), announcing(4)] {
            let body = pieces(["abc", "d"], End::Complete);
            assert_eq!(read_4(&headers, body).await, Ok(b"abcd".to_vec()));
            for body in [pieces(["abc", "de"], End::Stalled), pieces(["abcde"], End::Stalled)] {
                assert_eq!(read_4(&headers, body).await, Err(Kind::TooLarge));
            }
        }
        assert_eq!(read_4(&announcing(2), Body::from("ab")).await, Ok(b"ab".to_vec()));
        let waiting = pieces([], End::Stalled);
        assert_eq!(read_4(&announcing(5), waiting).await, Err(Kind::TooLarge), "before it is sent");
    }

    #[tokio::test]
    async fn a_body_beyond_the_memory_budget_is_refused() {
        let budget = Arc::new(MemoryBudget::new(10));
        let [memory, other] = [1, 1].map(|tenant| RequestMemory::new(&budget, TenantId(tenant)));
        let _held = other.reserve(6).expect("capacity");
        let body = pieces(["abc", "de"], End::Complete);
        let read = read(&Settings::default(), &memory, &HeaderMap::new(), body).await;
        assert_eq!(read.err().map(|refusal| refusal.kind), Some(Kind::Overloaded));
        assert!(other.reserve(4).is_ok(), "the bytes that were read are released");
    }

    #[tokio::test]
    async fn a_compressed_body_is_refused() {
        for (encoding, expected) in
            [("identity", Ok(b"ab".to_vec())), ("gzip", Err(Kind::Encoding)), ("", Err(Kind::Encoding))]
        {
            let encoding = encoding.parse().expect("a header");
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, encoding)]);
            assert_eq!(read_4(&headers, Body::from("ab")).await, expected);
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_or_stalls_is_refused() {
        let headers = announcing(3);
        assert_eq!(read_4(&headers, pieces(["ab"], End::Broken)).await, Err(Kind::Syntax));
        assert_eq!(read_4(&headers, pieces(["ab"], End::Stalled)).await, Err(Kind::Syntax));
    }

    #[tokio::test]
    async fn an_unused_body_is_drained_if_it_is_short_and_arrives() {
        assert!(drain(&HeaderMap::new(), Body::empty()).await);
        for length in [0, 3, 64 << 10] {
            assert!(drain(&announcing(length), Body::from(vec![0; length])).await, "{length}");
        }
        let long = (64 << 10) + 1;
        assert!(!drain(&announcing(long), Body::from(vec![0; long])).await, "it is too long");
        assert!(!drain(&HeaderMap::new(), Body::from("abc")).await, "its length is unknown");
        assert!(!drain(&announcing(3), pieces(["ab"], End::Broken)).await, "it breaks off");
        assert!(!drain(&announcing(3), pieces(["ab"], End::Stalled)).await, "it stalls");
    }
}
