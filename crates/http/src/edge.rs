//! State that all requests of a server share: settings, rate limits, memory budget, telemetry, and whether it shuts
//! down.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, Method, header};
use tokio::sync::watch;

use crate::keys::Principal;
use crate::memory_budget::MemoryBudget;
use crate::rate_limiter::RateLimiters;
use crate::refusal::{Dialect, Kind, Refusal};
use crate::settings::Settings;
use crate::telemetry::Telemetry;

/// What the edge must know about the routes it serves.
#[derive(Clone, Copy)]
pub struct RouteRules {
    /// Routes that need no API key and are not traced: probes of an orchestrator.
    pub probes: &'static [&'static str],
    /// Other routes that need no API key.
    pub public: &'static [&'static str],
    /// Routes on which a browser gets a page, which needs no API key. Other clients need one.
    pub pages: &'static [&'static str],
    /// The dialect of errors on a path.
    pub dialect: fn(&str) -> Dialect,
}

/// Whether a request is that of a browser for a page: `GET` with `text/html` among the accepted types.
pub fn wants_page(method: &Method, headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(',')).filter_map(|range| range.split(';').next());
    matches!(*method, Method::GET | Method::HEAD)
        && types.any(|name| name.trim().eq_ignore_ascii_case("text/html"))
}

/// State that all requests of a server share.
pub struct Edge {
    settings: RwLock<Arc<Settings>>,
    rules: RouteRules,
    /// Address that the server listens on.
    pub bound: SocketAddr,
    /// Memory of requests in flight.
    pub memory: Arc<MemoryBudget>,
    /// Log and traces.
    pub telemetry: Arc<Telemetry>,
    rate_limiters: RateLimiters,
    shutting_down: AtomicBool,
    /// Whether responses that are still being sent must end.
    closing: watch::Sender<bool>,
}

impl Edge {
    /// The edge of a server on `bound`.
    pub fn new(settings: Settings, rules: RouteRules, bound: SocketAddr) -> Edge {
        let memory = Arc::new(MemoryBudget::new(settings.max_bodies));
        let telemetry = Arc::new(Telemetry::new(&settings.telemetry));
        let settings = RwLock::new(Arc::new(settings));
        let (rate_limiters, shutting_down) = (RateLimiters::default(), AtomicBool::new(false));
        let closing = watch::Sender::new(false);
        Edge { settings, rules, bound, memory, telemetry, rate_limiters, shutting_down, closing }
    }

