//! The settings of a server: defaults, over them a file, over that the environment, over all what is typed.

mod flags;
mod keys;
mod show;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use toml::{Table, Value};

pub(crate) use flags::Flags;
use keys::{Key, keys, nearest};
pub(crate) use show::{Show, run};
pub(crate) use values::{Entry, Values};

/// What names of the environment begin with. Kubernetes puts `SCONCE_PORT` beside a service called `sconce`.
const PREFIX: &str = "SCONCE_SERVE_";
/// Names the file.
const FILE: &str = "SCONCE_CONFIG";

/// Who said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody.
    Default,
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// A flag.
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

/// A key, what holds, and who said so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) key: &'static Key,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// All that holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effective {
    pub(crate) settings: Vec<Setting>,
    /// Models by their names; those that were typed have none yet.
    pub(crate) models: Vec<(Option<String>, Table)>,
    /// Who said which models there are.
    pub(crate) models_from: Origin,
}

/// What holds in this process.
pub(crate) fn effective(flags: &Flags) -> anyhow::Result<Effective> {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let file = match find(flags.config.as_deref(), &variables) {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("the settings in `{}` can't be read", path.display()))?;
            let table: Table = text.parse().with_context(|| format!("`{}` is no TOML", path.display()))?;
            Some((path, table))
        }
    };
    layered(file, &variables, flags)
}

/// The file that is named, or the first of the usual ones that is there.
fn find(typed: Option<&Path>, variables: &[(String, String)]) -> Option<PathBuf> {
    let variable = |wanted: &str| {
        let mut found = variables.iter().filter(|(name, value)| name == wanted && !value.is_empty());
        found.next().map(|(_, value)| PathBuf::from(value))
    };
    if let Some(named) = typed.map(Path::to_owned).or_else(|| variable(FILE)) {
        return Some(named);
    }
    let folder = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let usual = [Some(PathBuf::from("sconce.toml")), folder.map(|folder| folder.join("sconce/sconce.toml"))];
    usual.into_iter().flatten().find(|path| path.is_file())
}

/// All layers, from values alone.
fn layered(
    file: Option<(PathBuf, Table)>,
    variables: &[(String, String)],
    flags: &Flags,
) -> anyhow::Result<Effective> {
    let settings =
        keys().iter().map(|key| Setting { key, value: key.default.clone(), origin: Origin::Default });
    let mut all =
        Effective { settings: settings.collect(), models: Vec::new(), models_from: Origin::Default };
    if let Some((path, table)) = file {
        let origin = Origin::File(path);
        for (name, value) in table {
            match (name.as_str(), &value) {
                ("models", Value::Table(models)) => all.take_models(models.clone(), &origin)?,
                ("models", _) => bail!(
                    "`models` in {origin} holds a table for each model\nhint: `[models.NAME]`, and under it `source = \"…\"`"
                ),
                _ => all.say(&name, &origin, |key| key.fit(&value))?,
            }
        }
    }
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Environment(name.clone());
        if rest == "MODELS" {
            let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
            all.name_models(names, origin);
        } else {
            all.say(&rest.to_lowercase(), &origin, |key| key.read(value))?;
        }
    }
    for (name, text) in &flags.said {
        let flag = Origin::Flag(format!("--{}", name.replace('_', "-")));
        all.say(name, &flag, |key| key.read(text))?;
    }
    all.name_models(flags.models.iter().map(String::as_str), Origin::Flag("MODEL".to_owned()));
    Ok(all)
}

impl Effective {
    /// Sets a key, if there is one of this name and the value is one that it can have.
    fn say(
        &mut self,
        name: &str,
        origin: &Origin,
        read: impl Fn(&Key) -> Result<Value, String>,
    ) -> anyhow::Result<()> {
        let Some(setting) = self.settings.iter_mut().find(|setting| setting.key.name == name) else {
            let known = self.settings.iter().map(|setting| setting.key.name.as_str());
            let nearest = nearest(name, known.chain(["models"])).unwrap_or_default();
            bail!(
                "no setting is called `{name}`: {origin}\nhint: the nearest is `{nearest}`; `sconce config` lists all"
            );
        };
        let value = read(setting.key).map_err(|why| anyhow!("{why}").context(format!("in {origin}")))?;
        let checked = Table::from_iter([(name.to_owned(), value.clone())]);
        values::check(&checked, setting.key.is_of_a_model())
            .with_context(|| format!("`{name}` in {origin}"))?;
        (setting.value, setting.origin) = (value, origin.clone());
        Ok(())
    }

    /// The models of a file.
    fn take_models(&mut self, models: Table, origin: &Origin) -> anyhow::Result<()> {
        self.models_from = origin.clone();
        for (name, value) in models {
            let Value::Table(mut table) = value else {
                bail!("`models.{name}` in {origin} is a table with a `source`");
            };
            for (key, value) in &mut table {
                let known = keys().iter().filter(|key| key.is_of_a_model());
                if let Some(key) = known.clone().find(|known| known.name == *key) {
                    let fit = key.fit(value).map_err(|why| anyhow!("{why}"));
                    *value = fit.with_context(|| format!("`models.{name}` in {origin}"))?;
                } else if !values::ENTRY.contains(&key.as_str()) {
                    let known = known.map(|key| key.name.as_str()).chain(values::ENTRY);
                    let nearest = nearest(key, known).unwrap_or_default();
                    bail!(
                        "a model has no `{key}`: `models.{name}` in {origin}\nhint: the nearest is `{nearest}`"
                    );
                }
            }
            self.models.push((Some(name), table));
        }
        Ok(())
    }

    /// Models by their sources alone, in place of all others; none of them changes nothing.
    fn name_models<'a>(&mut self, sources: impl Iterator<Item = &'a str>, origin: Origin) {
        let table =
            |source: &str| Table::from_iter([("source".to_owned(), Value::String(source.to_owned()))]);
        let models: Vec<_> = sources.map(|source| (None, table(source))).collect();
        if !models.is_empty() {
            (self.models, self.models_from) = (models, origin);
        }
    }

    /// The settings as a table, those of a model or the others.
    fn table(&self, of_a_model: bool) -> Table {
        let some = self.settings.iter().filter(|setting| setting.key.is_of_a_model() == of_a_model);
        some.map(|setting| (setting.key.name.clone(), setting.value.clone())).collect()
    }

    /// The settings of the server.
    pub(crate) fn values(&self) -> anyhow::Result<Values> {
        values::server(self.table(false))
    }

    /// The models, each with the settings that hold for it.
    pub(crate) fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        let one = |(name, table): &(Option<String>, Table)| {
            let said = name.as_deref().map_or_else(String::new, |name| format!("`models.{name}`"));
            values::entry(name.clone(), table, self.table(true)).with_context(|| said)
        };
        self.models.iter().map(one).collect()
    }

    /// The keys whose values differ in `other` and that a running server does not take up.
    pub(crate) fn needs_a_restart(&self, other: &Effective) -> Vec<String> {
        let pairs = self.settings.iter().zip(&other.settings);
        let changed = pairs.filter(|(old, new)| !old.key.again && old.value != new.value);
        let mut names: Vec<String> = changed.map(|(old, _)| old.key.name.clone()).collect();
        if self.models != other.models {
            names.push("models".to_owned());
        }
        names
    }
}

#[cfg(test)]
mod tests;
