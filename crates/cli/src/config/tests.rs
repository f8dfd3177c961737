//! Precedence of layers, and rejected values.

use super::*;

fn flags(values: &[(&str, &str)]) -> Flags {
    let values = values.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Flags { values: values.collect(), ..Flags::default() }
}

fn file(text: &str) -> (PathBuf, Table) {
    (PathBuf::from("some.toml"), text.parse().expect("TOML"))
}

fn variables(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn refused(file: Option<(PathBuf, Table)>, variables: &[(String, String)], flags: &Flags) -> String {
    let refused = merge(file, variables, flags).and_then(|all| all.values().and(all.entries())).err();
    format!("{:#}", refused.expect("it is refused"))
}

#[test]
fn what_is_typed_goes_over_the_environment_over_the_file_over_the_default() {
    let file = file("port = 1\nhost = \"::1\"\nstrict = true\nmax_inputs = 5");
    let environment =
        variables(&[("SCONCE_SERVE_PORT", "2"), ("SCONCE_SERVE_MAX_INPUTS", "6"), ("SCONCE_PORT", "9")]);
    let all = merge(Some(file), &environment, &flags(&[("port", "3")])).expect("all is known");
    let values = all.values().expect("all is right");
    assert_eq!((values.port, values.max_inputs, values.strict, values.grace), (3, 6, true, 30));
    let origin = |name: &str| {
        all.settings.iter().find(|setting| setting.key.name == name).map(|setting| setting.origin.to_string())
    };
    let origins = ["port", "max_inputs", "host", "grace"].map(origin).map(Option::unwrap_or_default);
    assert_eq!(origins, ["`--port`", "`SCONCE_SERVE_MAX_INPUTS`", "`some.toml`", "default"]);
}

#[test]
fn unknown_keys_and_invalid_values_are_rejected_with_their_origin() {
    let none = Flags::default();
    for (text, words) in [
        ("prot = 1", ["`prot`", "`some.toml`", "did you mean `port`?"]),
        ("port = \"x\"", ["`port` must be an integer", "`some.toml`", "x"]),
        ("port = 70000", ["`port` in `some.toml`", "70000", "u16"]),
        ("max_inputs = 0", ["`max_inputs` in `some.toml`", "between 1 and 16384", "0"]),
        ("engine = \"candel\"", ["`engine` in `some.toml`", "candel", ""]),
        ("[models.a]\nsuorce = \"x\"", ["`suorce`", "`models.a`", "did you mean `source`?"]),
        ("[models.a]\nband = \"half\"", ["`models.a`", "source", ""]),
        ("models = 3", ["`models`", "", ""]),
    ] {
        let refused = refused(Some(file(text)), &[], &none);
        assert!(words.iter().all(|word| refused.contains(word)), "{text}: {refused}");
    }
    let refused = refused(None, &variables(&[("SCONCE_SERVE_PROT", "1")]), &none);
    assert!(refused.contains("SCONCE_SERVE_PROT") && refused.contains("`port`"), "{refused}");
}

#[test]
fn the_defaults_are_those_of_the_server() {
    let values = merge(None, &[], &Flags::default()).and_then(|all| all.values()).expect("all is right");
    let values = values.settings(sconce_worker::http::Keys::default());
    assert_eq!(format!("{values:?}"), format!("{:?}", sconce_worker::Settings::default()));
}

#[test]
fn a_model_has_the_settings_of_all_but_for_its_own() {
    let text = "band = \"exact\"\nmax_length = 9\n[models.a]\nsource = \"x/y\"\naliases = [\"b\"]\nmax_length = 7\n\
                [models.c]\nsource = \"./z\"";
    let all = merge(Some(file(text)), &[], &Flags::default()).expect("all is known");
    let entries = all.entries().expect("all is right");
    let told: Vec<_> = entries
        .iter()
        .map(|entry| (entry.name.as_deref(), entry.source.as_str(), entry.settings.overrides.max_length))
        .collect();
    assert_eq!(told, [(Some("a"), "x/y", Some(7)), (Some("c"), "./z", Some(9))]);
    assert!(entries.iter().all(|entry| entry.settings.constraints.band == sconce::Band::Exact));
    assert!(entries.iter().all(|entry| !entry.settings.token_ids), "token ids are rejected by default");
    let one = file("[models.a]\nsource = \"x\"\ntoken_ids = true\n[models.b]\nsource = \"y\"");
    let entries =
        merge(Some(one), &[], &Flags::default()).and_then(|all| all.entries()).expect("all is right");
    assert_eq!(entries.iter().map(|entry| entry.settings.token_ids).collect::<Vec<_>>(), [true, false]);
    let typed = Flags { models: vec!["./other".to_owned()], ..Flags::default() };
    let entries = merge(Some(file(text)), &[], &typed).and_then(|all| all.entries()).expect("all is right");
    assert_eq!(entries.iter().map(|entry| entry.source.as_str()).collect::<Vec<_>>(), ["./other"]);
}

#[test]
fn what_a_running_server_does_not_take_up_is_named() {
    let before = merge(Some(file("port = 1")), &[], &Flags::default()).expect("all is known");
    let after = merge(Some(file("port = 2\nmax_inputs = 7")), &[], &Flags::default()).expect("all is known");
    assert_eq!(before.requires_restart(&after), ["port"]);
}

#[test]
fn sizes_may_have_a_unit() {
    let limit = |text: &str| {
        merge(None, &[], &flags(&[("memory_limit", text)]))
            .and_then(|all| all.values())
            .map(|values| values.memory_limit)
    };
    for (text, megabytes) in [("4000", 4000), ("4GB", 4000), ("1.5 gb", 1500), ("512M", 512), ("2GiB", 2147)]
    {
        assert_eq!(limit(text).expect("a size"), megabytes, "{text}");
    }
    for text in ["4TB", "GB", "-1GB", "4 GB of memory"] {
        let refused = format!("{:#}", limit(text).expect_err("no size"));
        assert!(refused.contains("a size such as `4GB`"), "{refused}");
    }
    assert!(merge(None, &[], &flags(&[("port", "4GB")])).is_err(), "a port is no size");
    let all = merge(Some(file("memory_limit = \"4GB\"")), &[], &Flags::default());
    assert_eq!(all.and_then(|all| all.values()).expect("a size").memory_limit, 4000);
}

#[test]
fn settings_in_a_wrong_table_are_told_where_they_belong() {
    let refused = |text: &str| refused(Some(file(text)), &[], &Flags::default());
    let server = refused("[server]\nport = 1");
    assert!(server.contains("unknown table") && server.contains("at the top of the file"), "{server}");
    let model = refused("[models.a]\nsource = \"x\"\nport = 1");
    assert!(model.contains("`port` in `models.a`") && model.contains("above all tables"), "{model}");
}
