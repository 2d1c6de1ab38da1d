//! The only chance above the line: a seeded xoshiro256++ generator (Blackman and Vigna, 2019, public domain
//! algorithm). Same seed, same sequence, on every machine. Not for secrets.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Prng([u64; 4]);

impl Prng {
    /// Any seed is fine, zero included: the state is spread with splitmix64.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Prng(std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    pub fn u64(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in `0..n`; 0 when `n` is 0. The bias of the multiply is under n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Writes a random UUID (RFC 9562 version 4) as 36 lower-case bytes.
    pub fn uuid(&mut self) -> [u8; 36] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut raw = [0u8; 16];
        raw[..8].copy_from_slice(&self.u64().to_be_bytes());
        raw[8..].copy_from_slice(&self.u64().to_be_bytes());
        raw[6] = (raw[6] & 0x0f) | 0x40;
        raw[8] = (raw[8] & 0x3f) | 0x80;
        let mut out = [b'-'; 36];
        let mut at = 0;
        for (i, b) in raw.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                at += 1;
            }
            out[at] = HEX[usize::from(b >> 4)];
            out[at + 1] = HEX[usize::from(b & 15)];
            at += 2;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_sequence() {
        let (mut a, mut b, mut c) = (Prng::new(7), Prng::new(7), Prng::new(8));
        let x: Vec<u64> = (0..100).map(|_| a.u64()).collect();
        assert!(x.iter().all(|v| *v == b.u64()));
        assert!(x.iter().any(|v| *v != c.u64()));
    }

    #[test]
    fn ranges_hold() {
        let mut r = Prng::new(0);
        for _ in 0..10_000 {
            assert!(r.below(7) < 7);
            let u = r.unit();
            assert!((0.0..1.0).contains(&u));
        }
        assert_eq!(r.below(0), 0);
    }

    #[test]
    fn uuid_has_its_shape() {
        let id = Prng::new(3).uuid();
        let s = std::str::from_utf8(&id).unwrap();
        assert_eq!(s.len(), 36);
        assert_eq!(
            s.split('-').map(str::len).collect::<Vec<_>>(),
            [8, 4, 4, 4, 12]
        );
        assert_eq!(&s[14..15], "4");
        assert!("89ab".contains(&s[19..20]));
    }
}
