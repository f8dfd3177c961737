//! The servers of `sconce bench --against`: API and URL.

use std::str::FromStr;

/// The value of `--against`: `tei=URL` or `openai=URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSpec {
    pub(crate) kind: Kind,
    pub(crate) url: String,
}

/// The API of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tei,
    OpenAi,
}

impl FromStr for ServerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerSpec, String> {
        let (kind, url) = match text.split_once('=') {
            Some(("tei", url)) => (Kind::Tei, url),
            Some(("openai", url)) => (Kind::OpenAi, url),
            Some(_) | None => return Err("expected tei=URL or openai=URL".to_owned()),
        };
        if !["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
            return Err(format!("the URL must start with http:// or https://: {url}"));
        }
        let url = url.trim_end_matches('/');
        let url = if kind == Kind::OpenAi { url.trim_end_matches("/v1") } else { url };
        Ok(ServerSpec { kind, url: url.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_names_the_kind_and_an_http_url() {
        let typed = |text: &str| text.parse::<ServerSpec>().map(|spec| (spec.kind, spec.url));
        assert_eq!(typed("tei=http://a:80/"), Ok((Kind::Tei, "http://a:80".to_owned())));
        assert_eq!(typed("openai=https://a/v1/"), Ok((Kind::OpenAi, "https://a".to_owned())));
        for text in ["", "http://a", "tgi=http://a", "tei=", "tei=a:80", "tei=http://", "openai=ftp://a"] {
            assert!(typed(text).is_err(), "{text}");
        }
    }
}
