//! The console: self-contained, public for browsers, and connecting to this server only.

use sconce_http::{Keys, Settings as HttpSettings};
use sconce_worker::Settings;

use crate::client::{Answer, get, get_with};
use crate::harness::{settings, tiny, tiny_with};

/// What a browser accepts when it opens an address.
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

fn is_page(answer: &Answer) -> bool {
    answer.status == 200 && answer.header("content-type") == Some("text/html; charset=utf-8")
}

#[test]
fn the_console_is_self_contained_and_connects_to_this_server_only() {
    let keys = Keys::read("secret").expect("a key");
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    for answer in [get_with(*server, "/", &[BROWSER]), get(*server, "/docs")] {
        assert!(is_page(&answer), "{answer:?}");
        let page = answer.text();
        for elsewhere in ["src=\"", "href=\"http", "@import", "url(", "import("] {
            assert!(!page.contains(elsewhere), "`{elsewhere}` in the page");
        }
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(
            policy.starts_with("default-src 'none'; connect-src 'self'; script-src 'sha256-"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        // The hash of an empty script would mean that the page has another layout.
        assert!(!policy.contains("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="), "{policy}");
    }
    assert_eq!(get(*server, "/openapi.json").status, 401, "what it shows needs the key");
    assert_eq!(get(*server, "/").status, 401, "other clients need the key");
}

#[test]
fn only_browsers_get_the_console_at_the_root() {
    let server = tiny("tiny-bert");
    let info = get(*server, "/");
    assert_eq!(info.header("vary"), Some("accept"));
    assert_eq!(info.json()["model_id"], "model");
    for accept in ["*/*", "application/json"] {
        assert_eq!(get_with(*server, "/", &[("accept", accept)]).json()["model_id"], "model", "{accept}");
    }
    let page = get_with(*server, "/", &[BROWSER]);
    assert!(is_page(&page) && page.header("vary") == Some("accept"));
    assert!(!is_page(&get_with(*server, "/info", &[BROWSER])), "one route is a page");
}
