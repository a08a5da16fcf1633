//! Interpretation of the value of `--template`, by the rules of cargo-generate.

use std::path::{Component, Path, PathBuf};

use crate::{
    error::{Error, Result},
    project::place::resolved,
    template::CONFIG_FILE,
};

/// cargo-generate's abbreviations of hosts: the start of the URL and its end.
const HOSTS: [(&str, &str, &str); 4] = [
    ("gh:", "https://github.com/", ".git"),
    ("gl:", "https://gitlab.com/", ".git"),
    ("bb:", "https://bitbucket.org/", ".git"),
    ("sr:", "https://git.sr.ht/~", ""),
];
/// The protocols of Git that run no program of the address's choice.
const PROTOCOLS: [&str; 7] = ["https", "ssh", "file", "http", "git", "git+ssh", "ssh+git"];

/// Meaning of a value of `--template`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A folder, which may not exist.
    Folder(PathBuf),
    /// A repository: a URL, or the absolute path of a local one.
    Git(String),
}

/// Classifies the value of `--template`. A folder is one, unless it is a bare repository or a
/// version of a repository is asked for.
///
/// # Errors
/// Git would take the text for an option or run a program that it names.
pub(crate) fn classify(given: &Path, versioned: bool) -> Result<Address> {
    let Some(text) = given.to_str() else {
        return Ok(Address::Folder(given.to_path_buf()));
    };
    if text.starts_with('-') {
        let error = Error::input(format!("`{text}` starts with a dash, as an option does"));
        return Err(error.help(format!("write `./{text}` for a folder of this name")));
    }
    for (short, host, end) in HOSTS {
        if let Some(path) = text.strip_prefix(short) {
            let path = path.trim_end_matches(".git").trim_matches('/');
            if !path.contains('/') {
                let error = Error::input(format!("`{text}` names no repository"));
                return Err(error.help(format!("write `{short}OWNER/NAME`")));
            }
            return Ok(Address::Git(format!("{host}{path}{end}")));
        }
    }
    if is_url(text) {
        check_url(text)?;
        return Ok(Address::Git(text.to_owned()));
    }
    if given.is_dir() {
        return if versioned || is_bare(given) {
            // The path is recorded, and `..` in it would need the folder that it leaves.
            let has_parent = |part| part == Component::ParentDir;
            let whole = match given.components().any(has_parent) {
                true => resolved(given)?,
                false => std::path::absolute(given)
                    .map_err(|cause| Error::io("find the folder", given, cause))?,
            };
            Ok(Address::Git(whole.to_string_lossy().into_owned()))
        } else {
            Ok(Address::Folder(given.to_path_buf()))
        };
    }
    match owner_and_name(text) {
        Some((owner, name)) if !given.exists() => {
            let name = name.trim_end_matches(".git");
            Ok(Address::Git(format!(
                "https://github.com/{owner}/{name}.git"
            )))
        }
        _ => Ok(Address::Folder(given.to_path_buf())),
    }
}

/// True if a text is a URL, an address such as `git@host:path`, or one of a remote helper.
fn is_url(text: &str) -> bool {
    let before = text.split('/').next().unwrap_or_default();
    let scp = before
        .split_once('@')
        .is_some_and(|(_, host)| host.contains(':'));
    text.contains("://") || scp || text.contains("::")
}

