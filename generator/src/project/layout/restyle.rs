//! Merging of Rust sources in the style of the user's rustfmt.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use diffy::{ConflictStyle, MergeOptions};

use super::{
    Merged, Texts, code_of,
    rustfmt::{Style, format},
};
use crate::{
    project::{
        markers::marker_length,
        merge::{Fate, Labels, Mine},
    },
    render::RenderedFile,
};

/// A file that the template changed, while it is merged.
pub(in crate::project) struct Merging<'a> {
    pub path: &'a Path,
    pub base: Option<&'a RenderedFile<'a>>,
    pub new: Option<&'a RenderedFile<'a>>,
    pub mine: Option<Mine>,
    pub fate: Fate,
    /// No change, removal, or new contents.
    pub contents: Option<Option<Cow<'a, [u8]>>>,
    /// Whether the user changed only the layout.
    pub layout_only: bool,
    /// The sides and the result if they were merged line by line.
    pub texts: Option<(Texts, Merged)>,
}

impl Merging<'_> {
    fn is_edited(&self) -> bool {
        self.texts.is_some() || self.fate == Fate::Orphan
    }

    fn is_conflict(&self) -> bool {
        matches!(self.fate, Fate::Conflict(_))
    }

    /// The code of a file of the template.
    fn code(file: Option<&RenderedFile<'_>>) -> Option<String> {
        Some(code_of(str::from_utf8(&file?.contents).ok()?))
    }

    /// The code of base, user and new template, as far as the merge needs them formatted.
    fn sides(&self) -> [Option<String>; 3] {
        match (&self.texts, self.fate) {
            (Some((texts, _)), _) => {
                [&texts.base, &texts.mine, &texts.new].map(|it| Some(it.clone()))
            }
            (None, Fate::Orphan) => {
                let mine = self
                    .mine
                    .as_ref()
                    .map(|mine| str::from_utf8(&mine.contents));
                let mine = mine.and_then(Result::ok).map(code_of);
                [Self::code(self.base), mine, None]
            }
            (None, Fate::Replaced | Fate::Added) => {
                [Self::code(self.base), None, Self::code(self.new)]
            }
            _ => [None, None, None],
        }
    }
}

/// The sides of a file in its style.
type Styled = [Option<String>; 3];

