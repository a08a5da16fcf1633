//! Random edits of a real project and random changes of its template: no edited line is lost, and
//! edits at different places are merged.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use kiln::{
    name::Name,
    project::merge::{Fate, Labels, MergedFile, Mine, merge, merge_texts},
    render::{Rendered, RenderedFile, render},
    template::{Template, answers::Answers},
};
use proptest::{collection::vec, prelude::*, sample::Index};

const LABELS: Labels<'_> = Labels {
    mine: "yours",
    base: "Kiln 1",
    new: "Kiln 2",
};

type Tree = BTreeMap<PathBuf, String>;

/// Some files of the default project.
static PROJECT: LazyLock<Tree> = LazyLock::new(|| {
    let template = Template::embedded().unwrap();
    let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
    let rendered = render(&template, &answers).unwrap();
    let texts = rendered.files.into_iter().filter_map(|file| {
        let text = String::from_utf8(file.contents.into_owned()).ok()?;
        file.path.starts_with("src").then_some((file.path, text))
    });
    // Only a few files, so that edits overlap.
    texts.take(8).collect()
});

/// A change of one line.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Delete,
    Replace,
    InsertAfter,
}

/// The place of an edit: a file of the project and a line in it.
#[derive(Debug, Clone)]
struct Place {
    file: Index,
    line: Index,
    edit: Edit,
}

/// The edits of one side.
#[derive(Debug, Clone)]
struct Work {
    edits: Vec<Place>,
    removes: Vec<Index>,
    adds: Vec<u8>,
}

fn work() -> impl Strategy<Value = Work> {
    let edit = prop_oneof![
        Just(Edit::Delete),
        Just(Edit::Replace),
        Just(Edit::InsertAfter)
    ];
    let place = (any::<Index>(), any::<Index>(), edit);
    let place = place.prop_map(|(file, line, edit)| Place { file, line, edit });
    let all = (
        vec(place, 0..30),
        vec(any::<Index>(), 0..4),
        vec(0..8_u8, 0..4),
    );
    all.prop_map(|(edits, removes, adds)| Work {
        edits,
        removes,
        adds,
    })
}

/// The edits of one file; of several edits of a line, the last wins.
type Edits = BTreeMap<usize, Edit>;

fn by_file(work: &Work) -> BTreeMap<&'static PathBuf, Edits> {
    let files: Vec<_> = PROJECT.keys().collect();
    let mut all: BTreeMap<_, Edits> = BTreeMap::new();
    for place in &work.edits {
        let file = *place.file.get(&files);
        let lines = PROJECT[file].lines().count();
        all.entry(file)
            .or_default()
            .insert(place.line.index(lines), place.edit);
    }
    all
}

/// A text with edits. Each new line starts with `who` and has the number of its line.
fn edited(text: &str, edits: &Edits, who: &str) -> String {
    let mut out = String::new();
    for (at, line) in text.split_inclusive('\n').enumerate() {
        match edits.get(&at) {
            None => out.push_str(line),
            Some(Edit::Delete) => {}
            Some(Edit::Replace) => out.push_str(&format!("{who} instead of {at}\n")),
            Some(Edit::InsertAfter) => out.push_str(&format!("{line}{who} after {at}\n")),
        }
    }
    out
}

/// The project after the edits of one side.
fn done(work: &Work, who: &str) -> Tree {
    let mut tree = PROJECT.clone();
    for (file, edits) in by_file(work) {
        tree.insert(file.clone(), edited(&PROJECT[file], &edits, who));
    }
    let names: Vec<_> = PROJECT.keys().cloned().collect();
    for remove in &work.removes {
        tree.remove(remove.get(&names));
    }
    for add in &work.adds {
        tree.insert(
            format!("src/new_{add}.rs").into(),
            format!("{who} {add}\nshared\n"),
        );
    }
    tree
}

fn rendered(tree: &Tree) -> Rendered<'static> {
    let file = |(path, text): (&PathBuf, &String)| RenderedFile {
        path: path.clone(),
        contents: Cow::Owned(text.clone().into_bytes()),
        executable: false,
    };
    Rendered {
        files: tree.iter().map(file).collect(),
        folders: Vec::new(),
        warnings: Vec::new(),
    }
}

/// Merges, and returns the resulting project.
fn merged(base: &Tree, new: &Tree, mine: &Tree) -> (Vec<MergedFile>, Tree) {
    let read = |path: &Path| {
        Ok(mine.get(path).map(|text| Mine {
            contents: text.clone().into_bytes(),
            executable: false,
        }))
    };
    let files = merge(&rendered(base), &rendered(new), LABELS, read).unwrap();
    let mut after = mine.clone();
    for change in files.iter().filter_map(|file| file.change.as_ref()) {
        match &change.contents {
            Some((bytes, _)) => {
                let text = String::from_utf8(bytes.clone()).unwrap();
                after.insert(change.path.clone(), text);
            }
            None => drop(after.remove(&change.path)),
        }
    }
    (files, after)
}

