//! What cargo-generate would pass over in silence in a template.

use toml::Spanned;

use super::{
    Template,
    config::{Config, Rules, is_ignored, matches},
    option::{BUILT_IN, TemplateOption},
    portable, tags,
};
use crate::error::{Error, Result};

impl Template {
    /// Checks what cargo-generate would pass over in silence: defaults that their own rules refuse,
    /// patterns that match no file or are never looked at, files with Liquid of this template that are
    /// never rendered, symbolic links, and names that not every system takes.
    ///
    /// # Errors
    /// The first of these that there is.
    pub fn check(&self) -> Result<()> {
        if let Some(special) = &self.special {
            return Err(Error::template(format!(
                "`{special}` is no file and no folder, and would be in no project"
            ))
            .help("put a copy there instead of a symbolic link"));
        }
        for rules in self.config.all_rules() {
            self.check_rules(rules)?;
        }
        self.check_never_rendered()?;
        self.config.check_regexes()?;
        for option in self.options() {
            check_default(option, &self.config)?;
        }
        self.check_names()
    }

    /// Every pattern, whatever its condition, matches a file.
    fn check_rules(&self, rules: &Rules) -> Result<()> {
        let config = &self.config;
        let including = config.rules.include.is_some() || rules.include.is_some();
        if let (true, Some([pattern, ..])) = (including, rules.exclude.as_deref()) {
            return Err(config
                .error_at(
                    pattern.span(),
                    "`exclude` says nothing beside `include`".to_owned(),
                    "never looked at",
                )
                .help("`include` lists all that is rendered: leave `exclude` out"));
        }
        let lists = [&rules.include, &rules.exclude];
        for pattern in lists.into_iter().flatten().flatten() {
            let matcher = config.gitignore(std::slice::from_ref(pattern))?;
            let plain = !pattern.get_ref().starts_with('!');
            if plain && !self.files.iter().any(|f| matches(&matcher, &f.path)) {
                return Err(matches_nothing(config, pattern));
            }
        }
        for entry in &rules.ignore {
            let path = config.ignored_path(entry)?;
            let known =
                self.folders.contains(&path) || self.files.iter().any(|file| file.path == path);
            if !known {
                return Err(matches_nothing(config, entry));
            }
        }
        Ok(())
    }

    /// A file with a variable of the template in it must be rendered under some condition.
    fn check_never_rendered(&self) -> Result<()> {
        let mut widest = Rules::default();
        for rules in self.config.all_rules() {
            widest.merge(rules);
        }
        let matcher = self.config.matcher(&widest)?;
        let known: Vec<_> = self
            .options()
            .iter()
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
                        .at(&file.source, text, tag.span, "this Liquid stays as it is")
                        .help(format!("add it to `include` in `{}`", self.config.name)),
                );
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<()> {
        let ignored = self.config.rules.ignore.iter();
        let ignored = ignored
            .map(|entry| self.config.ignored_path(entry))
            .collect::<Result<Vec<_>>>()?;
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

fn matches_nothing(config: &Config, pattern: &Spanned<String>) -> Error {
    config
        .error_at(
            pattern.span(),
            format!("`{}` matches no file of the template", pattern.get_ref()),
            "matches nothing",
        )
        .help("correct it, or take it out")
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
                format!("the default of `{}` is refused: {error}", option.name),
                "this option",
            );
            said.help(error.way_out().unwrap_or("give it another `default`"))
        })
}
