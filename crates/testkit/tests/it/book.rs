//! The book in docs/: links, contents, pictures, and the code blocks that nothing runs.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;

use crate::markdown::{anchors, fences, links};
use crate::tree::{File, expect_none, files, root};

const CONTENTS: &str = "docs/SUMMARY.md";
const NOT_RUN: &str = "docs/reference/not-run.md";
/// The file whose documentation tests compile the Rust blocks of pages.
const COMPILED: &str = "crates/runtime/src/doc_pages.rs";
/// Set to write a generated page instead of comparing it.
const WRITE: &str = "SCONCE_WRITE_DOCS";
/// Languages of blocks that are run or compiled.
const RUN: [&str; 4] = ["console", "sh", "python", "rust"];
/// Languages of other blocks.
const OTHERS: [&str; 8] = ["text", "json", "yaml", "toml", "nginx", "diff", "http", "dockerfile"];

fn markdown() -> Vec<File> {
    files().into_iter().filter(|file| has_extension(&file.path, "md")).collect()
}

fn has_extension(path: &str, extension: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
}

/// Pages of the book, without its contents.
fn is_page(file: &File) -> bool {
    file.path.starts_with("docs/") && file.path != CONTENTS
}

/// The README and the pages of the book, in the order of their paths.
fn pages_with_blocks() -> Vec<File> {
    let mut pages: Vec<File> =
        markdown().into_iter().filter(|file| file.path == "README.md" || is_page(file)).collect();
    pages.sort_by(|a, b| (a.path != "README.md", &a.path).cmp(&(b.path != "README.md", &b.path)));
    pages
}

/// The path from the root that a link in the file `from` leads to; none out of the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn is_external(target: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = markdown();
    let headings: BTreeMap<&str, _> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let (mut complaints, mut checked) = (Vec::new(), 0);
    for page in &pages {
        for (line, target) in links(&page.text).into_iter().filter(|(_, target)| !is_external(target)) {
            checked += 1;
            let (path, anchor) =
                target.split_once('#').map_or((target.as_str(), None), |(a, b)| (a, Some(b)));
            let found = if path.is_empty() { Some(page.path.clone()) } else { resolve(&page.path, path) };
            let found = found.filter(|path| root().join(path).exists());
            let Some(found) = found else {
                complaints.push(format!("{}:{line}: no file `{target}`", page.path));
                continue;
            };
            let lacks = |anchor| headings.get(found.as_str()).is_none_or(|known| !known.contains(anchor));
            if anchor.is_some_and(lacks) {
                complaints.push(format!("{}:{line}: no heading `{target}`", page.path));
            }
            if is_page(page) && !found.starts_with("docs/") {
                complaints
                    .push(format!("{}:{line}: `{target}` is not in the book: name it in words", page.path));
            }
        }
    }
    expect_none(&complaints);
    assert!(checked > 100, "{checked} links were found");
}

#[test]
fn every_page_is_in_the_contents_once() {
    let contents = fs::read_to_string(root().join(CONTENTS)).expect("the contents are there");
    let listed: Vec<String> =
        links(&contents).iter().filter_map(|(_, target)| resolve(CONTENTS, target)).collect();
    let complaints: Vec<String> = markdown()
        .iter()
        .filter(|page| is_page(page))
        .map(|page| (&page.path, listed.iter().filter(|path| **path == page.path).count()))
        .filter(|(_, count)| *count != 1)
        .map(|(path, count)| format!("{CONTENTS}: lists `{path}` {count} times: list every page once"))
        .collect();
    expect_none(&complaints);
}

