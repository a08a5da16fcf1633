//! Cargo workspaces above a new project. A project of Kiln is a workspace of its own, which Cargo
//! refuses as a member of another: where one would have it as its member, the project is excluded
//! there, or made a member as `cargo new` does.

mod edit;
mod member;
mod root;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use super::place::resolved;
use crate::{
    error::{Error, Result},
    render::Rendered,
};
pub use edit::{Edit, Edited};
use edit::{add, edited, remove};
use member::{AsMember, add_profiles, as_member};
use root::{Cover, Root};

/// The manifest of a package.
const MANIFEST: &str = "Cargo.toml";

/// Membership of a project in the workspace above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The project is a workspace of its own, in the other's `exclude`.
    Exclude,
    /// The project is a member of the nearest workspace above.
    Member,
    /// The manifests above stay as they are.
    Keep,
}

/// Planned edits of the workspaces above a project.
#[derive(Debug, Default)]
pub struct Plan {
    /// Lines about what is done, such as ``adds `m` to `exclude` in ../Cargo.toml``.
    pub notes: Vec<String>,
    /// Warnings on problems that Kiln does not mend.
    pub warnings: Vec<String>,
    edits: Vec<Edit>,
    manifest: Option<String>,
}

impl Plan {
    /// True if a manifest above is edited, or should be.
    pub fn matters(&self) -> bool {
        !self.edits.is_empty()
    }

    /// Adapts the manifest of the project.
    pub fn adapt(&self, rendered: &mut Rendered<'_>) {
        let Some(manifest) = &self.manifest else {
            return;
        };
        let own = |path: &Path| path == Path::new(MANIFEST);
        for file in rendered.files.iter_mut().filter(|file| own(&file.path)) {
            file.contents = manifest.clone().into_bytes().into();
        }
    }

    /// Edits the manifests above, each in one step. They are restored unless the result is kept.
    ///
    /// # Errors
    /// A manifest was changed since it was read, or the file system fails; all are then as before.
    pub fn apply(&self) -> Result<Edited> {
        Edited::carry_out(&self.edits)
    }
}

/// Plans what the workspaces above `destination` do with a project; writes nothing. Without a
/// `choice`, the project is excluded where a workspace would have it as its member, and is a member
/// where `members` names its path or where its manifest is no workspace.
///
/// # Errors
/// The choice is impossible here, or a manifest to be edited is read-only.
pub fn plan(rendered: &Rendered<'_>, destination: &Path, choice: Option<Choice>) -> Result<Plan> {
    let mut plan = Plan::default();
    let Some(manifest) = rendered.get(MANIFEST) else {
        return Ok(plan);
    };
    let folder = resolved(destination)?;
    let roots = roots_above(&folder, &mut plan.warnings);
    match (roots.is_empty(), choice, plan.warnings.first()) {
        (true, Some(Choice::Member), Some(unread)) => {
            return Err(Error::input(unread).help("correct it, or leave out `--workspace member`"));
        }
        (true, Some(Choice::Member), None) | (false, ..) => {}
        (true, ..) => return Ok(plan),
    }
    let manifest = String::from_utf8_lossy(manifest);
    let project = Project::new(rendered, &manifest, folder);
    let home = match choice {
        Some(Choice::Member) => Some(project.nearest(&roots)?),
        _ => project.home(&roots, choice),
    };
    for root in &roots {
        let is_home = home.is_some_and(|home| home.manifest == root.manifest);
        let cover = project.cover(root);
        match choice {
            _ if is_home => project.join(root, &mut plan)?,
            Some(Choice::Keep) if cover.is_some() || project.is_lost(root, &roots) => {
                plan.warnings.push(project.breaks(root));
            }
            Some(Choice::Keep) => {}
            _ if cover.is_some() || project.is_lost(root, &roots) => {
                project.leave(root, &mut plan)?;
            }
            _ => {}
        }
    }
    Ok(plan)
}

/// The project, as far as it matters to workspaces.
struct Project<'p> {
    /// Its folder, absolute and without symbolic links.
    folder: PathBuf,
    /// The folders of its packages.
    packages: Vec<PathBuf>,
    /// The names of its packages.
    names: Vec<String>,
    manifest: &'p str,
    /// Whether it is a workspace of its own.
    is_root: bool,
}

