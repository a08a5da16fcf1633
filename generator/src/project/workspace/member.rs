//! A project as a member of a workspace: what its manifest loses, and what the root's gets.
//!
//! Profiles count only in the root's manifest. Those of single packages move there, as they touch no
//! other member; settings of whole profiles stay out, as they would change how the others are built.

use toml_edit::{DocumentMut, Item, Table};

use super::edit::{edited, table_at};

/// A project's manifest as that of a member.
pub(super) struct AsMember {
    /// The manifest without `[workspace]` and `[profile]`.
    pub manifest: String,
    /// Profiles of single packages, by the name of the profile and the package.
    pub profiles: Vec<(String, String, Table)>,
    /// The names of profiles whose other settings no longer count.
    pub left: Vec<String>,
}

/// The manifest of a member; `None` if it is not TOML.
pub(super) fn as_member(manifest: &str) -> Option<AsMember> {
    let mut profiles = Vec::new();
    let mut left = Vec::new();
    let manifest = edited(manifest, |document| {
        document.remove("workspace");
        let Some(all) = document.remove("profile") else {
            return Some(());
        };
        for (profile, settings) in all.as_table_like()?.iter() {
            let settings = settings.as_table_like()?;
            let packages = settings.get("package").and_then(Item::as_table_like);
            for (package, own) in packages.into_iter().flat_map(|table| table.iter()) {
                match own.clone().into_table() {
                    Ok(own) if package != "*" => {
                        profiles.push((profile.to_owned(), package.to_owned(), own));
                    }
                    _ => left.push(profile.to_owned()),
                }
            }
            if settings.iter().any(|(key, _)| key != "package") {
                left.push(profile.to_owned());
            }
        }
        Some(())
    })?;
    left.sort();
    left.dedup();
    Some(AsMember {
        manifest,
        profiles,
        left,
    })
}

/// Adds profiles of packages to the root's manifest, except those that it has.
pub(super) fn add_profiles(
    document: &mut DocumentMut,
    profiles: &[(String, String, Table)],
    member: &str,
) -> Option<usize> {
    let mut added = 0;
    for (profile, package, settings) in profiles {
        let packages = table_at(document, &["profile", profile, "package"])?;
        if packages.contains_key(package) {
            continue;
        }
        let mut settings = settings.clone();
        settings.set_position(None);
        let comment = match added {
            0 => format!(
                "\n# Of the member `{member}`: tensor kernels are slow without optimisation.\n"
            ),
            _ => "\n".to_owned(),
        };
        settings.decor_mut().set_prefix(comment);
        packages.insert(package, Item::Table(settings));
        added += 1;
    }
    Some(added)
}
