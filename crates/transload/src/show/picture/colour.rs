//! Colours: one for each head, layer and token, in a space where equal steps look equal.

/// Hues in degrees of OKLCH, the first of them told apart by every kind of eye.
const HUES: [f64; 8] = [255.0, 55.0, 150.0, 330.0, 200.0, 100.0, 295.0, 20.0];

/// How far the layers of a head are apart in hue, all together.
const LAYER_SPREAD: f64 = 26.0;

/// Lightness of the first and the last token: legible on white and on black.
const LIGHTNESS: (f64, f64) = (0.85, 0.47);

/// What a colour stands for: which of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shade {
    /// The head (group, channel), counted over all that the picture has.
    pub(super) hue: usize,
    pub(super) layer: (usize, usize),
    /// The token, or the place inside a recurrent state.
    pub(super) step: (usize, usize),
}

impl Shade {
    /// As `#rrggbb`.
    pub(super) fn hex(self) -> String {
        let around = (self.hue / HUES.len()) as f64;
        // Those beyond the eighth lie between the first eight.
        let hue = HUES[self.hue % HUES.len()] + around * 360.0 / 17.0;
        let hue = hue + LAYER_SPREAD * part(self.layer);
        let (first, last) = LIGHTNESS;
        let step = match self.step.1 {
            0 | 1 => 0.5,
            _ => part(self.step),
        };
        oklch(first + (last - first) * step, 0.075 + 0.06 * step, hue)
    }
}

/// From 0 for the first to 1 for the last.
fn part((which, of): (usize, usize)) -> f64 {
    match of {
        0 | 1 => 0.0,
        of => which as f64 / (of - 1) as f64,
    }
}

/// From lightness, chroma and hue (in degrees) to `#rrggbb`. Björn Ottosson, "A perceptual color space for
/// image processing", 2020.
pub(super) fn oklch(lightness: f64, chroma: f64, hue: f64) -> String {
    let (sin, cos) = hue.to_radians().sin_cos();
    let (a, b) = (chroma * cos, chroma * sin);
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    let channels = [
        4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s,
        -1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s,
        -0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s,
    ];
    let encode = |linear: f64| {
        let linear = linear.clamp(0.0, 1.0);
        let encoded = match linear <= 0.003_130_8 {
            true => 12.92 * linear,
            false => 1.055 * linear.powf(1.0 / 2.4) - 0.055,
        };
        (encoded * 255.0).round() as u8
    };
    let [r, g, b] = channels.map(encode);
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_colours_come_out() {
        assert_eq!(oklch(1.0, 0.0, 0.0), "#ffffff");
        assert_eq!(oklch(0.0, 0.0, 0.0), "#000000");
        // CSS Color 4: red.
        assert_eq!(oklch(0.627_955, 0.257_683, 29.234), "#ff0000");
    }
}