impl<'p> Project<'p> {
    fn new(rendered: &Rendered<'_>, manifest: &'p str, folder: PathBuf) -> Self {
        let manifests = rendered
            .files
            .iter()
            .filter(|file| file.path.ends_with(MANIFEST));
        let mut names = Vec::new();
        let mut packages = Vec::new();
        for file in manifests {
            let table: toml::Table = String::from_utf8_lossy(&file.contents)
                .parse()
                .unwrap_or_default();
            let name = table.get("package").and_then(|package| package.get("name"));
            names.extend(name.and_then(toml::Value::as_str).map(str::to_owned));
            let below = file.path.parent().unwrap_or(Path::new(""));
            // `folder.join("")` would end in a separator.
            packages.push(if below == Path::new("") {
                folder.clone()
            } else {
                folder.join(below)
            });
        }
        let table: toml::Table = manifest.parse().unwrap_or_default();
        Self {
            folder,
            packages,
            names,
            manifest,
            is_root: table.contains_key("workspace"),
        }
    }

    /// Reason for which the project or a package in it is a member of a workspace.
    fn cover(&self, root: &Root) -> Option<Cover> {
        self.packages.iter().find_map(|package| root.cover(package))
    }

    /// The workspace of which the project is a member without a choice.
    fn home<'r>(&self, roots: &'r [Root], choice: Option<Choice>) -> Option<&'r Root> {
        if choice.is_some() {
            return None;
        }
        let mut open = roots.iter().filter(|root| !root.is_excluded(&self.folder));
        let nearest = open.next()?;
        let listed = matches!(nearest.cover(&self.folder), Some(Cover::Listed(_)));
        (listed || !self.is_root).then_some(nearest)
    }

    /// The nearest workspace, of which the project can be a member.
    fn nearest<'r>(&self, roots: &'r [Root]) -> Result<&'r Root> {
        let Some(root) = roots.first() else {
            let message =
                "there is no Cargo workspace above the project's folder to be a member of";
            return Err(Error::input(message).help("leave out `--workspace member`"));
        };
        if root.is_excluded(&self.folder) {
            let message = format!(
                "the workspace {} excludes the project's folder",
                shown(&root.manifest)
            );
            return Err(Error::input(message)
                .help("remove it from `exclude` there, or leave out `--workspace member`"));
        }
        Ok(root)
    }

    /// Whether Cargo takes this workspace for that of a project that has none, and finds it to be
    /// no member.
    fn is_lost(&self, root: &Root, roots: &[Root]) -> bool {
        let mut open = roots.iter().filter(|root| !root.is_excluded(&self.folder));
        !self.is_root
            && open
                .next()
                .is_some_and(|first| first.manifest == root.manifest)
    }

    /// Consequence of leaving a manifest as it is.
    fn breaks(&self, root: &Root) -> String {
        let place = shown(&root.manifest);
        let entry = root.relative(&self.folder).unwrap_or_default();
        format!(
            "the workspace {place} was not changed, and Cargo fails there or in the project until \
             its `exclude` has \"{entry}\""
        )
    }

    /// Excludes the project from a workspace.
    fn leave(&self, root: &Root, plan: &mut Plan) -> Result<()> {
        let entry = self.entry(root)?;
        let place = shown(&root.manifest);
        let mut after = edited(&root.text, |document| {
            add(document, "exclude", &entry, false)
        });
        let mut note = format!("adds \"{entry}\" to `exclude` of the workspace {place}");
        if let Some(Cover::Listed(listed)) = root.cover(&self.folder) {
            after = after.and_then(|text| {
                edited(&text, |document| {
                    remove(document, "members", |name| name == listed)
                })
            });
            note.push_str(", and removes it from `members`");
        } else if root.lists_itself() {
            // Of no effect but that on `exclude`: a root's package is a member anyway.
            let itself = |name: &str| matches!(name.trim_end_matches('/'), "." | "./.");
            after = after
                .and_then(|text| edited(&text, |document| remove(document, "members", itself)));
            note.push_str(", and removes \".\" from `members`, which turns `exclude` off");
        }
        let after = after.filter(|text| {
            let root = root.with(text).ok().flatten();
            root.is_some_and(|root| self.packages.iter().all(|p| root.cover(p).is_none()))
        });
        let Some(after) = after else {
            return Err(self.cannot_leave(root));
        };
        plan.notes.push(note);
        plan.push(root, after)
    }

    fn cannot_leave(&self, root: &Root) -> Error {
        let place = shown(&root.manifest);
        let (why, more) = match (self.cover(root), root.above(&self.folder)) {
            (Some(Cover::Default(entry)), _) => (
                format!("`default-members` has \"{entry}\", which matches it"),
                "",
            ),
            (_, Some(entry)) => (
                format!("`members` has \"{entry}\", which lies above it and comes first"),
                "",
            ),
            _ => (
                "its `[workspace]` has a form that Kiln does not edit".to_owned(),
                " by hand",
            ),
        };
        Error::input(format!(
            "the workspace {place} would have the project as a member, and `exclude` there cannot keep \
             it out: {why}"
        ))
        .help(format!(
            "change the list{more}, or choose another folder, `--workspace member` or `--workspace keep`; \
             nothing was written"
        ))
    }

    /// Makes the project a member of a workspace.
    fn join(&self, root: &Root, plan: &mut Plan) -> Result<()> {
        let entry = self.entry(root)?;
        let place = shown(&root.manifest);
        self.check_names(root)?;
        let cover = root.cover(&self.folder);
        let as_member = match self.is_root {
            true => Some(as_member(self.manifest).ok_or_else(|| no_member(&place))?),
            false => None,
        };
        let listed = matches!(
            cover,
            Some(Cover::Listed(_) | Cover::Matched(_) | Cover::Dependency)
        );
        let profiles = as_member
            .as_ref()
            .map_or(&[][..], |member| &member.profiles);
        let mut added = 0;
        let after = edited(&root.text, |document| {
            if !listed {
                add(document, "members", &entry, true)?;
            }
            added = add_profiles(document, profiles, &entry)?;
            Some(())
        });
        let after = after.ok_or_else(|| no_member(&place))?;
        let mut note = format!("the project is the member \"{entry}\" of the workspace {place}");
        if added > 0 {
            note.push_str(&format!(", which gets the profiles of {added} packages"));
        }
        plan.notes.push(note);
        if let Some(AsMember { manifest, left, .. }) = as_member {
            if !left.is_empty() {
                plan.notes.push(format!(
                    "its other settings of {} are left out, as they would change all members: debug \
                     builds train more slowly",
                    left.iter().map(|name| format!("[profile.{name}]")).collect::<Vec<_>>().join(" and ")
                ));
            }
            plan.manifest = Some(manifest);
        }
        if after == root.text {
            return Ok(());
        }
        plan.push(root, after)
    }

    /// Refuses a workspace with a package of the same name, such as another project's engine.
    fn check_names(&self, root: &Root) -> Result<()> {
        let members = root.members();
        let mut others = members
            .iter()
            .filter(|member| !self.packages.contains(&member.folder));
        let same = others.find(|member| {
            member
                .name
                .as_ref()
                .is_some_and(|name| self.names.contains(name))
        });
        let Some(same) = same else { return Ok(()) };
        let message = format!(
            "the workspace {} has a package `{}` already, in {}, and the project has one of this name too",
            shown(&root.manifest),
            same.name.as_deref().unwrap_or_default(),
            shown(&same.folder)
        );
        Err(Error::input(message).help(
            "choose another name, or `--workspace exclude`; two projects of Kiln cannot be members of \
             one workspace, as each has an engine",
        ))
    }

    /// The path of the project in lists of a workspace.
    fn entry(&self, root: &Root) -> Result<String> {
        let entry = root.relative(&self.folder);
        entry.filter(|entry| !entry.is_empty()).ok_or_else(|| {
            Error::input(format!(
                "the project's folder does not lie below the workspace {}",
                shown(&root.manifest)
            ))
            .help("choose another folder, or `--workspace keep`")
        })
    }
}

