//! The page `/docs`: self-contained, public, and connecting to this server only.

use sconce_http::{Keys, Settings as HttpSettings};
use sconce_worker::Settings;

use crate::client::get;
use crate::harness::{settings, tiny_with};

#[test]
fn the_page_is_self_contained_and_connects_to_this_server_only() {
    let keys = Keys::read("secret").expect("a key");
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    let answer = get(*server, "/docs");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let page = answer.text();
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "`{elsewhere}` in the page");
    }
    assert!(page.contains("\"/openapi.json\"") && page.contains("id=\"key\""));
    // With one model the choice is hidden; a rule of the page must not show it.
    assert!(
        page.contains("<label id=\"which\" hidden>")
            && page.contains("[hidden] { display: none !important; }")
    );
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; connect-src 'self'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(get(*server, "/openapi.json").status, 401, "what it shows needs the key");
}