/// Checks that Git only connects to a URL and runs nothing that it names.
///
/// # Errors
/// The URL has another protocol, names a program, or a host that is read as an option.
pub(crate) fn check_url(url: &str) -> Result<()> {
    let refused = |why: String| {
        let error = Error::input(why).in_argument("address", url, 0..url.len(), "this address");
        let all = PROTOCOLS[..5].iter().map(|one| format!("`{one}://`"));
        error.help(format!(
            "give {}, `git@host:path` or a folder; with another protocol, clone it yourself and \
             give the folder",
            all.collect::<Vec<_>>().join(", ")
        ))
    };
    if url.starts_with('-') || url.contains(char::is_control) {
        return Err(refused(format!(
            "`{url}` is not the address of a repository"
        )));
    }
    let is_name = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    if let Some((helper, _)) = url.split_once("::").filter(|(name, _)| is_name(name)) {
        return Err(refused(format!(
            "`{url}` makes Git run the program `git-remote-{helper}`, which Kiln does not allow"
        )));
    }
    let (protocol, rest) = match url.split_once("://") {
        Some((protocol, rest)) => (protocol, rest),
        None => ("ssh", url),
    };
    if !PROTOCOLS.contains(&protocol.to_ascii_lowercase().as_str()) {
        return Err(refused(format!(
            "`{protocol}` is not a protocol that Kiln uses"
        )));
    }
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    if rest.starts_with('-') || host.starts_with('-') {
        return Err(refused(format!(
            "the host in `{url}` would be read as an option"
        )));
    }
    Ok(())
}

/// A URL without a user's password or token, which belongs into no file.
pub(crate) fn without_password(url: &str) -> String {
    let Some((protocol, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    match host.rsplit_once('@') {
        // Of `https`, a token can stand in the place of the user's name as well.
        Some((_, host)) if protocol.starts_with("http") => format!("{protocol}://{host}{path}"),
        Some((user, host)) if user.contains(':') => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{protocol}://{user}@{host}{path}")
        }
        _ => url.to_owned(),
    }
}

/// Whether a folder is a bare repository.
fn is_bare(folder: &Path) -> bool {
    let has = |name| folder.join(name).exists();
    has("HEAD") && has("objects") && has("refs") && !has(CONFIG_FILE)
}

/// The parts of `owner/name`, as GitHub calls repositories.
fn owner_and_name(text: &str) -> Option<(&str, &str)> {
    let (owner, name) = text.split_once('/')?;
    let fits = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        !part.is_empty() && part.chars().all(known) && part != ".." && part != "."
    };
    (fits(owner) && fits(name) && !owner.starts_with('.')).then_some((owner, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let git = |text: &str| match classify(Path::new(text), false) {
            Ok(Address::Git(url)) => url,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(git("gh:a/b"), "https://github.com/a/b.git");
        assert_eq!(git("gl:a/b.git"), "https://gitlab.com/a/b.git");
        assert_eq!(git("bb:a/b"), "https://bitbucket.org/a/b.git");
        assert_eq!(git("sr:a/b"), "https://git.sr.ht/~a/b");
        assert_eq!(git("a/b"), "https://github.com/a/b.git");
        for url in [
            "https://h/a/b",
            "ssh://git@h:22/a",
            "git@h:a/b.git",
            "file:///a b/c",
        ] {
            assert_eq!(git(url), url);
        }
        for folder in ["absent", "./a/b", "../a", "/a/b", "a/b/c", "~/a"] {
            let path = PathBuf::from(folder);
            assert_eq!(classify(&path, false).unwrap(), Address::Folder(path));
        }
        let is_folder = |text| matches!(classify(Path::new(text), false), Ok(Address::Folder(_)));
        assert!(is_folder("src"));
    }

    #[test]
    fn what_would_run_something_is_refused() {
        for url in [
            "gh:",
            "gl:a/",
            "ext::sh -c true",
            "EXT::sh",
            "fd::3",
            "ftp://h/a",
            "ext://h/a",
            "ssh://-oProxyCommand=true/a",
            "ssh://u@-oProxyCommand=true/a",
            "git@-oProxyCommand=true:a",
            "-uexec://h",
            "https://h/\na",
        ] {
            assert!(classify(Path::new(url), false).is_err(), "{url}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url| without_password(url);
        assert_eq!(shown("https://me:secret@h/a@b"), "https://h/a@b");
        assert_eq!(shown("https://token@h/a"), "https://h/a");
        assert_eq!(shown("ssh://git@h/a"), "ssh://git@h/a");
        assert_eq!(shown("ssh://git:secret@h:22/a"), "ssh://git@h:22/a");
        assert_eq!(shown("git@h:a/b"), "git@h:a/b");
    }
}
