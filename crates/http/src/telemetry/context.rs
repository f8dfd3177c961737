//! Where a request stands in its caller's trace: W3C's `traceparent`, in and out.

use std::hash::{BuildHasher, Hasher, RandomState};

use axum::http::HeaderMap;

/// Where a request stands in a trace: in its caller's, or at the root of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    trace: u128,
    /// The request's own span.
    pub(crate) span: u64,
    /// The caller's span.
    pub(crate) parent: Option<u64>,
    /// Whether its spans are kept: as the caller says, and always where there is none.
    pub(crate) sampled: bool,
}

impl Context {
    /// The place that the headers name; what can't be read counts as not said.
    pub(crate) fn of(headers: &HeaderMap) -> Context {
        let mut all = headers.get_all("traceparent").iter();
        let said = match (all.next(), all.next()) {
            (Some(only), None) => only.to_str().ok().and_then(read),
            _ => None,
        };
        let span = random();
        if let Some((trace, parent, sampled)) = said {
            return Context { trace, span, parent: Some(parent), sampled };
        }
        let trace = u128::from(random()) << 64 | u128::from(random());
        Context { trace, span, parent: None, sampled: true }
    }

    /// What the answer carries: the request's own span.
    pub(crate) fn header(&self) -> String {
        format!("00-{}-{:016x}-{:02x}", self.trace(), self.span, u8::from(self.sampled))
    }

    /// The trace's name.
    pub(crate) fn trace(&self) -> String {
        format!("{:032x}", self.trace)
    }
}

/// A number that is not zero and that nobody can tell beforehand.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

/// The trace, the caller's span, and whether it is kept.
fn read(text: &str) -> Option<(u128, u64, bool)> {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = parts.get(..4)?.try_into().ok()?;
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_known = version == "00" && parts.len() == 4;
    // What a later version adds stands after what this one has.
    let is_later = hex(version, 2) && version != "00" && version != "ff";
    if !(is_known || is_later) || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    (trace != 0 && span != 0).then_some((trace, span, sampled))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn of(values: &[&str]) -> Context {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("traceparent", value.parse().expect("a header"));
        }
        Context::of(&headers)
    }

    #[test]
    fn a_caller_is_followed() {
        for (flags, sampled) in [("01", true), ("00", false), ("03", true)] {
            let context = of(&[&format!("00-{TRACE}-{SPAN}-{flags}")]);
            assert_eq!(context.trace(), TRACE);
            assert_eq!((context.parent, context.sampled), (Some(0x00f0_67aa_0ba9_02b7), sampled));
            let own = format!("{:016x}", context.span);
            assert_ne!(own, SPAN);
            assert_eq!(context.header(), format!("00-{TRACE}-{own}-{:02x}", u8::from(sampled)));
        }
        assert_eq!(of(&[&format!("cc-{TRACE}-{SPAN}-01-what-comes-later")]).trace(), TRACE);
    }

    #[test]
    fn what_can_not_be_read_begins_a_trace_of_its_own() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        for bad in [
            "",
            "00",
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{TRACE}-{SPAN}-1"),
            &format!("00-{TRACE}{SPAN}-01"),
        ] {
            let context = of(&[bad]);
            assert!(context.parent.is_none() && context.sampled && context.trace() != TRACE, "{bad}");
        }
        assert!(of(&[&good, &good]).parent.is_none(), "two of them say nothing");
        assert_ne!(of(&[]).trace(), of(&[]).trace());
    }
}
