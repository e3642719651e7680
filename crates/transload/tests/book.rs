//! The book and the README: links lead somewhere, documents are documents, commands are commands.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{root, transload_in};
use transload::document::{self, Syntax};

/// A code block: its language and text.
struct Block {
    language: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .iter()
        .map(|name| root().join(name))
        .collect();
    collect(&root().join("docs/src"), &mut pages);
    pages
}

fn collect(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of the book") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        }
    }
}

fn blocks(page: &Path) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in fs::read_to_string(page).expect("a page").lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block {
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(
        open.is_none(),
        "{}: a code block is not closed",
        page.display()
    );
    blocks
}

/// Targets of `[text](target)` outside code blocks.
fn links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let prose: String = text.split("```").step_by(2).collect();
    let mut links = Vec::new();
    for after in prose.split("](").skip(1) {
        links.extend(after.split(')').next().map(str::to_owned));
    }
    links
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        for link in links(&page).iter().filter(|l| !l.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !heading.is_empty() {
                let found = fs::read_to_string(&target)
                    .expect("a page")
                    .lines()
                    .any(|line| {
                        line.starts_with('#')
                            && line
                                .trim_start_matches('#')
                                .trim()
                                .to_lowercase()
                                .replace(' ', "-")
                                == heading
                    });
                assert!(found, "{}: {link} names no heading", page.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let src = root().join("docs/src");
    let listed: BTreeSet<PathBuf> = links(&src.join("SUMMARY.md"))
        .iter()
        .map(|link| src.join(link))
        .collect();
    let mut there = Vec::new();
    collect(&src, &mut there);
    there.retain(|page| !page.ends_with("SUMMARY.md"));
    assert_eq!(listed, there.into_iter().collect());
}

/// Those that begin with a group go on where the page's first document has its own groups.
#[test]
fn deployment_documents_are_right() {
    let mut found = 0;
    for page in pages() {
        let mut head = String::new();
        for block in blocks(&page).iter().filter(|b| b.language == "toml") {
            let text = match block.text.starts_with("[[group]]") {
                true => format!("{head}{}", block.text),
                false => block.text.clone(),
            };
            if head.is_empty() {
                head.extend(
                    text.split_inclusive('\n')
                        .take_while(|l| *l != "[[group]]\n"),
                );
            }
            let name = page.display().to_string();
            document::parse(&name, &text, Syntax::Toml).unwrap_or_else(|e| panic!("{e}"));
            found += 1;
        }
    }
    assert!(found > 2, "the book has {found} deployment documents");
}

#[test]
fn json_is_json() {
    for page in pages() {
        for block in blocks(&page).iter().filter(|b| b.language == "json") {
            serde_json::from_str::<serde_json::Value>(&block.text)
                .unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        }
    }
}

/// Blocks of `console` are sessions at the root of a clone: each `$ command` prints what follows it, up
/// to numbers that a machine measures, and the empty lines around it.
#[test]
fn sessions_print_what_they_show() {
    for page in pages() {
        for block in blocks(&page).iter().filter(|b| b.language == "console") {
            for session in block.text.split("$ ").skip(1) {
                let (line, shown) = session.split_once('\n').unwrap_or((session, ""));
                let arguments = ["transload ", "cargo run --release -- "]
                    .iter()
                    .find_map(|command| line.strip_prefix(command));
                let arguments = arguments.unwrap_or_else(|| panic!("{}: {line}", page.display()));
                let arguments: Vec<_> = arguments.split_whitespace().collect();
                let ran = transload_in(&root(), &arguments);
                let printed = format!("{}{}", ran.stdout, ran.stderr);
                assert_eq!(
                    unmeasured(&printed),
                    unmeasured(shown),
                    "{}: $ {line}\n--- printed:\n{printed}",
                    page.display()
                );
            }
        }
    }
}

/// The text without what differs from run to run: times and rates, and how columns are padded for
/// them.
fn unmeasured(text: &str) -> String {
    const UNITS: [&str; 5] = ["ns", "us", "ms", "s", "GB/s"];
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        let unit = word.trim_end_matches([',', '.', ';', ')']);
        if UNITS.contains(&unit)
            && words
                .last()
                .is_some_and(|w| w.starts_with(|c: char| c.is_ascii_digit()))
        {
            words.pop();
            words.push("(measured)");
            continue;
        }
        words.push(word);
    }
    words.join(" ")
}
