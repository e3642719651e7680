//! Compares our quantizer with recordings of KVBoost's, bit for bit.

use serde_json::Value;
use transload_tests::kvboost::quantizer;

fn recorded(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

const QUANTIZED: &str = include_str!("../vectors/kvboost/quant_small.json");
const PACKED: &str = include_str!("../vectors/kvboost/int4_pack.json");

#[test]
fn every_recorded_case_and_pair_agrees() {
    let cases = quantizer::replay(&recorded(QUANTIZED)).unwrap();
    assert_eq!((cases.agree, cases.of), (18, 18));
    let pairs = quantizer::replay_packing(&recorded(PACKED)).unwrap();
    assert_eq!((pairs.agree, pairs.of), (256, 256));
}

/// If any number of a recording is changed, its case no longer agrees.
#[test]
fn another_number_does_not_agree() {
    let all = recorded(QUANTIZED);
    for (name, case) in all.as_object().unwrap() {
        for key in ["kq", "ks", "kd", "vq", "vs", "vd"] {
            let last = case[key].as_array().unwrap().len() - 1;
            let mut changed = all.clone();
            let number = &mut changed[name][key][last];
            *number = match &*number {
                Value::String(_) => "0x1.23p-2".into(),
                number => (number.as_i64().unwrap() ^ 1).into(),
            };
            let cases = quantizer::replay(&changed).unwrap();
            assert_eq!((cases.agree, cases.of), (17, 18), "{name} {key}");
        }
    }
    let mut packed = recorded(PACKED);
    packed["packed_i8"][7] = 1.into();
    packed["unpacked"][9][1] = 5.into();
    let pairs = quantizer::replay_packing(&packed).unwrap();
    assert_eq!((pairs.agree, pairs.of), (254, 256));
}

#[test]
fn what_is_no_recording_is_an_error() {
    for wrong in ["[]", r#"{"a_float32.b8": {}}"#, r#"{"a_float32.b3": {}}"#, r#"{"a": {}}"#] {
        assert!(quantizer::replay(&recorded(wrong)).is_err(), "{wrong}");
    }
    let none = r#"{"a_float16.b8": {"k": ["x"], "v": [], "ks": [], "vs": []}}"#;
    assert!(quantizer::replay(&recorded(none)).is_err());
    assert!(quantizer::replay_packing(&recorded("{}")).is_err());
    let mut packed = recorded(PACKED);
    packed["bits_2"]["msg"] = "other".into();
    assert!(quantizer::replay_packing(&packed).is_err());
}