/// Merges the Rust sources that the user edited again, with base and new template as the user's
/// rustfmt formats them, and takes the result where it is better. Where the user has formatted
/// files, new ones are formatted too. Returns false if rustfmt is missing.
pub(in crate::project) fn restyle(
    project: &Path,
    files: &mut [Merging<'_>],
    labels: Labels<'_>,
) -> bool {
    let all = styles(project, files);
    let (edited, whole): (Vec<_>, Vec<_>) = all
        .iter()
        .map(|(at, style)| (*at, style))
        .partition(|(at, _)| files[*at].is_edited());
    if edited.is_empty() {
        return true;
    }
    let (styled, runs) = format_sides(project, &edited, files);
    if !runs {
        return false;
    }
    let mut drafts = Vec::new();
    let mut formatted = false;
    for ((at, style), styled) in edited.iter().zip(&styled) {
        let file = &mut files[*at];
        if file.fate == Fate::Orphan && styled[0].is_some() && styled[0] == styled[1] {
            (file.fate, file.contents, file.layout_only) = (Fate::Removed, Some(None), true);
        }
        let Some((texts, first)) = &mut file.texts else {
            continue;
        };
        formatted |= styled[1].as_ref() == Some(&texts.mine)
            && styled[0].as_ref().is_some_and(|base| *base != texts.base);
        if let Some(draft) = Draft::of(texts, first, styled, labels) {
            drafts.push((*at, *style, draft));
        } else if styled[0].is_some() && styled[0] == styled[1] {
            first.layout_only = true;
        }
    }
    finish(project, files, drafts);
    if formatted {
        let (styled, _) = format_sides(project, &whole, files);
        for ((at, _), styled) in whole.iter().zip(&styled) {
            take_formatted(&mut files[*at], styled);
        }
    }
    true
}

/// The files to format, with their styles.
fn styles(project: &Path, files: &[Merging<'_>]) -> Vec<(usize, Style)> {
    let mut known: BTreeMap<&Path, Style> = BTreeMap::new();
    let rust = files.iter().enumerate();
    let rust = rust.filter(|(_, file)| file.path.extension().is_some_and(|it| it == "rs"));
    // Without an edit there is nothing to do, and nothing to look for.
    if !rust.clone().any(|(_, file)| file.is_edited()) {
        return Vec::new();
    }
    let mut styles = Vec::new();
    for (at, file) in rust {
        let folder = file.path.parent().unwrap_or(Path::new(""));
        let style = known
            .entry(folder)
            .or_insert_with(|| Style::of(project, file.path));
        let counts = match file.fate {
            // Without a configuration, the template has the user's style.
            _ if style.config.is_none() => file.is_conflict(),
            Fate::Replaced | Fate::Added | Fate::Orphan => true,
            _ => file.texts.is_some(),
        };
        if counts {
            styles.push((at, style.clone()));
        }
    }
    styles
}

/// Formats all sides of some files at once.
fn format_sides(
    project: &Path,
    styles: &[(usize, &Style)],
    files: &[Merging<'_>],
) -> (Vec<Styled>, bool) {
    let sides: Vec<Styled> = styles.iter().map(|(at, _)| files[*at].sides()).collect();
    let mut inputs = Vec::new();
    for ((_, style), sides) in styles.iter().zip(&sides) {
        inputs.extend(sides.iter().flatten().map(|text| (*style, text.as_str())));
    }
    let (results, runs) = format(project, &inputs);
    let mut results = results.into_iter();
    let mut take = |side: &Option<String>| side.as_ref().and_then(|_| results.next().flatten());
    let styled = sides
        .iter()
        .map(|[base, mine, new]| [take(base), take(mine), take(new)]);
    (styled.collect(), runs)
}

/// A result in the user's style.
struct Draft {
    merged: Merged,
    /// The result with the layout of the user's file, if that is not what rustfmt makes of it.
    laid: Option<String>,
}

impl Draft {
    /// The result, if it is better than the first one.
    fn of(texts: &Texts, first: &Merged, styled: &Styled, labels: Labels<'_>) -> Option<Self> {
        let [base, mine, new] = styled;
        let (base, new) = (base.as_ref()?, new.as_ref()?);
        // A text that rustfmt refuses is merged unformatted.
        let mine = mine.as_ref().unwrap_or(&texts.mine);
        let is_users = *mine == texts.mine && styled[1].is_some();
        let merged = texts.merge_as(base, mine, new, labels);
        let better = merged.conflicts() < first.conflicts()
            || is_users && merged.conflicts() == first.conflicts();
        better.then(|| Self {
            laid: (!is_users).then(|| laid_back(mine, &texts.mine, &merged.code)),
            merged,
        })
    }
}

/// Chooses the layout of results and writes them. Edits on both sides may need other line breaks
/// together; another layout than rustfmt's is taken only if it is the same code.
fn finish(project: &Path, files: &mut [Merging<'_>], drafts: Vec<(usize, &Style, Draft)>) {
    let mut inputs = Vec::new();
    for (_, style, Draft { merged, laid }) in &drafts {
        if merged.fate == Fate::Merged && (laid.is_some() || !merged.layout_only) {
            inputs.push((*style, merged.code.as_str()));
            inputs.extend(laid.iter().map(|laid| (*style, laid.as_str())));
        }
    }
    let mut results = format(project, &inputs).0.into_iter();
    let mut take = || results.next().flatten();
    for (at, _, Draft { mut merged, laid }) in drafts {
        let checked = merged.fate == Fate::Merged && (laid.is_some() || !merged.layout_only);
        let formatted = if checked { take() } else { None };
        match laid {
            Some(laid) if checked => {
                let again = take();
                if again.is_some() && again == formatted {
                    merged.code = laid;
                }
            }
            Some(laid) if letters(&laid) == letters(&merged.code) => merged.code = laid,
            Some(_) => {}
            None => merged.code = formatted.unwrap_or(merged.code),
        }
        if let Some((_, first)) = &mut files[at].texts {
            *first = merged;
        }
    }
}

/// Characters of a text that a formatter keeps, roughly.
fn letters(text: &str) -> String {
    let letters = text.chars();
    letters
        .filter(|c| !c.is_whitespace() && *c != ',')
        .collect()
}

/// The layout of `mine` for `code`, which was made from a formatted version of `mine`. Where both
/// differ from that, `code` wins.
fn laid_back(formatted: &str, mine: &str, code: &str) -> String {
    let length = marker_length(&[formatted, mine, code]);
    let mut options = MergeOptions::new();
    options.set_conflict_marker_length(length);
    options.set_conflict_style(ConflictStyle::Merge);
    let marked = match options.merge(formatted, mine, code) {
        Ok(laid) => return laid,
        Err(marked) => marked,
    };
    let mut laid = String::new();
    let mut is_mine = false;
    for line in marked.split_inclusive('\n') {
        let first = line.chars().next().unwrap_or_default();
        let run = line.chars().take_while(|c| *c == first).count();
        match first {
            '<' | '=' | '>' if run == length => is_mine = first == '<',
            _ if is_mine => {}
            _ => laid.push_str(line),
        }
    }
    laid
}

/// Takes a whole file of the template in the user's style, unless the user's file was not formatted.
fn take_formatted(file: &mut Merging<'_>, styled: &Styled) {
    let is_formatted = match (file.fate, file.base) {
        (Fate::Added, _) => true,
        (Fate::Replaced, Some(base)) => styled[0]
            .as_ref()
            .is_some_and(|styled| *styled.as_bytes() == *base.contents),
        _ => false,
    };
    let [_, _, Some(new)] = styled else {
        return;
    };
    if is_formatted
        && Merging::code(file.new)
            .is_some_and(|code| Some(code.as_bytes()) == file.new.map(|new| &*new.contents))
    {
        file.contents = Some(Some(Cow::Owned(new.clone().into_bytes())));
    }
}
