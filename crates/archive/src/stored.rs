//! The stored form of a piece: unchanged or encoded.
//!
//! Keys and values are encoded one layer of one unit at a time, so the stored form depends on neither TP nor PP. Values
//! that a codec stores exactly follow all codes of the piece.

use std::borrow::Cow;

use transload_plan::codec::Codec;

use crate::convert::{Member, RankGroup, Span};
use crate::record::Piece;

impl RankGroup {
    pub(crate) fn encode(&self, codec: Codec, class: usize, span: Span, raw: Vec<u8>) -> Vec<u8> {
        let members = &self.classes[class].members;
        if !members.iter().any(|member| member.is_encoded(codec)) {
            return raw;
        }
        let (mut codes, mut exact) = (Vec::new(), Vec::new());
        let mut rest = raw.as_slice();
        while !rest.is_empty() {
            for member in members {
                let (here, behind) = rest.split_at(member.bytes(span));
                rest = behind;
                match member.rows {
                    Some(rows) => codec.encode(rows, here, &mut codes, &mut exact),
                    None => codes.extend_from_slice(here),
                }
            }
        }
        codes.append(&mut exact);
        codes
    }

    pub(crate) fn decode<'a>(&self, codec: Codec, piece: &Piece, span: Span, data: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let members = &self.classes[piece.class as usize].members;
        let bytes = usize::try_from(self.piece_bytes(piece, span)).ok()?;
        if !members.iter().any(|member| member.is_encoded(codec)) {
            return (data.len() == bytes).then_some(Cow::Borrowed(data));
        }
        let codes = usize::try_from(self.stored_bytes(codec, piece, span)?).ok()?;
        let (mut codes, mut exact) = data.split_at_checked(codes)?;
        let mut raw = vec![0; bytes];
        let mut rest = raw.as_mut_slice();
        while !rest.is_empty() {
            for member in members {
                let (here, behind) = rest.split_at_mut(member.bytes(span));
                rest = behind;
                let (own, later) = codes.split_at_checked(member.stored_bytes(codec, span)?)?;
                codes = later;
                match member.rows {
                    Some(rows) => codec.decode(rows, own, &mut exact, here).ok()?,
                    None => here.copy_from_slice(own),
                }
            }
        }
        exact.is_empty().then_some(Cow::Owned(raw))
    }

    /// Returns the stored length of a piece of these tokens, without the values that its codec stores exactly.
    pub(crate) fn stored_bytes(&self, codec: Codec, piece: &Piece, span: Span) -> Option<u64> {
        let members = self.classes[piece.class as usize].members.iter();
        let stored = members.map(|member| member.stored_bytes(codec, span));
        let layer = stored.sum::<Option<usize>>()? as u64;
        layer.checked_mul(u64::from(piece.layers))?.checked_mul(piece.units)
    }
}

impl Member {
    fn is_encoded(&self, codec: Codec) -> bool {
        !codec.is_exact() && self.rows.is_some()
    }

    fn bytes(&self, span: Span) -> usize {
        let (first, end) = self.states(span);
        ((end - first) * self.state) as usize
    }

    fn stored_bytes(&self, codec: Codec, span: Span) -> Option<usize> {
        let (first, end) = self.states(span);
        match self.rows {
            Some(rows) => codec.encoded_bytes(rows, (end - first) as usize),
            None => Some(self.bytes(span)),
        }
    }
}
