//! The settings of a worker in a pool.

use sconce_worker::PoolRegistry;
use sconce_worker::registry::{NatsAuth, NatsOptions};

use super::*;

fn values(flags: &[(&str, &str)]) -> Values {
    let values = flags.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let flags = Flags { values: values.collect(), ..Flags::default() };
    merge(None, &[], &flags).and_then(|all| all.values()).expect("all is right")
}

/// The options of NATS, or the error.
fn nats(flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<NatsOptions, String> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    match values(flags).registry(variable) {
        Ok(Some(PoolRegistry::Nats(options))) => Ok(*options),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn secrets_of_the_registry_come_from_a_file_or_the_environment() {
    let servers = ("registry", "nats://a:4222, nats://b:4222");
    let options = nats(&[servers, ("pool", "mine")], &[]).expect("options");
    assert_eq!(options.servers, ["nats://a:4222", "nats://b:4222"]);
    assert_eq!((options.pool.as_str(), options.tls.is_none()), ("mine", true));
    assert!(matches!(options.auth, NatsAuth::None));
    let options = nats(&[servers], &[("SCONCE_REGISTRY_TOKEN", " secret\n")]).expect("options");
    assert!(matches!(options.auth, NatsAuth::Token(token) if token == "secret"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("seed");
    std::fs::write(&file, "SUA\n").expect("a file");
    let file = file.to_string_lossy().into_owned();
    let options = nats(&[servers, ("registry_nkey_file", &file)], &[]).expect("options");
    assert!(matches!(options.auth, NatsAuth::NKey(seed) if seed == "SUA"));
    let options = nats(&[servers, ("registry_ca", "ca.pem")], &[]).expect("options");
    assert_eq!(options.tls.and_then(|tls| tls.authority), Some(PathBuf::from("ca.pem")));
}

#[test]
fn contradictions_are_rejected() {
    let servers = ("registry", "nats://a:4222");
    for (flags, variables, words) in [
        (vec![("registry", "nats://token@a:4222")], vec![], "must not contain a user"),
        (vec![servers, ("registry_key", "key.pem")], vec![], "must be set together"),
        (vec![servers, ("registry_token_file", "./no such file")], vec![], "could not read"),
        (vec![servers], vec![("SCONCE_REGISTRY_TOKEN", "a"), ("SCONCE_REGISTRY_NKEY", "b")], "only one of"),
    ] {
        let error = nats(&flags, &variables).expect_err("it is refused");
        assert!(error.contains(words), "{error}");
    }
    let error = values(&[servers]).worker().expect_err("an id is missing").to_string();
    assert!(error.contains("--worker-id"), "{error}");
    assert!(values(&[]).worker().expect("no pool").registry.is_none());
}
