//! Checksums, bit by bit.

/// CRC32C (Castagnoli) by its definition: reflected polynomial 0x82F63B78, all ones before and after.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let low = crc & 1;
            crc = crc >> 1 ^ (0x82F6_3B78 & low.wrapping_neg());
        }
    }
    !crc
}