/// The number of occurrences of each line in a text.
fn counts(text: &str) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for line in text.lines() {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

/// The lines that occur once, whose edits every diff finds at the same place.
fn unique_lines(text: &str) -> BTreeSet<usize> {
    let counts = counts(text);
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| counts[line] == 1)
        .map(|(at, _)| at)
        .collect()
}

/// Whether each edited line and its neighbours are unique, and no edit of the other side is nearby.
fn apart(text: &str, ours: &Edits, theirs: &Edits) -> bool {
    let unique = unique_lines(text);
    let sure = |at: &usize| (at.saturating_sub(1)..=at + 1).all(|at| unique.contains(&at));
    ours.keys().chain(theirs.keys()).all(sure)
        && ours
            .keys()
            .all(|a| theirs.keys().all(|b| a.abs_diff(*b) > 2))
}

proptest! {
    #[test]
    fn no_line_of_the_user_is_lost(user in work(), template in work()) {
        let (base, mine, new) = (&*PROJECT, done(&user, "user"), done(&template, "template"));
        let (files, after) = merged(base, &new, &mine);
        for (path, text) in &mine {
            let was = counts(base.get(path).map_or("", String::as_str));
            let is = counts(after.get(path).map_or("", String::as_str));
            for (line, count) in counts(text) {
                let own = count.saturating_sub(was.get(line).copied().unwrap_or(0));
                let left = is.get(line).copied().unwrap_or(0);
                prop_assert!(left >= own, "{line:?} of {}", path.display());
            }
        }
        for file in &files {
            let is = after.get(&file.path).map_or("", String::as_str);
            let marked = is.lines().filter(|line| *line == "<<<<<<< yours").count();
            let said = match file.fate { Fate::Conflict(count) => count, _ => 0 };
            prop_assert_eq!(marked, said, "{}", file.path.display());
        }
        // The project is based on the new template now.
        let (files, again) = merged(&new, &new, &after);
        prop_assert!(files.is_empty() && again == after);
    }

    #[test]
    fn edits_that_do_not_meet_are_joined(user in work(), template in work()) {
        let (user, template) = (by_file(&user), by_file(&template));
        let none = Edits::new();
        for (file, text) in &*PROJECT {
            let ours = user.get(file).unwrap_or(&none);
            let mut theirs = template.get(file).unwrap_or(&none).clone();
            theirs.retain(|at, _| ours.keys().all(|other| at.abs_diff(*other) > 2));
            if !apart(text, ours, &theirs) {
                continue;
            }
            let tree = |text: String| Tree::from([(file.clone(), text)]);
            let (base, mine) = (tree(text.clone()), tree(edited(text, ours, "user")));
            let new = tree(edited(text, &theirs, "template"));
            let (files, after) = merged(&base, &new, &mine);
            let conflicts = files.iter().any(|file| file.fate.needs_a_look());
            prop_assert!(!conflicts, "{:?}", after);
            // The edits are applied in sequence: lines have moved, so they are found by their text.
            let all: Edits = ours.iter().chain(&theirs).map(|(at, edit)| (*at, *edit)).collect();
            let mut both = String::new();
            for (at, line) in text.split_inclusive('\n').enumerate() {
                let who = if ours.contains_key(&at) { "user" } else { "template" };
                match all.get(&at) {
                    None => both.push_str(line),
                    Some(Edit::Delete) => {}
                    Some(Edit::Replace) => both.push_str(&format!("{who} instead of {at}\n")),
                    Some(Edit::InsertAfter) => both.push_str(&format!("{line}{who} after {at}\n")),
                }
            }
            prop_assert_eq!(&after[file], &both);
            // Merging again changes nothing, even if the record was not updated.
            let (_, again) = merged(&base, &new, &after);
            prop_assert_eq!(again, after);
        }
    }

    #[test]
    fn the_layout_of_a_file_does_not_change_its_merge(user in work(), template in work()) {
        type Layout = fn(&str) -> String;
        let layouts: [Layout; 3] = [
            |text| text.replace('\n', "\r\n"),
            |text| format!("\u{feff}{text}"),
            |text| text.strip_suffix('\n').unwrap_or(text).to_owned(),
        ];
        let (user, template) = (by_file(&user), by_file(&template));
        let none = Edits::new();
        for (file, text) in &*PROJECT {
            let mine = edited(text, user.get(file).unwrap_or(&none), "user");
            let new = edited(text, template.get(file).unwrap_or(&none), "template");
            if mine.ends_with("\n\n") {
                // Without its last newline, it still ends with one.
                continue;
            }
            let (fate, plain) = merge_texts(text, &mine, &new, LABELS);
            for layout in layouts {
                let laid = merge_texts(text, &layout(&mine), &new, LABELS);
                prop_assert_eq!(laid, (fate, layout(&plain)));
            }
        }
    }
}
