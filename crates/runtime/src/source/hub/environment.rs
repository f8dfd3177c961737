//! Hub settings from environment variables, by the rules of Python's `huggingface_hub`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::Cache;
use hf_hub::api::sync::ApiBuilder;

use super::config::Hub;
use super::graphs::Graphs;

/// Default timeout: long enough for cold storage, short enough to fall back to the cache.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

impl Hub {
    /// The hub that the environment configures: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `XDG_CACHE_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, as in Python's `huggingface_hub`.
    pub fn from_environment() -> Hub {
        read(&|name| std::env::var(name).ok(), std::env::home_dir())
    }
}

/// Reads the variables. An empty variable counts as unset.
fn read(get: &dyn Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Hub {
    let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let user = home.unwrap_or_default();
    let path = |name: &str| get(name).map(|value| expand(&value, &user));
    let home = path("HF_HOME")
        .unwrap_or_else(|| path("XDG_CACHE_HOME").unwrap_or_else(|| user.join(".cache")).join("huggingface"));
    let cache =
        path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| home.join("hub"));
    let endpoint =
        get("HF_ENDPOINT").unwrap_or_else(|| default_endpoint(&cache)).trim_end_matches('/').to_owned();
    let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
    let token = get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")).or_else(|| read_token(&token_file));
    let offline = get("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
    let timeout = get("HF_HUB_DOWNLOAD_TIMEOUT")
        .and_then(|value| value.parse().ok())
        .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    Hub { cache, endpoint, token, offline, timeout, graphs: Graphs::default() }
}

/// Whether `huggingface_hub` reads the value as true.
fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())
}

fn expand(value: &str, user: &Path) -> PathBuf {
    match value.strip_prefix("~/") {
        Some(rest) => user.join(rest),
        None => value.into(),
    }
}

fn read_token(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

/// The public hub's URL. `hf-hub` has no constant for it, so it is taken from a URL that `hf-hub` builds.
fn default_endpoint(cache: &Path) -> String {
    let api = ApiBuilder::from_cache(Cache::new(cache.to_owned())).with_token(None).build();
    let address = api.map(|api| api.model("id".into()).url("file")).unwrap_or_default();
    address.trim_end_matches("/id/resolve/main/file").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Hub {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        read(&get, Some("/home/ada".into()))
    }

    fn cache(variables: &[(&str, &str)]) -> PathBuf {
        hub(variables).cache
    }

    #[test]
    fn the_cache_lies_where_pythons_tools_look_for_it() {
        assert_eq!(cache(&[]), Path::new("/home/ada/.cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/hf")]), Path::new("/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "~/hf")]), Path::new("/home/ada/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(cache(&[("HF_HOME", "")]), Path::new("/home/ada/.cache/huggingface/hub"));
    }

    #[test]
    fn the_token_comes_from_the_variable_then_from_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("a path");
        assert_eq!(hub(&[("HF_HOME", home)]).token, None);
        fs::write(folder.path().join("token"), "from-file\n").expect("a file");
        assert_eq!(hub(&[("HF_HOME", home)]).token.as_deref(), Some("from-file"));
        assert_eq!(
            hub(&[("HF_HOME", home), ("HF_TOKEN", " from-variable\n")]).token.as_deref(),
            Some("from-variable")
        );
        assert_eq!(hub(&[("HF_HOME", home), ("HF_TOKEN", "")]).token.as_deref(), Some("from-file"));
        fs::write(folder.path().join("token"), "\n").expect("a file");
        assert_eq!(hub(&[("HF_HOME", home)]).token, None);
    }

    #[test]
    fn the_endpoint_is_the_public_hub_unless_another_is_named() {
        assert!(hub(&[]).endpoint.starts_with("https://"), "{}", hub(&[]).endpoint);
        assert_eq!(hub(&[]).endpoint.matches('/').count(), 2);
        assert_eq!(hub(&[("HF_ENDPOINT", "http://mirror.local/")]).endpoint, "http://mirror.local");
    }

    #[test]
    fn offline_is_what_pythons_tools_take_for_yes() {
        for value in ["1", "true", "YES", "on"] {
            assert!(hub(&[("HF_HUB_OFFLINE", value)]).offline, "{value}");
        }
        for value in ["0", "", "no", "false"] {
            assert!(!hub(&[("HF_HUB_OFFLINE", value)]).offline, "{value}");
        }
    }

    #[test]
    fn the_token_is_not_shown() {
        let text = format!("{:?}", hub(&[("HF_TOKEN", "hf_secret")]));
        assert!(!text.contains("hf_secret"), "{text}");
    }
}
