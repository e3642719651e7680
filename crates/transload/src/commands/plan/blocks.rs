//! Block lists on the command line: `[GROUP=]LIST`, where a list is `3,7,8-11` and `-` is an entry without a block.

use std::str::FromStr;

use transload::layout::document::Document;
use transload::layout::{Deployment, Side};
use transload::transfer::plan::BoundPlan;
use transload::transfer::{BlockTable, Plan, Request, Tables};

use crate::failure::Failure;

/// The most entries of one list. A million tokens in blocks of one need a sixteenth of this.
const MAX_ENTRIES: usize = 1 << 24;

/// Which blocks hold the tokens on both sides.
#[derive(Debug, clap::Args)]
pub(super) struct BlockArgs {
    /// Block ids of the source, in the order of the tokens: `3,7,8-11`; `-` stands for a block that is not accessed.
    /// Default: the blocks from 0 on, in order. A list with GROUP= applies to that group, one without to all groups
    /// that have no list of their own.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    src_blocks: Vec<BlockList>,

    /// Block ids of the destination, in the same form as --src-blocks.
    #[arg(long, value_name = "[GROUP=]LIST", allow_hyphen_values = true)]
    dst_blocks: Vec<BlockList>,

    /// Scatter the blocks on both sides so that no two are adjacent, as in engines that have run for a while. Documents
    /// need num_blocks for twice the tokens.
    #[arg(long, conflicts_with_all = ["src_blocks", "dst_blocks"])]
    pub(super) scattered: bool,
}

impl BlockArgs {
    pub(super) fn are_listed(&self) -> bool {
        !self.src_blocks.is_empty() || !self.dst_blocks.is_empty()
    }

    /// Returns the tokens for which a side needs room so that this many tokens get blocks.
    pub(super) fn room(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(if self.scattered { 2 } else { 1 })
    }

    pub(super) fn tables(&self, plan: &Plan) -> Result<(Tables, Tables), Failure> {
        if self.scattered {
            return scattered(plan).ok_or_else(|| {
                Failure::input("--scattered would list too many blocks", "use fewer tokens or larger blocks")
            });
        }
        Ok((tables(plan, "--src-blocks", &self.src_blocks)?, tables(plan, "--dst-blocks", &self.dst_blocks)?))
    }
}

/// The value of one option: the blocks of a group, or of all groups without a list of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockList {
    group: Option<String>,
    blocks: Vec<u32>,
}

impl FromStr for BlockList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (group, list) = match text.split_once('=') {
            Some((group, list)) => (Some(group.to_owned()), list),
            None => (None, text),
        };
        let mut blocks = Vec::new();
        for item in list.split(',') {
            let item = item.trim();
            let (first, last) = match item {
                "-" => (BlockTable::NONE, BlockTable::NONE),
                _ => range(item)?,
            };
            let more = (last - first) as usize + 1;
            if blocks.len() + more > MAX_ENTRIES {
                return Err(format!("the list has more than {MAX_ENTRIES} entries"));
            }
            blocks.extend(first..=last);
        }
        Ok(Self { group, blocks })
    }
}

fn range(item: &str) -> Result<(u32, u32), String> {
    let number = |digits: &str| {
        // `u32`'s own parser accepts a sign.
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(block) if plain && block != BlockTable::NONE => Ok(block),
            _ => Err(format!(
                "{item:?} is not a block; a list consists of blocks (3), ranges (8-11) and - for no \
                              block"
            )),
        }
    };
    match item.split_once('-') {
        None => number(item).map(|block| (block, block)),
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok((first, last)),
            (first, last) => Err(format!(
                "the range {item} runs backwards; write {last}-{first}, or list the blocks \
                                          one by one"
            )),
        },
    }
}

