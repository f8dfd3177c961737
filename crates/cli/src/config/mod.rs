//! The configuration of `sconce serve`: defaults, overridden by a file, the environment, and flags, in this order.

mod flags;
mod keys;
mod pool;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use toml::{Table, Value};

pub(crate) use flags::Flags;
pub(crate) use keys::TEMPLATE;
use keys::{Key, keys, nearest};
pub(crate) use values::{ModelEntry, ModelSettings, Values};

/// Prefix of environment variables. Kubernetes sets `SCONCE_PORT` for a service called `sconce`.
const PREFIX: &str = "SCONCE_SERVE_";
/// Environment variable with an API key.
pub(crate) const API_KEY_VARIABLE: &str = "SCONCE_API_KEY";
/// Environment variable with the path of the file.
const FILE: &str = "SCONCE_CONFIG";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "`{}`", path.display()),
            Origin::Environment(name) => write!(f, "`{name}`"),
            Origin::Flag(flag) => write!(f, "`{flag}`"),
        }
    }
}

/// A key with its effective value and origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) key: &'static Key,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// The effective configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effective {
    pub(crate) settings: Vec<Setting>,
    /// Models by name. Models from the command line have no name yet.
    pub(crate) models: Vec<(Option<String>, Table)>,
    /// Where the list of models comes from.
    pub(crate) models_from: Origin,
    /// The configuration file.
    pub(crate) file: Option<PathBuf>,
}

/// Loads the effective configuration of this process.
pub(crate) fn effective(flags: &Flags) -> anyhow::Result<Effective> {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let file = match locate_file(flags.config.as_deref(), &variables) {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("could not read the configuration file: `{}`", path.display()))?;
            let table: Table = text.parse().with_context(|| format!("invalid TOML: `{}`", path.display()))?;
            Some((path, table))
        }
    };
    merge(file, &variables, flags)
}

/// The configuration file: the one that the user named, or the first default path that exists.
fn locate_file(flag: Option<&Path>, variables: &[(String, String)]) -> Option<PathBuf> {
    let variable = |wanted: &str| {
        let mut found = variables.iter().filter(|(name, value)| name == wanted && !value.is_empty());
        found.next().map(|(_, value)| PathBuf::from(value))
    };
    if let Some(named) = flag.map(Path::to_owned).or_else(|| variable(FILE)) {
        return Some(named);
    }
    let folder = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let usual = [Some(PathBuf::from("sconce.toml")), folder.map(|folder| folder.join("sconce/sconce.toml"))];
    usual.into_iter().flatten().find(|path| path.is_file())
}

/// Merges all layers. Pure: reads neither files nor the environment.
fn merge(
    file: Option<(PathBuf, Table)>,
    variables: &[(String, String)],
    flags: &Flags,
) -> anyhow::Result<Effective> {
    let settings =
        keys().iter().map(|key| Setting { key, value: key.default.clone(), origin: Origin::Default });
    let mut all = Effective {
        settings: settings.collect(),
        models: Vec::new(),
        models_from: Origin::Default,
        file: None,
    };
    if let Some((path, table)) = file {
        all.file = Some(path.clone());
        let origin = Origin::File(path);
        for (name, value) in table {
            match (name.as_str(), &value) {
                ("models", Value::Table(models)) => all.add_models(models.clone(), &origin)?,
                ("models", _) => bail!(
                    "`models` in {origin} must contain a table per model\nhint: write `[models.NAME]` and `source = \"…\"`"
                ),
                (name, Value::Table(_)) => bail!(
                    "unknown table in {origin}: `[{name}]`\nhint: settings are at the top of the file, outside of tables; \
                     a model is `[models.NAME]`"
                ),
                _ => all.set(&name, &origin, |key| key.coerce(&value))?,
            }
        }
    }
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Environment(name.clone());
        if rest == "MODELS" {
            let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
            all.replace_models(names, origin);
        } else {
            all.set(&rest.to_lowercase(), &origin, |key| key.parse(value))?;
        }
    }
    for (name, text) in &flags.values {
        let flag = Origin::Flag(format!("--{}", name.replace('_', "-")));
        all.set(name, &flag, |key| key.parse(text))?;
    }
    all.replace_models(flags.models.iter().map(String::as_str), Origin::Flag("MODEL".to_owned()));
    Ok(all)
}