fn no_member(place: &str) -> Error {
    Error::input(format!(
        "the project cannot be made a member of the workspace {place}"
    ))
    .help("choose `--workspace exclude`, or edit the manifests by hand")
}

impl Plan {
    /// Plans to replace the text of a root's manifest.
    fn push(&mut self, root: &Root, after: String) -> Result<()> {
        let failed = |cause| Error::io("edit", &root.manifest, cause);
        let path = root.manifest.canonicalize().map_err(failed)?;
        if fs::metadata(&path)
            .map_err(failed)?
            .permissions()
            .readonly()
        {
            let place = shown(&root.manifest);
            let message = format!(
                "the workspace {place} would have the project as a member, and its manifest is read-only"
            );
            return Err(Error::input(message).help(
                "make the manifest writable or choose another folder; `--workspace keep` leaves it as it is, \
                 although Cargo then fails in that workspace",
            ));
        }
        self.edits.push(Edit {
            path,
            before: root.text.clone(),
            after,
        });
        Ok(())
    }
}

/// The workspaces above a folder, nearest first. Manifests that cannot be read give a warning.
fn roots_above(folder: &Path, warnings: &mut Vec<String>) -> Vec<Root> {
    let mut roots = Vec::new();
    for above in folder.ancestors().skip(1) {
        let manifest = above.join(MANIFEST);
        let text = match fs::read(&manifest) {
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned()),
            Err(cause) if is_absent(cause.kind()) => continue,
            Err(cause) => Err(cause.to_string()),
        };
        let root = text.and_then(|text| {
            Root::parse(&manifest, &text).map_err(|error| {
                let at = error.span().map_or(0, |span| span.start);
                let line = text[..at.min(text.len())].matches('\n').count() + 1;
                let why = error.message().replace('\n', ", ");
                format!("line {line} is not valid TOML: {why}")
            })
        });
        let root = root.and_then(|root| match root.as_ref().and_then(Root::wrong_list) {
            Some(why) => Err(why),
            None => Ok(root),
        });
        match root {
            Ok(root) => roots.extend(root),
            Err(why) => warnings.push(format!(
                "{} cannot be read, and was not changed ({why}); if it is the root of a workspace with this \
                 folder, add the folder to its `exclude`",
                shown(&manifest)
            )),
        }
    }
    roots
}

