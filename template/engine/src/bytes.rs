//! Little-endian bytes of values, for checkpoints and other processes, and hexadecimal hashes.

use sha2::{Digest, Sha256};

/// The bytes of `values`.
pub(crate) fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    extend(&mut bytes, values);
    bytes
}

/// Appends the bytes of `values`.
pub(crate) fn extend(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.reserve_exact(size_of_val(values));
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// The values encoded in `bytes`; an incomplete last one is dropped.
pub(crate) fn to_values(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// The digest of `hash` in lower-case hexadecimal digits.
pub(crate) fn hex(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_with_all_their_bits() {
        let values = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::INFINITY];
        let bytes = to_bytes(&values);
        assert_eq!(bytes[8..12], [0, 0, 0xc0, 0x3f]);
        let read = to_values(&bytes);
        // Bits distinguish -0 from 0.
        assert_eq!(
            read.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
            values.map(f32::to_bits)
        );
        assert_eq!(to_values(&bytes[..7]), [0.0]);
    }

    #[test]
    fn a_hash_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let hash = hex(Sha256::new().chain_update("abc"));
        assert!(hash.starts_with("ba7816bf8f01cfea") && hash.len() == 64);
    }
}
