//! BLEU, of translations and other generated texts.

use std::{collections::HashMap, hash::Hash};

use anyhow::{Result, ensure};

use crate::metric::{Metric, value_by_name};

/// The longest n-grams that count.
const ORDER: usize = 4;

/// Corpus BLEU of generated sequences against one or more references each, from 0 to 100: the geometric mean
/// of the precisions of n-grams of 1 to 4 tokens, times a penalty for output shorter than the references.
/// Counts of n-grams, each at most as often as in one reference, are summed over the corpus before they are
/// divided, so it is not a mean over sentences.
///
/// The brevity penalty is exp(1 - references / hypotheses) for a sum of lengths below that of the references,
/// of which the closest in length counts (the shorter of two). An order without matches counts as 1 / (2^k ·
/// total), k counting such orders (smoothing `exp`). 0 without any match, as without 4-grams. No result
/// without examples.
///
/// Source: `sacrebleu.corpus_bleu` with its defaults, of text that is already split into tokens
/// (`tokenize="none"`); Papineni et al. (2002), <https://aclanthology.org/P02-1040>.
#[derive(Clone, Debug, PartialEq)]
pub struct Bleu {
    name: &'static str,
    counts: Counts,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    examples: f64,
    /// Tokens of hypotheses, and of the references closest to them in length.
    hypotheses: f64,
    references: f64,
    /// By the length of n-grams: how many match a reference, and how many there are.
    matches: [f64; ORDER],
    total: [f64; ORDER],
}

/// Numbers in the state.
const NUMBERS: usize = 3 + 2 * ORDER;

impl Counts {
    fn numbers(&self) -> impl Iterator<Item = f64> {
        let counts = [self.examples, self.hypotheses, self.references];
        counts.into_iter().chain(self.matches).chain(self.total)
    }

    fn numbers_mut(&mut self) -> impl Iterator<Item = &mut f64> {
        let counts = [
            &mut self.examples,
            &mut self.hypotheses,
            &mut self.references,
        ];
        let n_grams = self.matches.iter_mut().chain(&mut self.total);
        counts.into_iter().chain(n_grams)
    }
}

impl Bleu {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        Bleu {
            name,
            counts: Counts::default(),
        }
    }

    /// Adds an example: a generated sequence of tokens, such as ids or words, and its references. Padding and
    /// markers of begin and end are not to be among them.
    ///
    /// # Errors
    /// There is no reference; nothing is added then.
    pub fn update<T: Eq + Hash>(&mut self, hypothesis: &[T], references: &[&[T]]) -> Result<()> {
        let lengths = references.iter().map(|reference| reference.len());
        let closest = lengths.min_by_key(|len| (len.abs_diff(hypothesis.len()), *len));
        ensure!(
            closest.is_some(),
            "`{}` got a sequence of {} tokens without a reference; each needs one or more",
            self.name,
            hypothesis.len()
        );
        let counts = &mut self.counts;
        counts.examples += 1.0;
        counts.hypotheses += hypothesis.len() as f64;
        counts.references += closest.unwrap_or_default() as f64;
        for order in 1..=ORDER {
            let n_grams = n_grams(hypothesis, order);
            counts.total[order - 1] += n_grams.values().sum::<usize>() as f64;
            counts.matches[order - 1] += matches(&n_grams, references, order) as f64;
        }
        Ok(())
    }

    /// The score, from 0 to 100; `None` without examples.
    pub fn result(&self) -> Option<f64> {
        let counts = &self.counts;
        if counts.examples == 0.0 {
            return None;
        }
        let mut missing = 1.0;
        let mut logarithms = 0.0;
        for (matches, total) in counts.matches.into_iter().zip(counts.total) {
            let matches = match matches {
                0.0 => {
                    missing /= 2.0;
                    missing
                }
                matches => matches,
            };
            // Minus infinity without n-grams of this length, and without any match.
            logarithms += match total > 0.0 && counts.matches[0] > 0.0 {
                true => (matches / total).ln(),
                false => f64::NEG_INFINITY,
            };
        }
        let penalty = (1.0 - counts.references / counts.hypotheses).min(0.0);
        Some(100.0 * (penalty + logarithms / ORDER as f64).exp())
    }
}

/// Number of occurrences of each sequence of `order` tokens.
fn n_grams<T: Eq + Hash>(tokens: &[T], order: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for n_gram in tokens.windows(order) {
        *counts.entry(n_gram).or_default() += 1;
    }
    counts
}

/// Number of n-grams that occur in the references, each at most as often as in one of them.
fn matches<T: Eq + Hash>(
    n_grams: &HashMap<&[T], usize>,
    references: &[&[T]],
    order: usize,
) -> usize {
    let references: Vec<_> = references
        .iter()
        .map(|reference| self::n_grams(reference, order))
        .collect();
    let clipped = n_grams.iter().map(|(n_gram, count)| {
        let of_references = references
            .iter()
            .filter_map(|reference| reference.get(n_gram));
        of_references.max().map_or(0, |most| *most.min(count))
    });
    clipped.sum()
}

impl Metric for Bleu {
    fn name(&self) -> &'static str {
        self.name
    }

    fn examples(&self) -> usize {
        self.counts.examples as usize
    }

    /// Tokens of the generated sequences.
    fn observations(&self) -> usize {
        self.counts.hypotheses as usize
    }

    fn state(&self) -> Vec<f64> {
        self.counts.numbers().collect()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len() == NUMBERS,
            "the state of `{}` has {} numbers, and {NUMBERS} are needed: how many examples, tokens and n-grams",
            self.name,
            state.len()
        );
        let sums = self.counts.numbers_mut();
        sums.zip(state).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        value_by_name(self.name, self.result())
    }

    fn reset(&mut self) {
        self.counts = Counts::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_at_most_as_often_as_in_a_reference() {
        // The example of Papineni et al. (2002).
        let hypothesis = ["the"; 7];
        let references = ["the cat is on the mat", "there is a cat on the mat"];
        let references = references.map(|text| text.split(' ').collect::<Vec<_>>());
        let references = [&references[0][..], &references[1]];
        let mut bleu = Bleu::new("bleu");
        bleu.update(&hypothesis, &references).unwrap();
        assert_eq!((bleu.counts.matches[0], bleu.counts.total[0]), (2.0, 7.0));
        assert_eq!((bleu.counts.hypotheses, bleu.counts.references), (7.0, 7.0));
        assert_eq!((bleu.examples(), bleu.observations()), (1, 7));
    }

    #[test]
    fn what_cannot_be_scored_is_told() {
        let mut bleu = Bleu::new("bleu");
        assert_eq!(bleu.results(), []);
        assert_eq!(
            bleu.update(&[1, 2], &[]).unwrap_err().to_string(),
            "`bleu` got a sequence of 2 tokens without a reference; each needs one or more"
        );
        assert_eq!(bleu.examples(), 0);
        bleu.update(&[], &[&[1, 2][..]]).unwrap();
        assert_eq!(bleu.result(), Some(0.0), "nothing was generated");
        assert!(bleu.add_state(&[1.0]).is_err());
    }
}
