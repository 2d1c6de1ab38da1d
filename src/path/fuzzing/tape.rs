//! Bytes that decide. Past its end a tape says zero, so every run ends.

pub struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Tape(data)
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    /// In `0..n`, `n` at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next `n` bytes as they are, or what is left.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// One time in sixteen, up to three bytes of `text` become others.
    pub fn spoil(&mut self, text: &mut [u8]) -> bool {
        if self.below(16) != 15 || text.is_empty() {
            return false;
        }
        for _ in 0..=self.below(3) {
            let at = usize::from(self.byte()) * 256 + usize::from(self.byte());
            let len = text.len();
            text[at % len] = self.byte();
        }
        true
    }
}