/// Returns the tables of one side: the given lists, and block i as block i for groups without one.
fn tables(plan: &Plan, option: &str, lists: &[BlockList]) -> Result<Tables, Failure> {
    let mut tables = Tables::identity(plan);
    let mut is_listed = vec![false; tables.0.len()];
    // Lists of single groups come first, so that a list for all groups fills the rest.
    for list in lists.iter().filter(|list| list.group.is_some()) {
        let name = list.group.as_deref().unwrap_or_default();
        let Some(group) = plan.group_names().position(|group| group == name) else {
            let known: Vec<&str> = plan.group_names().collect();
            return Err(Failure::input(
                format!("{option} {name}=…: the deployments have no group \"{name}\""),
                format!("the groups are {}", known.join(", ")),
            ));
        };
        if is_listed[group] {
            return Err(twice(option, &format!("group \"{name}\"")));
        }
        is_listed[group] = true;
        tables.0[group] = BlockTable::List(list.blocks.clone());
    }
    let mut rest = lists.iter().filter(|list| list.group.is_none());
    if let Some(list) = rest.next() {
        for group in (0..is_listed.len()).filter(|group| !is_listed[*group]) {
            tables.0[group] = BlockTable::List(list.blocks.clone());
        }
    }
    match rest.next() {
        Some(_) => Err(twice(option, "all groups")),
        None => Ok(tables),
    }
}

/// Returns scattered tables, as in engines that have run for a while: no two blocks of a sequence are neighbours in
/// memory. They take twice the room. Returns `None` if they would exceed the limit on entries.
pub(super) fn scattered(plan: &Plan) -> Option<(Tables, Tables)> {
    let table = |side| {
        let tables = (0..plan.group_names().len()).map(|group| {
            let entries = plan.table_entries(group, side).end;
            let entries = u32::try_from(entries).ok()?;
            let blocks = (0..entries).map(|entry| 2 * entry);
            ((entries as usize) <= MAX_ENTRIES).then(|| BlockTable::List(blocks.collect()))
        });
        tables.collect::<Option<_>>().map(Tables)
    };
    Some((table(Side::Source)?, table(Side::Destination)?))
}

/// Plans the same transfer between sides with enough room for scattered blocks, and binds it to such blocks. Returns
/// `None` if a side cannot be that large.
pub(super) fn scattered_elsewhere(src: &Deployment, dst: &Deployment, request: &Request) -> Option<BoundPlan> {
    let side = |side: &Deployment| roomy(side.document().clone(), request.end());
    let plan = Plan::compile(&side(src)?, &side(dst)?, request).ok()?;
    let tables = scattered(&plan)?;
    plan.bind(&tables.0, &tables.1).ok()
}

/// Returns a side with room for this many tokens in scattered blocks, if that is possible.
pub(super) fn roomy(mut document: Document, tokens: u64) -> Option<Deployment> {
    let dcp = document.dcp;
    for group in &mut document.groups {
        let blocks = match group.is_recurrent() {
            true => 1,
            false => tokens.div_ceil(group.entry_tokens(dcp).max(1)),
        };
        group.num_blocks = 2 * blocks.max(1);
    }
    Deployment::from_document(document.clone()).ok().or_else(|| {
        // Explicit strides may fit only the original number of blocks.
        for group in &mut document.groups {
            group.drop_strides();
        }
        Deployment::from_document(document).ok()
    })
}

fn twice(option: &str, of: &str) -> Failure {
    Failure::input(
        format!("{option} is given twice for {of}"),
        "give one list with all the blocks: 3,7,8-11; or one for each group: GROUP=LIST",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u32 = BlockTable::NONE;

    #[test]
    fn lists_are_blocks_ranges_and_gaps() {
        let cases: [(&str, Option<&str>, &[u32]); 5] = [
            ("3,7,8-11", None, &[3, 7, 8, 9, 10, 11]),
            ("-,-,5", None, &[NONE, NONE, 5]),
            ("-", None, &[NONE]),
            ("attn=0, 2", Some("attn"), &[0, 2]),
            ("4-4", None, &[4]),
        ];
        for (text, group, blocks) in cases {
            let list: BlockList = text.parse().expect(text);
            assert_eq!(list.group.as_deref(), group, "{text}");
            assert_eq!(list.blocks, blocks, "{text}");
        }
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (text, part) in [
            ("", "is not a block"),
            ("attn=", "is not a block"),
            ("1,,2", "is not a block"),
            ("x", "is not a block"),
            ("+1", "is not a block"),
            ("1-2-3", "is not a block"),
            ("4294967295", "is not a block"),
            ("7-3", "write 3-7"),
            ("0-4294967294", "more than"),
        ] {
            let error = text.parse::<BlockList>().expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
