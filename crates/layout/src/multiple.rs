//! Common multiples and divisors of sizes.

/// Returns the greatest common divisor of two numbers. It is the other one if one is 0.
pub fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the least common multiple of two numbers. `None` if it exceeds 64 bits or both are 0.
pub fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    a.checked_div(greatest_common_divisor(a, b))?.checked_mul(b)
}
