//! Short descriptions of a side: `tp=4,block=16,order=NHD`.

use std::str::FromStr;

use transload::layout::Allocation;
use transload::layout::catalog::Serving;
use transload::layout::spec::ConvLayout;

use crate::commands::model;

const KEYS: &str = "tp, pp, block, blocks, order, conv (DS or SD), allocation (one or per_layer), name";

/// The way in which a side serves the model, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Description(pub(crate) Serving);

impl FromStr for Description {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut side = Serving::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in parts(text) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not key=value; write a side as tp=4,block=16,order=NHD"))?;
            let (key, value) = (key.trim(), value.trim());
            let number = || match value.parse::<u64>() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{key} must be a whole number of at least 1, not {value:?}")),
            };
            match key {
                "tp" => side.tp = number()?,
                "pp" => side.pp = number()?,
                "block" => side.block_size = Some(number()?),
                "blocks" => side.num_blocks = Some(number()?),
                "order" => side.order = Some(model::order(value)?),
                "conv" => {
                    let named = ConvLayout::ALL.into_iter().find(|layout| layout.name().eq_ignore_ascii_case(value));
                    side.conv_layout = named.ok_or_else(|| format!("conv must be DS or SD, not {value:?}"))?;
                }
                "allocation" => {
                    side.allocation = match value {
                        "one" => Allocation::One,
                        "per_layer" => Allocation::PerLayer,
                        _ => {
                            let problem = "allocation must be one or per_layer";
                            return Err(format!("{problem}, not {value:?}"));
                        }
                    }
                }
                "name" => side.name = value.to_owned(),
                // Replicas do not share a request's cache, so one replica is like no data parallelism.
                "dp" if number()? == 1 => {}
                "dp" => {
                    return Err(format!(
                        "dp={value} means {value} replicas, but a request's cache is in only one of them: leave dp \
                         out and give the tp of one replica, for example tp=1"
                    ));
                }
                _ => return Err(format!("{key:?} is not a key of a side; the keys are {KEYS}")),
            }
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
        }
        Ok(Self(side))
    }
}

/// Splits at commas outside the brackets of an order.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    split.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_read_key_by_key() {
        let read: Description =
            "tp=4, pp=2,block=64,order=LBH[DS,SD],conv=DS,allocation=per_layer".parse().expect("a side");
        let expected = Serving {
            tp: 4,
            pp: 2,
            block_size: Some(64),
            order: Some("LBH[DS,SD]".to_owned()),
            conv_layout: ConvLayout::Ds,
            allocation: Allocation::PerLayer,
            ..Serving::default()
        };
        assert_eq!(read.0, expected);
        for (small, large) in
            [("order=nhd", "order=NHD"), ("order=lbh[ds,sd],conv=ds,dp=1", "order=LBH[DS,SD],conv=DS")]
        {
            let [small, large] = [small, large].map(str::parse::<Description>);
            assert_eq!(small, large);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, told) in [
            ("", "\"\" is not key=value; write a side as tp=4,block=16,order=NHD"),
            ("tp", "\"tp\" is not key=value; write a side as tp=4,block=16,order=NHD"),
            ("tp=0", "tp must be a whole number of at least 1, not \"0\""),
            ("tp=2,tp=4", "tp is given twice"),
            ("conv=s", "conv must be DS or SD, not \"s\""),
            ("tp=1,dp=8", "dp=8 means 8 replicas, but a request's cache is in only one of them: leave dp out"),
            ("order=LXS", "'X' is not an axis"),
            ("rank=3", "\"rank\" is not a key of a side; the keys are tp, pp, block"),
        ] {
            let problem = text.parse::<Description>().expect_err(text);
            assert!(problem.starts_with(told), "{text}: {problem}");
        }
    }
}
