//! HTTP requests to the hub. The token is sent to the endpoint only, not to redirect targets.

use std::io::Read;

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use ureq::tls::TlsConfig;

use super::cache::Repository;
use super::config::Hub;
use super::error::HubError;
use super::listing::Listing;
use super::names::encode;
use crate::http::tls;

/// Size limit of a file list in bytes.
const MAX_LIST_BYTES: u64 = 32 << 20;
const MAX_REDIRECTS: usize = 8;

/// Client of one repository.
pub(super) struct Client<'a> {
    hub: &'a Hub,
    repository: &'a Repository,
    /// Has no token: it would forward it to other hosts.
    api: ApiRepo,
    tls: TlsConfig,
}

/// A successful response.
pub(super) struct Response {
    /// HTTP status.
    pub(super) status: u16,
    /// `ETag` from the endpoint.
    pub(super) etag: Option<String>,
    /// Offset of the first byte of `body`.
    pub(super) start: u64,
    /// Size of the file in bytes, if reported.
    pub(super) total: Option<u64>,
    /// The content.
    pub(super) body: Box<dyn Read>,
}

impl<'a> Client<'a> {
    pub(super) fn new(hub: &'a Hub, repository: &'a Repository) -> Result<Client<'a>, HubError> {
        if origin(&hub.endpoint).is_none() {
            return Err(HubError::BadEndpoint { endpoint: hub.endpoint.clone() });
        }
        if hub.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(HubError::BadToken);
        }
        let api = ApiBuilder::from_cache(Cache::new(hub.cache.clone()))
            .with_token(None)
            .with_endpoint(hub.endpoint.clone())
            .with_user_agent("sconce", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|source| HubError::Unreachable { endpoint: hub.endpoint.clone(), source })?;
        let repo = Repo::with_revision(repository.id.clone(), RepoType::Model, repository.revision.clone());
        Ok(Client { hub, repository, api: api.repo(repo), tls: tls() })
    }

    /// Lists the files of the repository.
    pub(super) fn list(&self) -> Result<Listing, HubError> {
        let Client { hub, repository, .. } = self;
        let revision = repository.revision.replace('/', "%2F");
        let address = format!("{}/api/models/{}/revision/{revision}?blobs=true", hub.endpoint, repository.id);
        let response = self.get(&address, None, None)?;
        let mut json = Vec::new();
        response
            .body
            .take(MAX_LIST_BYTES)
            .read_to_end(&mut json)
            .map_err(|error| self.unreachable(ApiError::from(error)))?;
        Listing::parse(&repository.id, &json)
    }

    /// Requests a byte range of a file at a commit.
    pub(super) fn file(&self, name: &str, commit: &str, range: &str) -> Result<Response, HubError> {
        let address =
            format!("{}/{}/resolve/{commit}/{}", self.hub.endpoint, self.repository.id, encode(name));
        self.get(&address, Some(name), Some(range))
    }

    /// Follows redirects itself, to check each target before connecting.
    fn get(&self, address: &str, file: Option<&str>, range: Option<&str>) -> Result<Response, HubError> {
        let mut address = address.to_owned();
        let mut etag = None;
        for _ in 0..MAX_REDIRECTS {
            let is_endpoint = origin(&address) == origin(&self.hub.endpoint);
            let mut request =
                self.api.info_request().uri(address.as_str()).header("Accept-Encoding", "identity");
            if let Some(token) = self.hub.token.as_ref().filter(|_| is_endpoint) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            let timeout = Some(self.hub.timeout);
            let response = request
                .config()
                .tls_config(self.tls.clone())
                .max_redirects(0)
                .http_status_as_error(false)
                .timeout_resolve(timeout)
                .timeout_connect(timeout)
                .timeout_recv_response(timeout)
                .timeout_per_read(timeout)
                .build()
                .call()
                .map_err(|error| self.unreachable(ApiError::from(Box::new(error))))?;
            let header = |name: &str| {
                response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
            };
            if is_endpoint && etag.is_none() {
                etag = header("x-linked-etag").or_else(|| header("etag")).map(|etag| clean(&etag));
            }
            let status = response.status().as_u16();
            let location = header("location").filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            if let Some(location) = location {
                address = redirect(&address, &location)
                    .ok_or(HubError::Hostile { what: "redirect", value: location })?;
                continue;
            }
            if !matches!(status, 200 | 206 | 416) {
                return Err(self.error(status, file, is_endpoint));
            }
            let (start, total) = match header("content-range") {
                Some(range) => parse_content_range(&range),
                None if status == 200 => (0, header("content-length").and_then(|length| length.parse().ok())),
                None => (0, None),
            };
            let body = Box::new(response.into_body().into_reader());
            return Ok(Response { status, etag, start, total, body });
        }
        Err(HubError::Hostile { what: "endless chain of redirects", value: address })
    }

    /// The error of a status. Only the endpoint's statuses tell whether a model exists and is accessible.
    fn error(&self, status: u16, file: Option<&str>, is_endpoint: bool) -> HubError {
        let (id, endpoint) = (self.repository.id.clone(), self.hub.endpoint.clone());
        match (status, file) {
            _ if !is_endpoint => HubError::Status { id, status },
            (401 | 403, _) => HubError::Forbidden { id, endpoint, status },
            (404, Some(file)) => HubError::Corrupt { file: file.to_owned(), what: "it is not there".into() },
            (404, None) => HubError::NotFound { id, revision: self.repository.revision.clone(), endpoint },
            _ => HubError::Status { id, status },
        }
    }

    fn unreachable(&self, source: ApiError) -> HubError {
        HubError::Unreachable { endpoint: self.hub.endpoint.clone(), source }
    }
}

