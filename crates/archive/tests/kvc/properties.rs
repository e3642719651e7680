//! Every file that is written can be read.

use proptest::collection::vec;
use proptest::prelude::*;
use transload_archive::kvc::{Draft, FingerprintMode, PayloadSum, QuantType, SaveReason, parse};

prop_compose! {
    fn drafts()(
        hashes in any::<[[u8; 32]; 2]>(),
        kinds in (0..3_u8, 0..30_u8, 0..6_u8),
        numbers in any::<(u8, u32, u32, u64, u64)>(),
        tokens in vec(any::<u32>(), 0..40),
        texts in [vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..9)],
    ) -> Draft {
        let [prompt, hostname, version, detail] = texts;
        let (quant_bits, hits, context, created, used) = numbers;
        Draft::new(
            hashes[0],
            FingerprintMode::from_byte(kinds.0).unwrap(),
            QuantType::from_byte(kinds.1).unwrap(),
            hashes[1],
            tokens,
        )
        .with_save_reason(SaveReason::from_byte(kinds.2).unwrap())
        .with_save_reason_detail(detail)
        .with_quant_bits(quant_bits)
        .with_hit_count(hits)
        .with_context_size(context)
        .with_times(created, used)
        .with_prompt_text(prompt)
        .with_hostname(hostname)
        .with_erllama_version(version)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(draft in drafts(), payload in vec(any::<u8>(), 0..300)) {
        let mut file = Vec::new();
        draft.write(&payload, &mut file).unwrap();
        let kvc = parse(&file).unwrap();
        prop_assert_eq!(Draft::from(&kvc.info), draft.clone());
        prop_assert_eq!(kvc.payload, &payload[..]);
        prop_assert_eq!(kvc.verify(Some(&draft.key())), Ok(()));

        // A payload that passes by in pieces makes the same file.
        let mut sum = PayloadSum::new();
        payload.chunks(7).for_each(|piece| sum.update(piece));
        let prefix = draft.prefix(&sum).unwrap();
        prop_assert_eq!([&prefix[..], &payload].concat(), file);
    }

    /// The reader, the CRC or the key detects a changed byte, or the result changes. The reserved bytes and both counts
    /// of tokens are exceptions, because they are not read.
    #[test]
    fn a_changed_byte_is_noticed(
        draft in drafts(),
        payload in vec(any::<u8>(), 1..50),
        at in any::<prop::sample::Index>(),
        by in 1..=u8::MAX,
    ) {
        let mut file = Vec::new();
        draft.write(&payload, &mut file).unwrap();
        let at = at.index(file.len());
        file[at] ^= by;
        let key = draft.key();
        let read = parse(&file).and_then(|kvc| kvc.verify(Some(&key)).map(|()| kvc));
        if let Ok(kvc) = read {
            let counted = 80 + kvc.info.prompt_text.len() + 86;
            let unread = [6..8, 8..12, 20..24, 68..72, counted..counted + 9];
            prop_assert!(
                Draft::from(&kvc.info) != draft || unread.iter().any(|range| range.contains(&at)),
                "byte {}", at
            );
        }
    }
}