impl Effective {
    /// Sets the value of a key. Fails for unknown keys and invalid values.
    fn set(
        &mut self,
        name: &str,
        origin: &Origin,
        read: impl Fn(&Key) -> Result<Value, String>,
    ) -> anyhow::Result<()> {
        let Some(setting) = self.settings.iter_mut().find(|setting| setting.key.name == name) else {
            let known = self.settings.iter().map(|setting| setting.key.name.as_str());
            let nearest = nearest(name, known.chain(["models"])).unwrap_or_default();
            bail!(
                "unknown setting in {origin}: `{name}`\nhint: did you mean `{nearest}`? `sconce config` lists all settings"
            );
        };
        let value = read(setting.key).map_err(|why| anyhow!("{why}").context(format!("in {origin}")))?;
        let checked = Table::from_iter([(name.to_owned(), value.clone())]);
        values::check(&checked, setting.key.is_per_model())
            .with_context(|| format!("`{name}` in {origin}"))?;
        (setting.value, setting.origin) = (value, origin.clone());
        Ok(())
    }

    /// Adds the models of a file.
    fn add_models(&mut self, models: Table, origin: &Origin) -> anyhow::Result<()> {
        self.models_from = origin.clone();
        for (name, value) in models {
            let Value::Table(mut table) = value else {
                bail!("`models.{name}` in {origin} must be a table with a `source`");
            };
            for (key, value) in &mut table {
                let known = keys().iter().filter(|key| key.is_per_model());
                if let Some(key) = known.clone().find(|known| known.name == *key) {
                    let fit = key.coerce(value).map_err(|why| anyhow!("{why}"));
                    *value = fit.with_context(|| format!("`models.{name}` in {origin}"))?;
                } else if keys().iter().any(|known| known.name == *key) {
                    bail!(
                        "`{key}` in `models.{name}` in {origin} is a setting of the server\n\
                         hint: write it at the top of the file, above all tables"
                    );
                } else if !values::MODEL_KEYS.contains(&key.as_str()) {
                    let known = known.map(|key| key.name.as_str()).chain(values::MODEL_KEYS);
                    let nearest = nearest(key, known).unwrap_or_default();
                    bail!(
                        "unknown setting in `models.{name}` in {origin}: `{key}`\nhint: did you mean `{nearest}`?"
                    );
                }
            }
            self.models.push((Some(name), table));
        }
        Ok(())
    }

    /// Replaces all models with these sources. No sources means no change.
    fn replace_models<'a>(&mut self, sources: impl Iterator<Item = &'a str>, origin: Origin) {
        let table =
            |source: &str| Table::from_iter([("source".to_owned(), Value::String(source.to_owned()))]);
        let models: Vec<_> = sources.map(|source| (None, table(source))).collect();
        if !models.is_empty() {
            (self.models, self.models_from) = (models, origin);
        }
    }

    /// The settings as a table: the per-model ones or the others.
    fn table(&self, per_model: bool) -> Table {
        let some = self.settings.iter().filter(|setting| setting.key.is_per_model() == per_model);
        some.map(|setting| (setting.key.name.clone(), setting.value.clone())).collect()
    }

    /// The settings of the server.
    pub(crate) fn values(&self) -> anyhow::Result<Values> {
        values::server(self.table(false))
    }

    /// The models, each with its effective settings.
    pub(crate) fn entries(&self) -> anyhow::Result<Vec<ModelEntry>> {
        let one = |(name, table): &(Option<String>, Table)| {
            let context = name.as_deref().map_or_else(String::new, |name| format!("`models.{name}`"));
            values::entry(name.clone(), table, self.table(true)).with_context(|| context)
        };
        self.models.iter().map(one).collect()
    }

    /// A model that is added at run time, with the settings that all models share.
    pub(crate) fn entry_of(&self, source: &str) -> anyhow::Result<ModelEntry> {
        let table = Table::from_iter([("source".to_owned(), Value::String(source.to_owned()))]);
        values::entry(None, &table, self.table(true))
    }

    /// The changed keys that take effect only after a restart.
    pub(crate) fn requires_restart(&self, other: &Effective) -> Vec<String> {
        let pairs = self.settings.iter().zip(&other.settings);
        let changed = pairs.filter(|(old, new)| !old.key.reloadable && old.value != new.value);
        let mut names: Vec<String> = changed.map(|(old, _)| old.key.name.clone()).collect();
        if self.models != other.models {
            names.push("models".to_owned());
        }
        names
    }
}

#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod tests;
