//! Closed sets of words: enums whose variants are the words of files, labels, JSON and logs.

/// Declares such an enum, with `ALL`, `COUNT`, `WORDS`, `name()`, a dense `index()`, `FromStr` and `Display`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            pub const COUNT: usize = Self::ALL.len();
            /// Every word, in declaration order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in files, labels, JSON and logs.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Dense, in declaration order.
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok($name::$variant),)+
                    _ => Err(format!("one of {}", $name::WORDS.join(", "))),
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use words;
