//! The page to try routes with: whole in one answer, open without a key, and silent towards others.

use sconce_http::{Keys, Settings as HttpSettings};
use sconce_worker::Settings;

use crate::client::get;
use crate::stage::{settings, tiny_with};

#[test]
fn the_page_is_whole_and_asks_nobody_else() {
    let keys = Keys::read("secret").expect("a key");
    let stage =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    let answer = get(*stage, "/docs");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let page = answer.text();
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "`{elsewhere}` in the page");
    }
    assert!(page.contains("\"/openapi.json\"") && page.contains("id=\"key\""));
    // With one model there is nothing to choose: a rule of the page's own must not show what is hidden.
    assert!(
        page.contains("<label id=\"which\" hidden>")
            && page.contains("[hidden] { display: none !important; }")
    );
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; connect-src 'self'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(get(*stage, "/openapi.json").status, 401, "what it shows needs the key");
}
