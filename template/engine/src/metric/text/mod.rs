//! Metrics of texts and of language models.

mod bleu;
mod perplexity;

pub use bleu::Bleu;
pub use perplexity::Perplexity;
