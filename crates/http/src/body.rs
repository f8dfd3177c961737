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
