//! Protection against DNS rebinding: without API keys, only known `Host` names are served. A page of another origin can
//! resolve its own name to the address of this server and would then be same-origin; its `Host` header gives it away.

use std::net::IpAddr;

use axum::http::header;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};

/// Checks that the `Host` header and the authority of the URI name an allowed host: a loopback name or address, the
/// address that the server listens on, or one of `allowed`. Requests without a host are allowed, because browsers always
/// send one. The error is the rejected host.
pub(crate) fn check(bound: IpAddr, allowed: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
    let header =
        headers.get(header::HOST).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let target = uri.authority().map(ToString::to_string);
    match header.into_iter().chain(target).find(|named| !is_allowed(bound, allowed, named)) {
        None => Ok(()),
        Some(named) => Err(named.chars().filter(|letter| !letter.is_control()).take(100).collect()),
    }
}

fn is_allowed(bound: IpAddr, allowed: &[String], named: &str) -> bool {
    if named.is_empty() {
        return true;
    }
    let Ok(authority) = named.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback()
            || address == bound
            || bound.is_unspecified()
            || allowed.iter().any(|allowed| allowed == "*" || allowed == host);
    }
    let host = host.to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || allowed.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(bound: &str, allowed: &[&str], host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a header"));
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        check(bound.parse().expect("an address"), &allowed, &Uri::from_static("/embed"), &headers).is_ok()
    }

    #[test]
    fn only_loopback_the_bound_address_and_allowed_names_are_served() {
        for host in
            ["localhost", "LOCALHOST:8080", "a.localhost", "127.0.0.1:80", "[::1]:80", "127.3.2.1", ""]
        {
            assert!(named("127.0.0.1", &[], host), "{host}");
        }
        let others =
            ["evil.example", "localhost.evil.example", "evillocalhost", "10.0.0.7", "a@b@c", "0.0.0.0", "é"];
        for host in others {
            assert!(!named("127.0.0.1", &[], host), "{host}");
        }
        assert!(named("10.0.0.7", &[], "10.0.0.7:8080") && !named("10.0.0.7", &[], "10.0.0.8:8080"));
        assert!(named("0.0.0.0", &[], "10.0.0.8:8080") && !named("0.0.0.0", &[], "sconce:8080"));
        assert!(
            named("0.0.0.0", &["sconce"], "Sconce:8080") && !named("0.0.0.0", &["sconce"], "sconce.evil")
        );
        assert!(named("0.0.0.0", &["*"], "evil.example"));
        assert!(named("127.0.0.1", &["evil.example"], "evil.example."));
        assert!(
            named("127.0.0.1", &["*"], "10.0.0.7") && named("127.0.0.1", &["::2", "10.0.0.7"], "10.0.0.7:80")
        );
        assert!(named("127.0.0.1", &["::2"], "[::2]:80") && !named("127.0.0.1", &["::2"], "10.0.0.7"));
    }

    #[test]
    fn a_target_with_a_host_is_checked_too_and_a_request_without_any_is_served() {
        let bound = "127.0.0.1".parse().expect("an address");
        let mut headers = HeaderMap::new();
        assert_eq!(check(bound, &[], &Uri::from_static("/embed"), &headers), Ok(()));
        headers.insert(header::HOST, "localhost".parse().expect("a header"));
        let refused = check(bound, &[], &Uri::from_static("http://evil.example/embed"), &headers);
        assert_eq!(refused, Err("evil.example".to_owned()));
    }
}
