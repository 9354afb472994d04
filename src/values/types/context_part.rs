//! The parts of a context and their sizes.

/// A part of a request, by the origin of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContextPart {
    /// The definitions of the tools.
    Tools,
    /// The system text.
    System,
    /// The inputs of users, and messages of the host.
    User,
    /// The responses of models.
    Assistant,
    /// The results of tools.
    Results,
    /// The summary of earlier messages.
    Summary,
}

impl ContextPart {
    /// All parts, in the order of requests and reports.
    pub const ALL: [Self; 6] =
        [Self::Tools, Self::System, Self::User, Self::Assistant, Self::Results, Self::Summary];

    /// Returns the name for clients and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Results => "results",
            Self::Summary => "summary",
        }
    }
}

/// The tokens of each part of a context, in the order of [`ContextPart::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartTokens([u64; 6]);

impl PartTokens {
    /// Adds tokens to a part.
    pub fn add(&mut self, part: ContextPart, tokens: u64) {
        let sizes = ContextPart::ALL.iter().zip(&mut self.0);
        sizes.filter(|(known, _)| **known == part).for_each(|(_, size)| *size += tokens);
    }

    /// Returns the sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the parts with their tokens.
    pub fn iter(&self) -> impl Iterator<Item = (ContextPart, u64)> {
        ContextPart::ALL.into_iter().zip(self.0)
    }

    /// Returns the sizes in proportion, so that their sum is about `total`.
    #[must_use]
    pub fn scaled_to(&self, total: u64) -> Self {
        let sum = u128::from(self.total().max(1));
        let scale = |size: u64| u128::from(size) * u128::from(total) / sum;
        Self(self.0.map(|size| u64::try_from(scale(size)).unwrap_or(u64::MAX)))
    }
}
