//! The memory that published models take, compared with published figures.

use transload_layout::Footprint;
use transload_layout::catalog::Model;

use crate::common::{config, read, read_in};

/// Returns the bytes of all layers for each further token, and those that do not depend on the length.
fn whole(model: &Model) -> (f64, u128) {
    let groups = model.groups.iter().map(|group| {
        let layer = Footprint::of(&group.specs, 1).unwrap();
        let layers = group.layers.ids().len();
        (layer.bytes_per_token() * layers as f64, layer.fixed_bytes() * layers as u128)
    });
    groups.fold((0.0, 0), |(token, fixed), (t, f)| (token + t, fixed + f))
}

#[test]
fn models_take_what_is_told_of_them() {
    for (name, per_token, fixed) in [
        ("llama-3.1-8b", 131_072.0, 0),
        ("llama-3.1-70b", 327_680.0, 0),
        ("deepseek-v3", 70_272.0, 0),
        // A window of 128 tokens in 18 layers, 2,048 bytes a token.
        ("gpt-oss-120b", 36_864.0, 18 * 128 * 2048),
        // The latent, and 132 bytes of index keys in each of 61 layers.
        ("deepseek-v3.2", 70_272.0 + 61.0 * 132.0, 0),
        // Two latents in each of 28 layers.
        ("longcat-flash", 56.0 * 576.0 * 2.0, 0),
        // 36 layers of chunks of 8,192 tokens, 12 of all tokens; 4,096 bytes a token.
        ("llama-4-scout-17b-16e", 12.0 * 4096.0, 36 * 8192 * 4096),
        // 24 layers with a state: 3 taps of 8192 + 2048 channels in bf16, 128 heads of 64 x 128 in float32.
        ("nemotron-h-8b", 4.0 * 4096.0, 24 * (3 * (8192 + 2048) * 2 + 128 * 64 * 128 * 4)),
    ] {
        let model = read(&config(name)).unwrap();
        assert_eq!(whole(&model), (per_token, fixed), "{name}");
    }
}

#[test]
fn packed_latents_take_656_bytes() {
    for (name, per_token) in
        [("deepseek-v3", 61.0 * 656.0), ("deepseek-v3.2", 61.0 * (656.0 + 132.0)), ("kimi-linear-48b-a3b", 7.0 * 656.0)]
    {
        let model = read_in("fp8_ds_mla", &config(name)).unwrap();
        assert_eq!(whole(&model).0, per_token, "{name}");
    }
}

#[test]
fn deepseek_v4_keeps_a_fraction_of_its_tokens() {
    let model = read(&config("deepseek-v4-flash")).unwrap();
    let layers = |name: &str| {
        let group = model.groups.iter().find(|group| group.name == name);
        group.unwrap().layers.ids().len() as f64
    };
    let (c4, c128) = (layers("c4"), layers("c128"));
    // 576 bytes and 8 of scales for 4 or for 128 tokens, and 132 of index keys for 4.
    let per_token = c4 * (584.0 + 132.0) / 4.0 + c128 * 584.0 / 128.0;
    assert_eq!(whole(&model).0, per_token);
    // Windows of 128 rows everywhere; states of 8 tokens (2048 and 512 floats) and of 128 (1024 floats).
    let (rows, c4, c128) = (43 * 128 * 584, c4 as u128, c128 as u128);
    let states = c4 * 8 * (2048 + 512) * 4 + c128 * 128 * 1024 * 4;
    assert_eq!(whole(&model).1, rows + states);
}