#[test]
fn pages_that_code_and_help_name_exist() {
    let mut complaints = Vec::new();
    // The list of old names has pages that are gone.
    for file in files().iter().filter(|file| !file.path.ends_with("it/words.rs")) {
        for (at, _) in file.text.match_indices("docs/") {
            let is_of_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
            let before = file.text[..at].chars().next_back();
            let path = file.text[at..].split(|letter| !is_of_path(letter)).next().unwrap_or_default();
            let is_ours = before.is_none_or(|letter| !is_of_path(letter) && letter != '}');
            if is_ours && has_extension(path, "md") && !root().join(path).exists() {
                complaints.push(format!("{}: names `{path}`, which does not exist", file.path));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn every_picture_has_a_title_and_a_page() {
    let pages = markdown();
    let used: Vec<String> = pages
        .iter()
        .flat_map(|page| links(&page.text).into_iter().filter_map(|(_, target)| resolve(&page.path, &target)))
        .collect();
    let mut complaints = Vec::new();
    for file in
        files().iter().filter(|file| file.path.starts_with("docs/") && has_extension(&file.path, "svg"))
    {
        if !file.text.starts_with("<svg") || !file.text.contains("<title") {
            complaints.push(format!("{}: no <svg> with a <title>", file.path));
        }
        if !used.contains(&file.path) {
            complaints.push(format!("{}: no page shows it", file.path));
        }
    }
    expect_none(&complaints);
}

#[test]
fn every_code_block_has_a_language_that_is_run_or_known() {
    let mut complaints = Vec::new();
    for page in pages_with_blocks() {
        for fence in fences(&page.text) {
            if !RUN.contains(&fence.language()) && !OTHERS.contains(&fence.language()) {
                let place = format!("{}:{}", page.path, fence.line);
                complaints.push(format!("{place}: unknown language `{}`: use `text` for output", fence.info));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn every_rust_block_is_compiled() {
    let compiled = fs::read_to_string(root().join(COMPILED)).expect("the file is there");
    let has_rust = |page: &&File| fences(&page.text).iter().any(|fence| fence.language() == "rust");
    let complaints: Vec<String> = pages_with_blocks()
        .iter()
        .filter(has_rust)
        .filter(|page| !compiled.contains(&format!("\"../../../{}\"", page.path)))
        .map(|page| format!("{COMPILED}: add `{}`, which has Rust", page.path))
        .collect();
    expect_none(&complaints);
}

/// The page that lists the blocks which are not run, with their reasons.
fn not_run() -> String {
    let (mut rows, mut all, mut skipped) = (String::new(), 0, 0);
    for page in pages_with_blocks() {
        for fence in fences(&page.text).iter().filter(|fence| RUN.contains(&fence.language())) {
            all += 1;
            let Some(reason) = fence.not_run() else { continue };
            skipped += 1;
            let name = page.path.strip_prefix("docs/");
            let name = name.map_or("README.md".to_owned(), |name| format!("[{name}](../{name})"));
            let first =
                fence.first.trim().trim_start_matches("$ ").trim_end_matches(" \\").replace('|', "\\|");
            _ = writeln!(rows, "| {name} | `{first}` | {reason} |");
        }
    }
    format!(
        "# Which code blocks does no test run?\n\
         Generated from the pages; a test compares it.\n\n\
         `scripts/check-docs` runs the shell and Python blocks of this book and of the README, and compares their \
         output. The documentation tests of the library compile the Rust blocks. {skipped} of {all} blocks are not \
         run:\n\n\
         | page | block | reason |\n|---|---|---|\n{rows}"
    )
}

#[test]
fn the_page_of_blocks_that_are_not_run_is_current() {
    let path = root().join(NOT_RUN);
    let page = not_run();
    if env::var_os(WRITE).is_some() {
        fs::write(&path, page).expect("it can be written");
        return;
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == page,
        "`{NOT_RUN}` is not current: {WRITE}=1 cargo nextest run --workspace -E 'test(page_of_blocks)'"
    );
}

#[test]
fn links_are_resolved_from_their_page() {
    assert_eq!(resolve("docs/guides/rag.md", "../serve.md").as_deref(), Some("docs/serve.md"));
    assert_eq!(resolve("README.md", "docs/serve.md").as_deref(), Some("docs/serve.md"));
    assert_eq!(resolve("README.md", "../other"), None);
}
