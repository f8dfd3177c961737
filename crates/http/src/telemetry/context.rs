//! W3C trace context of requests: `traceparent` in and out.

use axum::http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::SpanContext;
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// The caller's context. It is empty if the request has no valid `traceparent`.
pub(crate) fn parent(headers: &HeaderMap) -> Context {
    let mut values = headers.get_all("traceparent").iter();
    match (values.next(), values.next()) {
        (Some(only), None) if is_well_formed(only.as_bytes()) => {
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers))
        }
        _ => Context::new(),
    }
}

/// The header of the response: the request's own span.
pub(crate) fn traceparent(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags())
}

/// Whether lengths and digits are those of the format. The propagator accepts ids of any length.
fn is_well_formed(value: &[u8]) -> bool {
    let has_form = |(at, byte): (usize, &u8)| match at {
        2 | 35 | 52 | 55 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    value.len() >= 55 && value.iter().take(56).enumerate().all(has_form)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span, TraceContextExt, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    /// The spans of the caller and of the request.
    fn of(values: &[&str]) -> (SpanContext, SpanContext) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("traceparent", value.parse().expect("a header"));
        }
        let parent = parent(&headers);
        let span = SdkTracerProvider::default().tracer("test").start_with_context("request", &parent);
        (parent.span().span_context().clone(), span.span_context().clone())
    }

    #[test]
    fn a_caller_is_followed() {
        for (flags, sampled) in [("01", true), ("00", false), ("03", true)] {
            let (parent, span) = of(&[&format!("00-{TRACE}-{SPAN}-{flags}")]);
            assert_eq!(span.trace_id().to_string(), TRACE);
            assert_eq!((parent.span_id().to_string().as_str(), span.is_sampled()), (SPAN, sampled));
            let own = span.span_id().to_string();
            assert_ne!(own, SPAN);
            assert_eq!(traceparent(&span), format!("00-{TRACE}-{own}-{:02x}", u8::from(sampled)));
        }
        assert_eq!(of(&[&format!("cc-{TRACE}-{SPAN}-01-what-comes-later")]).1.trace_id().to_string(), TRACE);
    }

    #[test]
    fn what_can_not_be_read_begins_a_trace_of_its_own() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        for bad in [
            "",
            "00",
            "00-1-2-01",
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{TRACE}-{SPAN}-1"),
            &format!("00-{TRACE}{SPAN}-01"),
        ] {
            let (parent, span) = of(&[bad]);
            let trace = span.trace_id().to_string();
            assert!(!parent.is_valid() && span.is_valid() && span.is_sampled() && trace != TRACE, "{bad}");
        }
        assert!(!of(&[&good, &good]).0.is_valid(), "two of them say nothing");
        assert_ne!(of(&[]).1.trace_id(), of(&[]).1.trace_id());
    }
}