    /// The settings as of now.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies other settings. The telemetry and the maximum number of connections stay.
    pub fn reload(&self, settings: Settings) {
        self.memory.set_limit(settings.max_bodies);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Whether a path is a probe of an orchestrator.
    pub fn is_probe(&self, path: &str) -> bool {
        self.rules.probes.contains(&path)
    }

    /// Whether a request needs no API key.
    pub fn is_public(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let is_page = || self.rules.pages.contains(&path) && wants_page(method, headers);
        self.is_probe(path) || self.rules.public.contains(&path) || is_page()
    }

    /// The dialect of errors on a path.
    pub fn dialect(&self, path: &str) -> Dialect {
        (self.rules.dialect)(path)
    }

    /// Charges tokens to the rate limit of a principal.
    pub fn charge(&self, principal: Principal, tokens: usize) -> Result<(), Refusal> {
        self.rate_limiters.charge(principal, tokens).map_err(|seconds| {
            let message = "the key has used up its rate limit of tokens per second";
            Refusal::new(Kind::RateLimited, message).retry_after(seconds)
        })
    }

    /// Charges tokens of work that is done already, even if they overdraw the rate limit.
    pub fn debit(&self, principal: Principal, tokens: usize) {
        self.rate_limiters.debit(principal, tokens);
    }

    /// Returns tokens that were charged for work that was then refused.
    pub fn refund(&self, principal: Principal, tokens: usize) {
        self.rate_limiters.refund(principal, tokens);
    }

    /// From now on responses ask clients to close their connections.
    pub fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Relaxed);
    }

    /// Ends the responses that are still being sent.
    pub(crate) fn close_streams(&self) {
        self.closing.send_replace(true);
    }

    /// Completes when the grace time is nearly over: a response that is still being sent must end now, so that its client
    /// learns why.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closing = self.closing.subscribe();
        async move {
            let _ = closing.wait_for(|closing| *closing).await;
        }
    }

    /// Whether shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use tokio::time::timeout;

    use super::*;
    use crate::keys::TenantId;
    use crate::memory_budget::RequestMemory;

    /// An edge with the probe `/livez`, the public route `/docs`, the page `/`, and the dialect of OpenAI below `/v1`.
    pub(crate) fn edge(settings: Settings) -> Edge {
        let dialect = |path: &str| if path.starts_with("/v1/") { Dialect::OpenAi } else { Dialect::Tei };
        let rules = RouteRules { probes: &["/livez"], public: &["/docs"], pages: &["/"], dialect };
        Edge::new(settings, rules, SocketAddr::from(([127, 0, 0, 1], 80)))
    }

    #[test]
    fn probes_and_public_routes_need_no_key() {
        let edge = edge(Settings::default());
        for (path, probe, public) in [
            ("/livez", true, true),
            ("/docs", false, true),
            ("/embed", false, false),
            ("/livez/", false, false),
            ("/docs/embed", false, false),
            ("/", false, false),
        ] {
            let is_public = edge.is_public(&Method::GET, path, &HeaderMap::new());
            assert_eq!((edge.is_probe(path), is_public), (probe, public), "{path}");
        }
    }

    #[test]
    fn a_page_needs_no_key_where_a_browser_asks_for_it() {
        let edge = edge(Settings::default());
        let is_public = |method: Method, path: &str, accept: &'static str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            edge.is_public(&method, path, &headers)
        };
        for accept in ["text/html", "Text/HTML;q=0.9", "application/xhtml+xml, text/html;q=0.8,*/*"] {
            assert!(is_public(Method::GET, "/", accept) && is_public(Method::HEAD, "/", accept), "{accept}");
            assert!(!is_public(Method::POST, "/", accept), "a request is not a page");
            assert!(!is_public(Method::GET, "/embed", accept), "only pages are");
        }
        for accept in ["*/*", "application/json", "text/*", "text/html5", ""] {
            assert!(!is_public(Method::GET, "/", accept), "{accept}");
        }
    }

    #[test]
    fn a_key_beyond_its_rate_limit_is_told_when_to_retry() {
        let edge = edge(Settings::default());
        let principal = Principal { tenant: TenantId(1), rate: Some(10.0), ..Principal::default() };
        edge.charge(principal, 100).expect("a full bucket may be overdrawn");
        let refusal = edge.charge(principal, 1).expect_err("80 tokens are overdrawn");
        assert_eq!((refusal.kind, refusal.code()), (Kind::RateLimited, "rate_limited"));
        let response = refusal.respond(Dialect::Tei);
        assert_eq!(response.headers()[header::RETRY_AFTER], "8");
        edge.refund(principal, 100);
        edge.charge(principal, 0).expect("refused work costs nothing");
        edge.debit(principal, 1000);
        edge.charge(principal, 1).expect_err("work that is done overdraws the bucket");
    }

    #[test]
    fn reloaded_settings_apply_to_the_next_request() {
        let edge = edge(Settings { max_body: 1, max_bodies: 10, ..Settings::default() });
        assert_eq!((edge.settings().max_body, edge.settings().max_bodies), (1, 10));
        let [one, other] = [1, 1].map(|tenant| RequestMemory::new(&edge.memory, TenantId(tenant)));
        let _held = one.reserve(10).expect("capacity");
        assert!(other.reserve(1).is_err());
        edge.reload(Settings { max_body: 2, max_bodies: 20, ..Settings::default() });
        assert_eq!((edge.settings().max_body, edge.settings().max_bodies), (2, 20));
        assert!(other.reserve(10).is_ok() && other.reserve(11).is_err());
    }

    #[tokio::test]
    async fn responses_end_when_streams_are_closed_and_not_when_shutdown_begins() {
        let edge = edge(Settings::default());
        assert!(!edge.is_shutting_down());
        edge.begin_shutdown();
        assert!(edge.is_shutting_down());
        let mut before = Box::pin(edge.closing());
        let early = timeout(Duration::from_millis(20), &mut before).await;
        assert!(early.is_err(), "requests in flight may finish");
        edge.close_streams();
        for closing in [before, Box::pin(edge.closing())] {
            timeout(Duration::from_secs(20), closing).await.expect("responses must end now");
        }
    }
}
