//! The meanings of single bytes in a file.

use std::fmt;
use std::str::FromStr;

/// The error for a name that stands for no byte.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`; known are {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

macro_rules! named_bytes {
    ($(#[$doc:meta])* $type:ident, $what:literal: $($variant:ident = $byte:literal $name:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $type {
            $(#[doc = concat!("`", $name, "`: byte ", stringify!($byte), ".")] $variant = $byte,)*
        }

        impl $type {
            /// All values, ordered by byte.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the meaning of a byte.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the byte in the file.
            pub const fn byte(self) -> u8 {
                self as u8
            }

            /// Returns the name in erllama.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(UnknownName {
                        what: $what,
                        name: name.chars().take(64).collect(),
                        known: [$($name),*].join(", "),
                    }),
                }
            }
        }
    };
}

named_bytes! {
    /// The reason why a sequence was saved.
    SaveReason, "save reason":
    Unknown = 0 "unknown",
    Cold = 1 "cold",
    Continued = 2 "continued",
    Evict = 3 "evict",
    Shutdown = 4 "shutdown",
    Finish = 5 "finish",
}

named_bytes! {
    /// The way in which the model's fingerprint was computed.
    FingerprintMode, "fingerprint mode":
    Safe = 0 "safe",
    GgufChunked = 1 "gguf_chunked",
    FastUnsafe = 2 "fast_unsafe",
}

named_bytes! {
    /// The model's quantisation. erllama writes 255 for an unknown one and cannot read that file again, so there is no
    /// variant for it.
    QuantType, "quant type":
    F32 = 0 "f32",
    F16 = 1 "f16",
    Q4_0 = 2 "q4_0",
    Q4_1 = 3 "q4_1",
    Q5_0 = 4 "q5_0",
    Q5_1 = 5 "q5_1",
    Q8_0 = 6 "q8_0",
    Q4KM = 7 "q4_k_m",
    Q4KS = 8 "q4_k_s",
    Q5KM = 9 "q5_k_m",
    Q5KS = 10 "q5_k_s",
    Q6K = 11 "q6_k",
    Q8K = 12 "q8_k",
    Q2K = 13 "q2_k",
    Q3KS = 14 "q3_k_s",
    Q3KM = 15 "q3_k_m",
    Q3KL = 16 "q3_k_l",
    Iq2Xxs = 17 "iq2_xxs",
    Iq2Xs = 18 "iq2_xs",
    Iq2S = 19 "iq2_s",
    Iq2M = 20 "iq2_m",
    Iq3Xxs = 21 "iq3_xxs",
    Iq3Xs = 22 "iq3_xs",
    Iq3S = 23 "iq3_s",
    Iq3M = 24 "iq3_m",
    Iq1S = 25 "iq1_s",
    Iq1M = 26 "iq1_m",
    Iq4Nl = 27 "iq4_nl",
    Iq4Xs = 28 "iq4_xs",
    Bf16 = 29 "bf16",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_one_name_or_none() {
        for byte in 0..=u8::MAX {
            assert_eq!(QuantType::from_byte(byte).is_some(), byte < 30);
            assert_eq!(SaveReason::from_byte(byte).is_some(), byte < 6);
            assert_eq!(FingerprintMode::from_byte(byte).is_some(), byte < 3);
        }
        for (byte, quant) in QuantType::ALL.iter().enumerate() {
            assert_eq!(usize::from(quant.byte()), byte);
            assert_eq!(quant.name().parse(), Ok(*quant));
        }
    }

    #[test]
    fn other_names_are_refused_with_those_there_are() {
        let error = "q9_9".parse::<QuantType>().unwrap_err().to_string();
        assert!(error.starts_with("unknown quant type `q9_9`; known are f32, f16,"));
    }
}
