//! Prompts of a wanted length that no cache has seen: random, so that no two begin alike, and of ids where the engine has told some.
//!
//! Invariant: a prompt of ids has exactly the length asked for; of words, about that, once [`Prompts::learn`] knows how long words are.

use serde_json::{Map, Value, json};

use crate::base::prng::Prng;
use crate::config::Dialect;

/// Makes prompts for one engine.
#[derive(Debug)]
pub struct Prompts {
    prng: Prng,
    model: String,
    salted: bool,
    vocabulary: Vec<u64>,
    /// Tokens in a prompt of words: so many whatever it holds, and so many a word.
    fixed: f64,
    per_word: f64,
}

/// One request as a client would send it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub body: Vec<u8>,
    /// As far as we know.
    pub tokens: u64,
    pub is_exact: bool,
}

/// Words of which a prompt without ids is made for the two requests that learn how long words are.
pub const LEARN_WORDS: [u64; 2] = [16, 144];

impl Prompts {
    pub fn new(prng: Prng, model: &str, dialect: Dialect, vocabulary: Vec<u64>) -> Prompts {
        Prompts {
            prng,
            model: model.to_owned(),
            salted: dialect == Dialect::Vllm,
            vocabulary,
            fixed: 0.0,
            per_word: 1.5,
        }
    }

    /// Whether lengths are exact.
    pub fn is_exact(&self) -> bool {
        !self.vocabulary.is_empty()
    }

    /// A request with a prompt of `tokens` that may generate `tokens_max`.
    pub fn make(&mut self, tokens: u64, tokens_max: u64) -> Prompt {
        if self.is_exact() {
            let ids: Vec<u64> = (0..tokens)
                .map(|_| self.vocabulary[self.prng.below(self.vocabulary.len() as u64) as usize])
                .collect();
            return self.request(json!(ids), tokens, tokens_max);
        }
        let words = ((tokens as f64 - self.fixed) / self.per_word)
            .round()
            .max(1.0);
        let text = self.words(words as u64);
        let about = (self.fixed + words * self.per_word).round().max(1.0);
        self.request(Value::String(text), about as u64, tokens_max)
    }

    /// A prompt of so many words, for learning how long words are.
    pub fn of_words(&mut self, words: u64) -> Prompt {
        let text = self.words(words);
        self.request(Value::String(text), words, 1)
    }

    /// Tokens that the engine counted in the prompts of [`LEARN_WORDS`].
    pub fn learn(&mut self, counted: [u64; 2]) {
        let [few, many] = LEARN_WORDS.map(|n| n as f64);
        let [short, long] = counted.map(|n| n as f64);
        if long > short {
            self.per_word = (long - short) / (many - few);
            self.fixed = short - few * self.per_word;
        }
    }

    fn request(&mut self, prompt: Value, tokens: u64, tokens_max: u64) -> Prompt {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("prompt".into(), prompt);
        body.insert("max_tokens".into(), json!(tokens_max));
        body.insert("temperature".into(), json!(0));
        // An answer that ends by itself ends a measurement.
        body.insert("ignore_eos".into(), json!(true));
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if self.salted {
            // Prompts are random anyway; with this no block of theirs can be known.
            let salt = String::from_utf8_lossy(&self.prng.uuid()).into_owned();
            body.insert("cache_salt".into(), json!(salt));
        }
        Prompt {
            body: Value::Object(body).to_string().into_bytes(),
            tokens,
            is_exact: self.is_exact(),
        }
    }

    /// Words of three syllables.
    fn words(&mut self, count: u64) -> String {
        const SYLLABLES: [&str; 16] = [
            "ba", "de", "ki", "lo", "ma", "ne", "ri", "to", "sa", "ve", "mi", "no", "pa", "re",
            "ti", "lu",
        ];
        let mut text = String::new();
        for _ in 0..count {
            for _ in 0..3 {
                text.push_str(SYLLABLES[self.prng.below(16) as usize]);
            }
            text.push(' ');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_asked_for_and_no_two_are_alike() {
        let ids: Vec<u64> = (300..400).collect();
        let mut exact = Prompts::new(Prng::new(1), "m", Dialect::Vllm, ids);
        let (one, two) = (exact.make(48, 5), exact.make(48, 5));
        let value =
            |prompt: &Prompt| -> Value { serde_json::from_slice(&prompt.body).expect("JSON") };
        for prompt in [&one, &two] {
            assert_eq!((prompt.tokens, prompt.is_exact), (48, true));
            assert_eq!(value(prompt)["prompt"].as_array().map(Vec::len), Some(48));
            assert_eq!(value(prompt)["max_tokens"], 5);
        }
        assert_ne!(value(&one)["prompt"], value(&two)["prompt"]);
        assert_ne!(value(&one)["cache_salt"], value(&two)["cache_salt"]);

        let mut words = Prompts::new(Prng::new(1), "m", Dialect::Openai, Vec::new());
        // Two tokens a word, and one at the start.
        words.learn([33, 289]);
        let prompt = words.make(101, 5);
        assert_eq!((prompt.tokens, prompt.is_exact), (101, false));
        let text = value(&prompt)["prompt"].as_str().expect("text").to_owned();
        assert_eq!(text.split_whitespace().count(), 50);
        assert_eq!(value(&prompt).get("cache_salt"), None);
        // What no tokenizer counts changes nothing.
        words.learn([9, 9]);
        assert_eq!(words.make(101, 5).tokens, 101);
        assert!(words.make(0, 1).tokens >= 1);
    }
}
