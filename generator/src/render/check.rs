//! Checks of a template for mistakes that cargo-generate ignores.

use std::{path::Path, slice};

use toml::Spanned;

use super::{Warning, render};
use crate::{
    error::{Error, Result},
    name::Name,
    template::{
        LIQUID, NOT_OUTPUT, Reading, Template,
        answers::Answers,
        config::{Config, Rules, is_ignored, matches},
        option::{BUILT_IN, TemplateOption},
        portable, tags,
    },
};

const SPECIAL: &str = "replace a symbolic link by a copy of its target";
const NOT_RENDERED: &str = "files that `exclude` lists, or `include` does not, are copied";

impl Template {
    /// Reads the template in a folder, in a folder below it, or its only sub-template.
    /// [`Template::check`] finds further mistakes.
    ///
    /// # Errors
    /// The folder cannot be read or has several templates, or the template is invalid or uses a
    /// feature that Kiln does not support; the error has all reasons.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Self::read(folder, Reading::default())
    }

    /// Reads a template as [`Template::from_folder`] does, with what `reading` lets pass.
    ///
    /// # Errors
    /// As for [`Template::from_folder`], except for what passes.
    pub fn read(folder: &Path, reading: Reading<'_>) -> Result<Self> {
        let (template, mut faults) = Self::parse_folder(folder, reading)?;
        if !faults.is_empty() {
            faults.extend(template.further_mistakes());
        }
        Error::of_reasons(template.label(), faults)?;
        Ok(template)
    }

    /// Checks the template for mistakes that cargo-generate ignores: rules that reach out of the
    /// template, files that use variables but are never rendered, defaults that their own option
    /// refuses, symbolic links, and file names that are not portable.
    ///
    /// # Errors
    /// All mistakes found, with those in the files if there are any others.
    pub fn check(&self) -> Result<()> {
        let mut mistakes = self.mistakes();
        mistakes.extend(self.config.wrong_regexes());
        if !mistakes.is_empty() {
            mistakes.extend(self.rendering_mistakes());
        }
        Error::of_reasons(self.label(), mistakes)
    }

    /// Parts of the template without effect, such as patterns that match no file, each on one line
    /// with its place.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.notes.clone();
        let mut found = Vec::new();
        for rules in self.config.all_rules() {
            self.dead_rules(rules, &mut found);
        }
        warnings.extend(found.iter().map(Error::line));
        warnings
    }

    /// Mistakes of the whole template that cargo-generate renders; none in a strict template, as
    /// [`Self::check`] refuses them.
    pub(crate) fn notices(&self) -> Vec<Warning> {
        if self.is_strict() {
            return Vec::new();
        }
        let special = self.special.iter().map(|special| {
            let message = "neither a file nor a folder, so projects do not have it";
            Warning::new(special, message.to_owned(), SPECIAL)
        });
        let copied = self.check_never_rendered().err();
        let copied = copied.and_then(|error| error.place()).into_iter();
        let copied = copied.map(|(file, line, column)| {
            let message = "a variable that is copied, as the file is never rendered";
            Warning::new(&file, message.to_owned(), NOT_RENDERED).at_line(line, column)
        });
        special.chain(copied).collect()
    }

    /// The mistakes that [`Template::check`] and rendering would find, for a template that is refused
    /// already, so that all reasons are said at once.
    fn further_mistakes(&self) -> Vec<Error> {
        let mut mistakes = self.mistakes();
        mistakes.extend(self.rendering_mistakes());
        mistakes
    }

    /// The template's folder, as messages call it.
    pub(crate) fn label(&self) -> &str {
        self.config.root().trim_end_matches('/')
    }

    fn mistakes(&self) -> Vec<Error> {
        let mut mistakes = Vec::new();
        if self.is_strict() {
            mistakes.extend(self.check_special().err());
            mistakes.extend(self.check_never_rendered().err());
        }
        for rules in self.config.all_rules() {
            self.wrong_rules(rules, &mut mistakes);
        }
        let options = self.config.all_options();
        let options = options.filter(|option| self.config.wrong_regex(option).is_none());
        mistakes.extend(options.filter_map(|option| check_default(option, &self.config).err()));
        mistakes.extend(self.check_names().err());
        mistakes
    }

    /// The mistakes that rendering with default answers finds. None if an option has no default, or
    /// is left out because it is invalid, as its uses would be mistakes too.
    fn rendering_mistakes(&self) -> Vec<Error> {
        let Ok(name) = Name::parse("my-project") else {
            return Vec::new();
        };
        let answers = Answers::defaults(self, name).ok();
        let rendered = answers
            .filter(|_| self.config.whole)
            .map(|answers| render(self, &answers));
        rendered.and_then(Result::err).into_iter().collect()
    }

    /// Adds patterns that are invalid or refer to files outside the template.
    fn wrong_rules(&self, rules: &Rules, mistakes: &mut Vec<Error>) {
        let lists = [&rules.include, &rules.exclude];
        for pattern in lists.into_iter().flatten().flatten() {
            mistakes.extend(self.config.gitignore(slice::from_ref(pattern)).err());
        }
        let paths = rules.ignore.iter();
        mistakes.extend(paths.filter_map(|entry| self.config.ignored_path(entry).err()));
    }

    /// Adds patterns that have no effect, whatever their condition.
    fn dead_rules(&self, rules: &Rules, found: &mut Vec<Error>) {
        let config = &self.config;
        let including = config.rules.include.is_some() || rules.include.is_some();
        if let (true, Some([pattern, ..])) = (including, rules.exclude.as_deref()) {
            let message = "`exclude` has no effect next to `include`".to_owned();
            let error = config.error_at(pattern.span(), message, "has no effect");
            found.push(error.help("`include` lists every file to render, so remove `exclude`"));
        }
        let lists = [&rules.include, &rules.exclude];
        for pattern in lists.into_iter().flatten().flatten() {
            let Ok(matcher) = config.gitignore(slice::from_ref(pattern)) else {
                continue;
            };
            let plain = !pattern.get_ref().starts_with('!');
            if plain && !self.files.iter().any(|f| matches(&matcher, &f.path)) {
                found.push(matches_nothing(config, pattern, false));
            }
        }
        for entry in &rules.ignore {
            let Ok(path) = config.ignored_path(entry) else {
                continue;
            };
            let known =
                self.folders.contains(&path) || self.files.iter().any(|file| file.path == path);
            if !known && !NOT_OUTPUT.contains(&path.as_str()) {
                found.push(matches_nothing(config, entry, true));
            }
        }
    }

    /// Checks that every entry is a file or a folder.
    fn check_special(&self) -> Result<()> {
        let Some(special) = self.special.first() else {
            return Ok(());
        };
        Err(Error::template(format!(
            "`{special}` is neither a file nor a folder and would be missing from every project"
        ))
        .help(SPECIAL))
    }

    /// Checks that every file that uses a variable of the template is rendered under some condition.
    fn check_never_rendered(&self) -> Result<()> {
        let mut widest = Rules::default();
        for rules in self.config.all_rules() {
            widest.merge(rules);
        }
        let Ok(matcher) = self.config.matcher(&widest) else {
            // The invalid pattern is an error of its own.
            return Ok(());
        };
        let options = self.config.all_options();
        let known: Vec<_> = options
            .map(|option| option.name.as_str())
            .chain(BUILT_IN.iter().copied())
            .collect();
        for file in &self.files {
            let Ok(text) = str::from_utf8(&file.contents) else {
                continue;
            };
            let found = tags::tags(text)
                .into_iter()
                .find(|tag| tags::identifiers(tag.inner(text)).any(|word| known.contains(&word)));
            if let (false, Some(tag)) = (matcher.renders(&file.path), found) {
                return Err(
                    Error::template(format!("`{}` is never rendered", file.source))
                        .at(&file.source, text, tag.span, "this tag is copied literally")
                        .help(format!("add it to `include` in `{}`", self.config.name)),
                );
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<()> {
        let ignored = self.config.rules.ignore.iter();
        let ignored: Vec<_> = ignored
            .filter_map(|entry| self.config.ignored_path(entry).ok())
            .collect();
        let files = self.files.iter();
        let files = files.map(|file| (file.path.as_str(), file.source.clone()));
        let folders = self.folders.iter();
        let folders = folders.map(|path| (path.as_str(), format!("{}{path}", self.config.root())));
        let kept = |(path, _): &(&str, String)| !is_ignored(path, &ignored);
        let mut names: Vec<_> = files.chain(folders).filter(kept).collect();
        portable::check_each(&names)?;
        names.sort();
        portable::check_together(&names)
    }
}

fn matches_nothing(config: &Config, pattern: &Spanned<String>, is_path: bool) -> Error {
    let given = pattern.get_ref();
    let message = format!("`{given}` matches no file of the template");
    let error = config.error_at(pattern.span(), message, "matches nothing");
    error.help(if is_path && given.contains(['*', '?', '[']) {
        "`ignore` lists paths, not patterns"
    } else if given.ends_with(LIQUID) {
        "names are without `.liquid` here"
    } else {
        "correct or remove it"
    })
}

fn check_default(option: &TemplateOption, config: &Config) -> Result<()> {
    let Some(default) = &option.default else {
        return Ok(());
    };
    option
        .parse(&default.to_string())
        .map(drop)
        .map_err(|error| {
            let said = config.error_at(
                option.span.clone(),
                format!("the default of `{}` is invalid: {error}", option.name),
                "this option",
            );
            said.help(error.help_text().unwrap_or("choose another `default`"))
        })
}
