//! `sconce models --recommended`: the catalogue as a table.

use std::collections::BTreeSet;

use sconce::Task;
use sconce::catalogue::{self, CatalogueModel};
use sconce::hub::Hub;
use serde_json::{Value, json};

use crate::terminal::{rendered, table};

/// The models of a task, or all.
pub(crate) fn select(task: Option<Task>) -> Vec<&'static CatalogueModel> {
    catalogue::models().iter().filter(|model| task.is_none_or(|task| model.task == task)).collect()
}

/// Renders models as a table, with those in the cache of `hub` marked.
pub(crate) fn render(models: &[&CatalogueModel], hub: &Hub) -> String {
    let cached: BTreeSet<String> = hub.cached().into_iter().map(|model| model.id).collect();
    let mut rows = table(&["", "name", "task", "size", "dims", "tokens", "languages", "license", "good for"]);
    for model in models {
        let is_cached =
            [Some(&model.id), model.gguf.as_ref()].into_iter().flatten().any(|id| cached.contains(id));
        let number = |value: Option<usize>| value.map(|value| value.to_string()).unwrap_or_default();
        rows.add_row(vec![
            if is_cached { "*" } else { "" }.to_owned(),
            model.name.clone(),
            task_name(model.task).to_owned(),
            model.parameters.map(parameters).unwrap_or_default(),
            number(model.dimensions),
            number(model.max_length),
            model.languages.clone().unwrap_or_default(),
            model.license.clone().unwrap_or_default(),
            model.good_for.clone(),
        ]);
    }
    let note = "`size` is the number of parameters, `tokens` the longest text; `*` is in the hub's cache\n\
                hint: `sconce plan NAME` shows where a model can run and how fast, without downloading its weights\n";
    format!("{}\n\n{note}", rendered(&rows))
}

/// A model as JSON, with its place in the cache.
pub(crate) fn to_json(model: &CatalogueModel, hub: &Hub) -> Value {
    let cached = hub.cached().into_iter().any(|cached| cached.id == model.id);
    let mut value = json!(model);
    value["cached"] = cached.into();
    value
}

/// The task as the flag `--task` has it; a model that generates chats.
fn task_name(task: Task) -> &'static str {
    if task == Task::Generate { "chat" } else { task.name() }
}

/// `22.7 M`, `4.0 B`.
fn parameters(millions: f64) -> String {
    if millions >= 1000.0 {
        format!("{:.1} B", millions / 1000.0)
    } else if millions < 100.0 && millions.fract() != 0.0 {
        format!("{millions:.1} M")
    } else {
        format!("{millions:.0} M")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_in_millions_or_billions() {
        let all = [22.7, 33.0, 109.0, 999.0, 1230.0, 4022.0].map(parameters);
        assert_eq!(all, ["22.7 M", "33 M", "109 M", "999 M", "1.2 B", "4.0 B"]);
    }
}