/// `https://host:port` of a URL.
fn origin(address: &str) -> Option<&str> {
    let scheme = ["https://", "http://"].into_iter().find(|scheme| address.starts_with(scheme))?;
    let rest = &address[scheme.len()..];
    let length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    (length > 0).then(|| &address[..scheme.len() + length])
}

/// The target of a redirect. `None` for a downgrade from HTTPS and for an invalid URL.
fn redirect(from: &str, location: &str) -> Option<String> {
    if location.starts_with("//") {
        let (scheme, _) = from.split_once("//")?;
        return redirect(from, &format!("{scheme}{location}"));
    }
    if location.starts_with('/') {
        return Some(format!("{}{location}", origin(from)?));
    }
    origin(location)?;
    let is_downgrade = from.starts_with("https://") && !location.starts_with("https://");
    (!is_downgrade).then(|| location.to_owned())
}

/// An `ETag` without quotes and weak prefix.
fn clean(etag: &str) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// Offset and total size of a `Content-Range`: `bytes 5-9/10`, `bytes */10`.
fn parse_content_range(text: &str) -> (u64, Option<u64>) {
    let rest = text.trim_start_matches("bytes").trim();
    let (range, total) = rest.split_once('/').unwrap_or((rest, ""));
    let start = range.split_once('-').and_then(|(start, _)| start.parse().ok()).unwrap_or(0);
    (start, total.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port_and_nothing_else() {
        assert_eq!(origin("https://a.b:1/c?d"), Some("https://a.b:1"));
        assert_eq!(origin("http://a"), Some("http://a"));
        for address in ["", "a.b", "ftp://a", "https://", "https:///x", "//a/b"] {
            assert_eq!(origin(address), None, "{address}");
        }
    }

    #[test]
    fn an_address_that_looks_like_the_endpoint_is_another_origin() {
        let endpoint = origin("https://hub.example");
        for address in [
            "https://hub.example@evil.example/x",
            "https://hub.example.evil.example/x",
            "https://hub.example:444/x",
            "http://hub.example/x",
            "https://hub.example\\@evil.example/x",
        ] {
            assert_ne!(origin(address), endpoint, "{address}");
        }
    }

    #[test]
    fn a_redirect_stays_on_its_host_or_names_another_and_keeps_encryption() {
        let from = "https://hub.example/a/b?c";
        assert_eq!(redirect(from, "/x?y").as_deref(), Some("https://hub.example/x?y"));
        assert_eq!(redirect(from, "https://cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        assert_eq!(redirect(from, "//cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        for location in ["http://cdn.example/x", "//", "///x", "file:///etc/passwd", "x", ""] {
            assert_eq!(redirect(from, location), None, "{location}");
        }
    }

    #[test]
    fn content_ranges_are_read_and_broken_ones_say_nothing() {
        assert_eq!(parse_content_range("bytes 5-9/10"), (5, Some(10)));
        assert_eq!(parse_content_range("bytes */10"), (0, Some(10)));
        assert_eq!(parse_content_range("bytes 5-9/*"), (5, None));
        for text in ["", "bytes", "/", "bytes -/-", "bytes 99999999999999999999-1/x"] {
            assert_eq!(parse_content_range(text), (0, None), "{text}");
        }
    }

    #[test]
    fn an_etag_is_freed_of_quotes() {
        assert_eq!(clean(r#""abc""#), "abc");
        assert_eq!(clean(r#"W/"abc""#), "abc");
    }
}
