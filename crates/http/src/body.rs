//! A request's body, read piece by piece within its limits.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use crate::memory_budget::{RequestMemory, Reservation};
use crate::refusal::{Kind, Refusal};
use crate::settings::Settings;

/// Bytes of a body that is read though nobody wants it, and how long it may take: its connection can be used again.
const DRAINED: u64 = 64 << 10;
const SOON: Duration = Duration::from_secs(1);

/// Reads a short body and forgets it; whether it was read to its end.
pub async fn drain(headers: &HeaderMap, mut body: Body) -> bool {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_none_or(|bytes: u64| bytes > DRAINED) {
        return body.is_end_stream();
    }
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::time::timeout(SOON, reading).await.is_ok() && body.is_end_stream()
}

/// The whole body, and the memory that is reserved for it.
pub async fn read(
    settings: &Settings,
    memory: &RequestMemory,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<u8>, Reservation), Refusal> {
    let most = settings.max_body;
    let too_large = || Refusal::new(Kind::TooLarge, format!("a body has at most {most} bytes"));
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(Refusal::new(Kind::Encoding, "bodies are read as they are: send no `content-encoding`"));
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > most as u64) {
        return Err(too_large());
    }
    let reading = async {
        let (mut bytes, mut reservation, mut body) = (Vec::new(), memory.reserve_none(), body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::new(Kind::Syntax, "the body ended early"))?;
            let Ok(piece) = frame.into_data() else { continue };
            if bytes.len() + piece.len() > most {
                return Err(too_large());
            }
            reservation.grow(piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, reservation))
    };
    let limit = settings.read_limit;
    tokio::time::timeout(limit, reading).await.unwrap_or_else(|_| {
        let message = format!("the body did not come within {} s", limit.as_secs_f64());
        Err(Refusal::new(Kind::Syntax, message))
    })
}
