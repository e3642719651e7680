//! Families that are known and refused, because no kind of spec describes what they cache.

/// The data of these families in vLLM 0.32 that no spec describes. Each text continues a sentence.
const REFUSED: &[(&str, &str)] = &[
    ("inkling_mm_model", INKLING),
    ("inkling_model", INKLING),
    ("inkling_text", INKLING),
    ("qwen4_exp", QWEN4_EXP),
    ("qwen4_exp_text", QWEN4_EXP),
];

// `InklingConvState`: rows of 2 x head_dim + 2 x hidden_size / kv_heads, padded to a power of two, with a window.
const INKLING: &str = "each of its layers keeps the last inputs of four convolutions in padded rows, a row for each KV head and token \
                       of a window";

// `Qwen4ExpPLELayer` has one state for all of TP; `QSAKeyStateCache` is a ring of keys, each followed by three int64.
const QWEN4_EXP: &str = "it keeps inputs of PLE convolutions whole on every rank, and the last index keys with their positions in \
                         a ring";

pub(super) fn why(family: &str) -> Option<&'static str> {
    let mut refused = REFUSED.iter();
    refused.find(|(name, _)| *name == family).map(|(_, why)| *why)
}