/// Whether there is no file at a path.
fn is_absent(kind: io::ErrorKind) -> bool {
    use io::ErrorKind;
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
    )
}

/// Refuses to replace the manifest of a workspace with members that the project's has not.
///
/// # Errors
/// The folder's manifest is such a root.
pub fn check_replaced(rendered: &Rendered<'_>, destination: &Path) -> Result<()> {
    let manifest = resolved(destination)?.join(MANIFEST);
    let (Ok(there), Some(new)) = (fs::read_to_string(&manifest), rendered.get(MANIFEST)) else {
        return Ok(());
    };
    let members = |text: &str| -> Vec<String> {
        let table: toml::Table = text.parse().unwrap_or_default();
        let members = table
            .get("workspace")
            .and_then(|table| table.get("members"));
        let members = members
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten();
        members
            .filter_map(toml::Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let new = members(&String::from_utf8_lossy(new));
    let lost = members(&there)
        .into_iter()
        .find(|member| !new.contains(member));
    match lost {
        None => Ok(()),
        Some(member) => Err(Error::input(format!(
            "{} is the root of a workspace with the member \"{member}\", which would be lost",
            shown(&manifest)
        ))
        .help("create the project in a folder of its own; nothing was written")),
    }
}

/// A path in messages: from the current folder where that takes no more than its parents.
fn shown(path: &Path) -> String {
    let here = env::current_dir().and_then(|here| here.canonicalize());
    let Ok(here) = here else {
        return format!("`{}`", path.display());
    };
    for (up, above) in here.ancestors().enumerate().take(4) {
        let Ok(below) = path.strip_prefix(above) else {
            continue;
        };
        // Not the long way round by the root of the file system.
        if up > 0 && above.parent().is_none() {
            break;
        }
        let below = crate::display::slashed(below);
        return format!("`{}{below}`", "../".repeat(up));
    }
    format!("`{}`", path.display())
}
