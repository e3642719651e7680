//! Tests of the book and the README: links, documents and commands are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{root, transload_in};
use transload::document::{self, Syntax};
use transload::transfer::internal::identity::PeerIdentity;
use transload::transfer::internal::tls::SERVER_NAME;

struct Block {
    language: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].iter().map(|name| root().join(name)).collect();
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
                open = Some(Block { language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a code block is not closed", page.display());
    blocks
}

/// Returns the targets of `[text](target)`, `src` and `srcset` outside code blocks.
fn links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let prose: String = text.split("```").step_by(2).collect();
    let targets = |opening, closing| {
        let after = prose.split(opening).skip(1);
        after.filter_map(move |after| after.split(closing).next().map(str::to_owned))
    };
    // Pictures for light and dark pages are written in HTML.
    let markdown = targets("](", ")");
    let html = targets("src=\"", "\"").chain(targets("srcset=\"", "\""));
    markdown.chain(html).collect()
}

/// Returns the anchor that mdBook and GitHub give a heading.
fn anchor(heading: &str) -> String {
    let mut anchor = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    anchor.retain(|c| c.is_alphanumeric() || "-_".contains(c));
    anchor
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
                let text = fs::read_to_string(&target).expect("a page");
                let found = text.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(found, "{}: {link} names no heading", page.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let src = root().join("docs/src");
    let listed: BTreeSet<PathBuf> = links(&src.join("SUMMARY.md")).iter().map(|link| src.join(link)).collect();
    let mut there = Vec::new();
    collect(&src, &mut there);
    there.retain(|page| !page.ends_with("SUMMARY.md"));
    assert_eq!(listed, there.into_iter().collect());
}

/// Checks deployment documents. One that begins with a group continues the page's first document in place of its
/// groups.
#[test]
fn deployment_documents_are_right() {
    let mut found = 0;
    for page in pages() {
        let mut head = String::new();
        let blocks = blocks(&page);
        let documents = blocks.iter().filter(|b| b.language == "toml");
        for block in documents.filter(|b| !b.text.starts_with("[dependencies]")) {
            let text = match block.text.starts_with("[[group]]") {
                true => format!("{head}{}", block.text),
                false => block.text.clone(),
            };
            if head.is_empty() {
                head.extend(text.split_inclusive('\n').take_while(|l| *l != "[[group]]\n"));
            }
            let name = page.display().to_string();
            document::parse(&name, &text, Syntax::Toml).unwrap_or_else(|e| panic!("{e}"));
            found += 1;
        }
    }
    assert!(found > 2, "the book has {found} deployment documents");
}

/// Checks that the dependencies recommended to authors of connectors are those of the example.
#[test]
fn dependencies_are_those_of_the_example() {
    type Manifest = toml::Table;
    let features = |of: &toml::Value| -> BTreeSet<String> {
        let listed = of["features"].as_array().expect("features").iter();
        listed.map(|f| f.as_str().expect("a name").to_owned()).collect()
    };
    let read = |text: &str| -> Manifest { toml::from_str(text).expect("a manifest") };
    let manifest = |dir: &str| {
        let path = root().join(dir).join("Cargo.toml");
        read(&fs::read_to_string(path).expect("a manifest"))
    };
    let example = manifest("examples/connector");
    let ours = example["dependencies"].as_table().expect("dependencies");
    let ours = ours.iter().filter(|(name, _)| name.starts_with("transload"));
    let ours: Vec<_> = ours.collect();
    let mut found = 0;
    for page in pages() {
        let blocks = blocks(&page);
        let told = blocks.iter().filter(|b| b.language == "toml");
        for block in told.filter(|b| b.text.starts_with("[dependencies]")) {
            let told = read(&block.text);
            let told = told["dependencies"].as_table().expect("dependencies");
            assert_eq!(told.len(), ours.len(), "{}", page.display());
            for (name, wanted) in &ours {
                let path = told[*name]["path"].as_str().expect("a path");
                let dir = path.strip_prefix("../transload/").expect("a clone");
                let theirs = manifest(dir);
                assert_eq!(theirs["package"]["name"].as_str(), Some(name.as_str()));
                // The workspace disables default features. Others have them.
                let mut features_told = features(&told[*name]);
                if let Some(defaults) = theirs["features"].get("default") {
                    let defaults = defaults.as_array().expect("a list").iter();
                    features_told.extend(defaults.map(|f| f.as_str().expect("one").to_owned()));
                }
                assert_eq!(features_told, features(wanted), "{}", page.display());
            }
            found += 1;
        }
    }
    assert_eq!(found, 1, "the guide to agents");
}

/// Checks that all code is tested: Rust as doc tests of the library, Python by the tests that name its page.
#[test]
fn every_line_of_code_is_run() {
    let python = BTreeMap::from([
        ("docs/src/guide/gpu.md", "crates/python/tests/test_package.py"),
        ("docs/src/guide/llama.md", "tests/engines/test_llama.py"),
        ("docs/src/guide/python.md", "crates/python/tests/test_package.py"),
        ("docs/src/guide/reuse.md", "tests/hf/test_blend.py"),
        ("docs/src/guide/transformers.md", "tests/hf/test_guide.py"),
    ]);
    let library = include_str!("../../src/lib.rs");
    for page in pages() {
        let name = page.strip_prefix(root()).expect("a page of ours");
        let name = name.display().to_string();
        let text = fs::read_to_string(&page).expect("a page");
        let fences = text.lines().filter_map(|l| l.trim_start().strip_prefix("```"));
        let languages: BTreeSet<&str> = fences.collect();
        for language in &languages {
            let plain = ["rust", "python"].iter().all(|of| !language.starts_with(of) || language == of);
            assert!(plain, "{name}: {language} is not run");
        }
        if languages.contains("rust") {
            assert!(library.contains(&format!("../../../{name}\")")), "{name} is no doc test");
        }
        if name == "README.md" {
            // The README repeats the beginning of the code that the guide's test runs.
            let guide = fs::read_to_string(root().join("docs/src/guide/llama.md")).expect("a page");
            for block in blocks(&page).iter().filter(|b| b.language == "python") {
                assert!(guide.contains(&block.text), "{}", block.text);
            }
        } else {
            assert_eq!(languages.contains("python"), python.contains_key(name.as_str()), "{name}");
        }
        // Code in a sentence is never compiled, so it must be a name and no statement.
        let prose: String = text.split("```").step_by(2).collect();
        for code in prose.split('`').skip(1).step_by(2) {
            let field = code.split_once(" = ").is_some_and(|(left, _)| {
                let name = |part: &str| !part.is_empty() && part.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
                left.contains('.') && left.split('.').all(name)
            });
            assert!(!field, "{name}: `{code}` belongs into a block");
        }
    }
    for (page, test) in python {
        let test = fs::read_to_string(root().join(test)).expect("a test");
        let file = page.rsplit('/').next().expect("a file");
        assert!(test.contains(file) && test.contains("```python"), "{page}");
    }
}

/// Checks that install commands use a clone, since nothing is published on PyPI or crates.io.
#[test]
fn what_is_installed_can_be_had() {
    for page in pages() {
        for line in fs::read_to_string(&page).expect("a page").lines() {
            let installs = ["pip install ", "cargo install ", "cargo add "];
            let told = installs.iter().find_map(|install| line.split_once(install));
            let packages = told.map_or("", |(_, packages)| packages).split('`').next();
            let by_name = |word: &str| word.trim_matches('\'').starts_with("transload");
            let mut words = packages.unwrap_or_default().split_whitespace();
            assert!(!words.any(by_name), "{}: {line}", page.display());
        }
    }
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

/// Checks that certificates made as the book describes are understood.
#[test]
fn certificates_of_others_name_services_and_clusters() {
    let mut services = 0;
    for page in pages() {
        for block in blocks(&page).iter().filter(|b| b.language == "yaml") {
            for after in block.text.split("\"transload://").skip(1) {
                let uri = after.split('"').next().expect("the end of a text");
                if uri == "blue/authority" {
                    continue;
                }
                let uri = format!("transload://{uri}");
                let named: PeerIdentity = uri.parse().unwrap_or_else(|e| panic!("{uri}: {e}"));
                assert_eq!(named.cluster.as_str(), "blue");
                let dns = format!("dnsNames: [{SERVER_NAME:?}]");
                assert!(block.text.contains(&dns), "{dns}");
                services += 1;
            }
        }
    }
    assert_eq!(services, 2);
}

/// Checks blocks of `console`, which are sessions at the root of a clone. Each `$ command` may continue on the next
/// line after a `\`. It must print the text that follows it, except for measured numbers and surrounding empty lines. A
/// picture that it draws must equal the book's. With `TRANSLOAD_BLESS=1` it replaces that one. `file:///var/kv` is a
/// store that all sessions of a page share, and `file:///tmp/scratch` an empty one.
#[test]
fn sessions_print_what_they_show() {
    let mut drawn = BTreeSet::new();
    for page in pages() {
        let stores = Stores::default();
        for block in blocks(&page).iter().filter(|b| b.language == "console") {
            for session in block.text.split("$ ").skip(1) {
                let session = session.replace("\\\n", "");
                let (line, shown) = session.split_once('\n').unwrap_or((&session, ""));
                let arguments =
                    ["transload ", "cargo run --release -- "].iter().find_map(|command| line.strip_prefix(command));
                let arguments = arguments.unwrap_or_else(|| panic!("{}: {line}", page.display()));
                let mut arguments: Vec<_> = arguments.split_whitespace().collect();
                let picture = Picture::taken_from(&mut arguments);
                let picture_there = picture.as_ref().map(Picture::there);
                arguments.extend(picture_there.as_deref());
                let placed: Vec<_> = arguments.iter().map(|text| stores.place(text)).collect();
                let placed: Vec<_> = placed.iter().map(String::as_str).collect();
                let ran = transload_in(&root(), &placed);
                let mut printed = stores.unplace(&format!("{}{}", ran.stdout, ran.stderr));
                if let Some(picture) = picture {
                    printed = printed.replace(&picture.there(), &picture.file);
                    picture.check();
                    drawn.insert(root().join(picture.file));
                }
                assert_eq!(
                    unmeasured(&printed),
                    unmeasured(shown),
                    "{}: $ {line}\n--- printed:\n{printed}",
                    page.display()
                );
            }
        }
    }
    let pictures = root().join("docs/src/guide/pictures");
    let there = fs::read_dir(pictures).expect("pictures");
    let mut there: BTreeSet<_> = there.map(|entry| entry.expect("one").path()).collect();
    // Pictures of other kinds are photographs of a browser.
    there.retain(|picture| picture.extension().is_some_and(|kind| kind == "svg"));
    // Pictures of measured figures are drawn where the figures are measured, in tests/hf.
    there.retain(|picture| !picture.file_name().is_some_and(|name| name.to_string_lossy().starts_with("reuse-")));
    assert_eq!(there, drawn, "every picture of the guide is drawn by it");
}

/// Checks that README's table of engines and the guides name the versions that the tests' environments install.
#[test]
fn versions_of_engines_are_those_of_the_tests() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file");
    let readme = read("README.md");
    let engines = [
        (&["vllm", "newer"][..], "tests/vllm/environment", "vLLM", "vllm.md"),
        (&["transformers"], "tests/hf/environment", "transformers", "transformers.md"),
        (&["llama_cpp_python"], "tests/engines/environment", "llama-cpp-python", "llama.md"),
        (&["sglang"], "tests/engines/environment", "SGLang", "sglang.md"),
        (&["lmcache"], "tests/engines/environment", "LMCache", "lmcache.md"),
    ];
    for (variables, environment, engine, guide) in engines {
        let environment = read(environment);
        let installed = variables.iter().map(|variable| {
            let mut values =
                environment.split_whitespace().filter_map(|word| word.strip_prefix(variable)?.strip_prefix('='));
            let value = values.next().unwrap_or_else(|| panic!("{engine}: a version is installed"));
            assert_eq!(values.next(), None, "{engine}: one version is installed");
            value
        });
        let installed: Vec<_> = installed.collect();
        let mut rows = readme.lines().filter(|row| row.starts_with(&format!("| [{engine}](")));
        let row = rows.next().expect("a row for each engine");
        let tested = row.split('|').nth(3).map(str::trim);
        assert_eq!(tested, Some(&*installed.join(", ")), "README says of {engine}");
        let guide = read(&format!("docs/src/guide/{guide}"));
        for version in installed {
            assert!(guide.contains(version), "the guide to {engine} says {version}");
        }
    }
    let rows = readme.lines().skip_while(|line| *line != "## Status by engine");
    let rows = rows.take_while(|line| !line.starts_with("## Short starts"));
    let rows = rows.filter(|line| line.starts_with("| [")).count();
    assert_eq!(rows, engines.len());

    // The versions of vLLM that the connector does not warn of, and the version of transformers that pip installs.
    let connector = read("crates/python/python/transload/vllm/versions.py");
    assert!(connector.contains("TESTED = ((0, 32), (0, 33))\n"));
    assert!(read("crates/python/pyproject.toml").contains("\"transformers>=5.19\""));
    let accepted = read("docs/src/what-works.md");
    assert!(accepted.contains("Tests run with 0.32.0 and 0.33.0,"));
    assert!(accepted.contains("| transformers | 5.19 and newer |"));
}

/// Checks that the guide's table and README say of deployments of vLLM what was run, and that the tests which run them are there.
#[test]
fn deployments_of_vllm_are_those_that_were_run() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let kept: toml::Table = read("tests/vllm/deployments.toml").parse().expect("TOML");
    let texts = |row: &toml::Value, key: &str| {
        let texts = row.get(key).and_then(toml::Value::as_array).into_iter().flatten();
        texts.map(|text| text.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    let mut run = Vec::new();
    for row in kept["deployment"].as_array().expect("a list") {
        let (what, vllm) = (row["what"].as_str().expect("a text"), texts(row, "vllm"));
        let (servers, stand_in) = (texts(row, "servers"), texts(row, "stand_in"));
        for (folder, tests) in [("tests/vllm", &servers), ("crates/python/tests", &stand_in)] {
            for test in tests {
                let (file, name) = test.split_once("::").expect("FILE::TEST");
                let text = read(&format!("{folder}/{file}"));
                let (before, _) =
                    text.split_once(&format!("\ndef {name}(")).unwrap_or_else(|| panic!("{test} is not there"));
                let decorators = before.rsplit("\n\n\n").next().unwrap_or_default();
                // Both versions are there anyway where each server is of one.
                let is_run = decorators.contains("newer") || file == "test_versions.py";
                assert!(
                    folder != "tests/vllm" || vllm[1] != "CPU" || is_run,
                    "{test} does not run with the later version"
                );
            }
        }
        assert_eq!(vllm.contains(&"CPU".to_owned()), !servers.is_empty(), "{what}: tests of servers");
        if vllm == ["CPU", "CPU"] {
            run.push(what.split([' ', ':']).next().unwrap_or_default());
        }
        let stands = if stand_in.is_empty() { "no" } else { "yes" };
        rows.push(format!("| {what} | {} | {stands} |", vllm.join(" | ")));
    }
    let guide = read("docs/src/guide/vllm.md");
    let table =
        guide.lines().skip_while(|line| *line != "## What was run").skip_while(|line| !line.starts_with("|---"));
    let table: Vec<_> = table.skip(1).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(table, rows, "the guide's table");
    let readme = read("README.md");
    let row = readme.lines().find(|row| row.starts_with("| [vLLM](")).expect("a row");
    let said = row.split('|').nth(4).expect("what it is tested on");
    for kind in ["TP", "PP", "DP"] {
        assert_eq!(said.contains(kind), run.contains(&kind), "README says of {kind}");
    }
}

/// Checks that the dark picture is the light one in other colours.
#[test]
fn pictures_for_dark_pages_show_the_same() {
    let drawn = |name: &str| {
        let path = root().join("docs/src/pictures").join(name);
        let picture = fs::read_to_string(path).expect("a picture");
        let (before, style) = picture.split_once("<style>").expect("colours");
        let (style, after) = style.split_once("</style>").expect("the end of colours");
        (format!("{before}{after}"), style.to_owned())
    };
    let (light, dark) = (drawn("overview.svg"), drawn("overview-dark.svg"));
    assert_eq!(light.0, dark.0);
    assert_ne!(light.1, dark.1);
}

/// Checks that the catalog's page lists all families and no others.
#[test]
fn every_family_is_in_the_book() {
    let page = root().join("docs/src/reference/models.md");
    let page = fs::read_to_string(page).expect("a page");
    let rows = page.lines().skip_while(|line| *line != "## Families");
    let rows = rows.skip(1).take_while(|line| !line.starts_with("## "));
    let rows = rows.filter(|line| line.starts_with("| ") && !line.starts_with("| family"));
    // Names are in the first column, in backquotes.
    let named = rows.flat_map(|row| {
        let cell = row.split('|').nth(1).unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    });
    let mut named: Vec<&str> = named.collect();
    let mut known: Vec<&str> = transload::layout::catalog::Model::families().collect();
    named.sort_unstable();
    known.sort_unstable();
    assert_eq!(named, known);
}

/// Checks that the examples are copies of configs that the catalog is tested with.
#[test]
fn examples_of_models_are_those_of_the_catalog() {
    let read = |path: &Path| -> serde_json::Value {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let examples = fs::read_dir(root().join("docs/examples/models")).expect("examples");
    for example in examples.map(|entry| entry.expect("an example").path()) {
        let name = example.file_name().expect("a name");
        let tested = root().join("crates/layout/tests/catalog/configs").join(name);
        assert_eq!(read(&example), read(&tested), "{}", example.display());
    }
}

#[derive(Default)]
struct Stores(std::cell::OnceCell<tempfile::TempDir>);

impl Stores {
    const FILLED: &str = "/var/kv";
    const EMPTY: &str = "/tmp/scratch";

    /// Replaces the page's location of a store by the real one.
    fn place(&self, argument: &str) -> String {
        let Some(path) = argument.strip_prefix("file://") else {
            return argument.to_owned();
        };
        let dir = self.0.get_or_init(|| {
            let dir = tempfile::tempdir().expect("a folder");
            crate::stores::fill(&dir.path().join("kv"));
            dir
        });
        let place = match path {
            Self::FILLED => "kv",
            Self::EMPTY => "scratch",
            other => panic!("{other}: the book has {} and {}", Self::FILLED, Self::EMPTY),
        };
        crate::stores::uri(&dir.path().join(place))
    }

    fn unplace(&self, printed: &str) -> String {
        let Some(dir) = self.0.get() else {
            return printed.to_owned();
        };
        let [filled, empty] = ["kv", "scratch"].map(|place| dir.path().join(place));
        let [filled, empty] = [filled, empty].map(|path| path.display().to_string());
        printed.replace(&filled, Self::FILLED).replace(&empty, Self::EMPTY)
    }
}

/// A picture that a session draws. It is drawn in another folder, so that the book's is not overwritten.
struct Picture {
    /// The path of the picture as the page gives it: `docs/src/guide/pictures/….svg`.
    file: String,
    dir: tempfile::TempDir,
}

impl Picture {
    const OPTION: &str = "--svg";

    /// Removes the file from the end of the arguments if the option for a picture is before it. The option stays.
    fn taken_from(arguments: &mut Vec<&str>) -> Option<Self> {
        let [.., option, file] = arguments[..] else {
            return None;
        };
        if option != Self::OPTION {
            assert!(!arguments.contains(&Self::OPTION), "--svg comes last");
            return None;
        }
        arguments.pop();
        Some(Self { file: file.to_owned(), dir: tempfile::tempdir().expect("a folder") })
    }

    /// Returns the path at which it is drawn.
    fn there(&self) -> String {
        self.dir.path().join("drawn.svg").display().to_string()
    }

    fn check(&self) {
        let drawn = fs::read_to_string(self.there()).expect("a picture");
        let file = root().join(&self.file);
        if std::env::var_os("TRANSLOAD_BLESS").is_some() {
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(&file, &drawn).expect("it is written");
        }
        let known = fs::read_to_string(&file).unwrap_or_default();
        assert!(known == drawn, "{} is not what is drawn; TRANSLOAD_BLESS=1 writes it anew", self.file);
    }
}

/// Removes text that differs between runs: times, rates, and the padding of columns that depends on them.
fn unmeasured(text: &str) -> String {
    const UNITS: [&str; 5] = ["ns", "us", "ms", "s", "GB/s"];
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        let unit = word.trim_end_matches([',', '.', ';', ')']);
        if UNITS.contains(&unit) && words.last().is_some_and(|w| w.starts_with(|c: char| c.is_ascii_digit())) {
            words.pop();
            words.push("(measured)");
            continue;
        }
        // A rule is as wide as its table, which depends on the padding.
        words.push(match word.chars().all(|c| c == '─') {
            true => "─",
            false => word,
        });
    }
    words.join(" ")
}
