//! Checks of a template for mistakes that cargo-generate ignores.

use toml::Spanned;

use super::{
    Template,
    config::{Config, Rules, is_ignored, matches},
    option::{BUILT_IN, TemplateOption},
    portable, tags,
};
use crate::error::{Error, Result};

impl Template {
    /// Checks the template for mistakes that cargo-generate ignores: defaults that their own option
    /// refuses, patterns that match no file or have no effect, files that use variables but are
    /// never rendered, symbolic links, and file names that are not portable.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn check(&self) -> Result<()> {
        if let Some(special) = &self.special {
            return Err(Error::template(format!(
                "`{special}` is neither a file nor a folder and would be missing from every project"
            ))
            .help("replace a symbolic link by a copy of its target"));
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

    /// Checks that every pattern, whatever its condition, matches a file.
    fn check_rules(&self, rules: &Rules) -> Result<()> {
        let config = &self.config;
        let including = config.rules.include.is_some() || rules.include.is_some();
        if let (true, Some([pattern, ..])) = (including, rules.exclude.as_deref()) {
            return Err(config
                .error_at(
                    pattern.span(),
                    "`exclude` has no effect next to `include`".to_owned(),
                    "has no effect",
                )
                .help("`include` lists every file to render: remove `exclude`"));
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

    /// Checks that every file that uses a variable of the template is rendered under some condition.
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
                        .at(&file.source, text, tag.span, "this tag is copied literally")
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
        .help("correct or remove the pattern")
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
