//! Reading of commits of a repository through the user's `git`.
//!
//! Nothing of the repository is run: commits are fetched into an empty bare repository, which has no
//! hooks, and files are read from its objects. Nothing is checked out, so neither filters nor
//! submodules nor symbolic links have a part in it.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use super::{
    Origin, Revision,
    address::{check_url, without_password},
};
use crate::{
    error::{Error, Result, nearest, suggest},
    project::{git::git_command, repository::in_words, temporary::Temporary},
    template::CONFIG_FILE,
};

/// Settings that keep the user's configuration from running anything for a fetched commit.
const SETTINGS: [&str; 7] = [
    "protocol.ext.allow=never",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
];
/// The ref of the last fetched commit.
const FETCHED: &str = "refs/kiln/fetched";
/// The first bytes of a file that Git LFS keeps elsewhere.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
/// Starts of lines of git's output that are passed on at once.
const TOLD: [&str; 4] = ["remote: ", "warning: ", "info: ", "hint: "];
/// Folders that an error lists at most.
const LISTED: usize = 12;

/// A repository of templates, and a temporary bare repository with its fetched commits.
pub(crate) struct Repository {
    url: String,
    /// Whether git may ask for names and passwords.
    prompts: bool,
    folder: Temporary,
}

/// An entry of a tree.
struct Entry {
    mode: String,
    hash: String,
    path: String,
}

impl Repository {
    /// The repository at a URL or absolute path; nothing is fetched yet.
    ///
    /// # Errors
    /// The URL names a program, git cannot be run, or the file system fails.
    pub fn new(url: &str, prompts: bool) -> Result<Self> {
        check_url_or_path(url)?;
        let folder = temporary()?;
        let repository = Self {
            url: url.to_owned(),
            prompts,
            folder,
        };
        let init = ["init", "--quiet", "--bare", "--template=", "."];
        repository.git(&init).map_err(|said| {
            Error::system(format!("`git init` failed in a temporary folder: {said}"))
                .help("check that git runs (`git --version`) and that the disk is not full")
        })?;
        let head = ["symbolic-ref", "HEAD", FETCHED];
        repository
            .git(&head)
            .map_err(|said| self_failed("symbolic-ref", &said))?;
        Ok(repository)
    }

    /// Fetches a revision; returns the hash of its commit.
    ///
    /// # Errors
    /// The repository cannot be read or does not have the revision.
    pub fn resolve(&self, revision: &Revision) -> Result<String> {
        match revision {
            Revision::Rev(rev) => return self.resolve_rev(rev),
            Revision::Tip => self.fetch("HEAD"),
            Revision::Branch(name) => self.fetch(&format!("refs/heads/{name}")),
            Revision::Tag(name) => self.fetch(&format!("refs/tags/{name}")),
        }
        .map_err(|said| self.missing(revision, &said))?;
        self.commit(FETCHED).ok_or_else(|| {
            let (what, name) = revision.named().unwrap_or(("branch", "HEAD"));
            Error::input(format!(
                "the {what} `{name}` of `{}` is no commit",
                self.shown()
            ))
            .help("give a branch, or the tag of a commit")
        })
    }

    fn resolve_rev(&self, rev: &str) -> Result<String> {
        if is_hash(rev) && self.fetch(rev).is_ok() {
            return self.commit(FETCHED).ok_or_else(|| self.no_commit(rev));
        }
        self.fetch_all().map_err(|said| self.unreadable(&said))?;
        self.commit(rev).ok_or_else(|| self.no_commit(rev))
    }

    /// Fetches a commit that a project records: by its hash or, where the server does not allow
    /// that, with all branches and tags.
    ///
    /// # Errors
    /// The repository cannot be read or no longer has the commit.
    pub fn require(&self, commit: &str) -> Result<()> {
        if self.commit(commit).is_some() || self.fetch(commit).is_ok() {
            return Ok(());
        }
        self.fetch_all().map_err(|said| self.unreadable(&said))?;
        if self.commit(commit).is_some() {
            return Ok(());
        }
        let short = commit.get(..10).unwrap_or(commit);
        let message = format!(
            "`{}` no longer has the commit {short}, which the project was made from",
            self.shown()
        );
        Err(Error::system(message).help(
            "its history was rewritten: give a folder with the template as it was (`--from FOLDER`), \
             or let its owner push a branch or tag with the commit; nothing was changed",
        ))
    }

    /// Fetches one ref or commit without its history or, if the server cannot do that, with it.
    fn fetch(&self, what: &str) -> std::result::Result<(), String> {
        let refspec = format!("+{what}:{FETCHED}");
        let options = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"];
        let shallow = [&options[..], &["--depth=1", "--", &self.url, &refspec]].concat();
        if self.git(&shallow).is_ok() {
            return Ok(());
        }
        let whole = [&options[..], &["--", &self.url, &refspec]].concat();
        self.git(&whole).map(drop)
    }

    /// Fetches all branches and tags with their history.
    fn fetch_all(&self) -> std::result::Result<(), String> {
        let mut options = vec!["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"];
        if self.folder.path().join("shallow").exists() {
            options.push("--unshallow");
        }
        let head = format!("+HEAD:{FETCHED}");
        let heads = "+refs/heads/*:refs/heads/*";
        let refs = ["--", &self.url, &head, heads, "+refs/tags/*:refs/tags/*"];
        options.extend(refs);
        // The default branch may be missing where other branches are not.
        let without_head: Vec<_> = options.iter().copied().filter(|one| *one != head).collect();
        self.git(&options)
            .or_else(|_| self.git(&without_head))
            .map(drop)
    }

    /// The hash of the commit that a revision names among the fetched ones.
    fn commit(&self, rev: &str) -> Option<String> {
        let commit = format!("{rev}^{{commit}}");
        let options = [
            "rev-parse",
            "--quiet",
            "--verify",
            "--end-of-options",
            &commit,
        ];
        let hash = self.git(&options).ok()?;
        // A hash is taken for a commit even if that was not fetched.
        self.git(&["cat-file", "-e", hash.trim()]).ok()?;
        Some(hash.trim().to_owned())
    }

    /// An error for a revision that could not be fetched.
    fn missing(&self, revision: &Revision, said: &str) -> Error {
        let Some((what, name)) = revision.named() else {
            let empty = self.git(&["ls-remote", "--", &self.url]);
            if empty.is_ok_and(|refs| refs.trim().is_empty()) {
                return Error::input(format!("the repository `{}` has no commits", self.shown()))
                    .help("commit the template there first");
            }
            return self.unreadable(said);
        };
        let kind = if what == "tag" { "--tags" } else { "--heads" };
        let listed = match self.git(&["ls-remote", kind, "--refs", "--", &self.url]) {
            Ok(listed) => listed,
            Err(said) => return self.unreadable(&said),
        };
        let names = listed.lines().filter_map(|line| line.split('\t').nth(1));
        let names = names.filter_map(|name| name.splitn(3, '/').nth(2));
        let mut names: Vec<&str> = names.collect();
        let error = Error::input(format!("`{}` has no {what} `{name}`", self.shown()));
        let near = nearest(name, names.iter().copied());
        names.retain(|one| Some(*one) != near);
        let room = LISTED - usize::from(near.is_some());
        let more = names.len().saturating_sub(room);
        names.truncate(room);
        names.extend(near);
        if names.is_empty() {
            return error.help(format!("the repository has no {what}"));
        }
        let plural = if what == "tag" {
            "the tags"
        } else {
            "the branches"
        };
        let mut help = suggest(name, names, plural);
        if more > 0 {
            help.push_str(&format!(" and {more} more"));
        }
        error.help(help)
    }

    fn no_commit(&self, rev: &str) -> Error {
        Error::input(format!("`{}` has no commit `{rev}`", self.shown()))
            .help("give a hash of `git log`, or use `--branch` or `--tag`")
    }

    fn unreadable(&self, said: &str) -> Error {
        let url = self.shown();
        Error::system(format!("git cannot read the repository `{url}`: {said}")).help(format!(
            "check the address, the network and your access: `git ls-remote {url}` does the same; \
             nothing was written"
        ))
    }

    fn shown(&self) -> String {
        without_password(&self.url)
    }

    /// The folder of the template in a commit, if its root has none but exactly one folder has. As
    /// cargo-generate, Kiln then takes that.
    ///
    /// # Errors
    /// Several folders have a template, or git fails.
    pub fn locate(&self, commit: &str) -> Result<Option<String>> {
        let entries = self.entries(commit, None)?;
        let suffix = format!("/{CONFIG_FILE}");
        if entries.iter().any(|entry| entry.path == CONFIG_FILE) {
            return Ok(None);
        }
        let paths = entries.iter().map(|entry| entry.path.as_str());
        let folders: Vec<&str> = paths
            .filter_map(|path| path.strip_suffix(&suffix))
            .collect();
        match folders[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.to_owned())),
            _ => {
                let shown = self.shown();
                let error = Error::input(format!("`{shown}` has several templates"));
                let ways = folders.iter().take(LISTED);
                let ways = ways.map(|folder| format!("`--subfolder {folder}`"));
                Err(error.help(format!("add {}", ways.collect::<Vec<_>>().join(" or "))))
            }
        }
    }

    /// Writes the files of the template in a commit to a temporary folder. Symbolic links are
    /// created but never followed.
    ///
    /// # Errors
    /// The folder does not exist, an entry is a submodule or is kept by Git LFS, or git fails.
    pub fn export(&self, origin: &Origin) -> Result<Temporary> {
        let entries = self.entries(&origin.commit, origin.source.subfolder.as_deref())?;
        let folder = temporary()?;
        let label = origin.source.label();
        for entry in &entries {
            check_entry(&label, entry)?;
        }
        let contents = self.contents(&entries)?;
        let (links, files): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| entry.mode == "120000");
        for entry in files {
            let bytes = contents.get(&entry.hash).map_or(&[][..], Vec::as_slice);
            if bytes.starts_with(LFS) {
                let message = format!(
                    "`{label}/{}` is kept by Git LFS, which is not run",
                    entry.path
                );
                return Err(Error::template(message).help(
                    "clone the repository with Git LFS and give the folder: `--template FOLDER`",
                ));
            }
            put(folder.path(), entry, bytes)?;
        }
        // Links come last, so that no file is written through one.
        for entry in links {
            let target = contents.get(&entry.hash).map_or(&[][..], Vec::as_slice);
            put_link(folder.path(), &entry.path, target)?;
        }
        Ok(folder)
    }

    /// The entries of a commit below a folder.
    fn entries(&self, commit: &str, subfolder: Option<&str>) -> Result<Vec<Entry>> {
        let tree = match subfolder {
            Some(folder) => format!("{commit}:{folder}"),
            None => format!("{commit}^{{tree}}"),
        };
        let listed = self.git(&["ls-tree", "-r", "-z", "--full-tree", &tree]);
        let listed = listed.map_err(|said| match subfolder {
            Some(folder) => self.no_folder(commit, folder),
            None => self_failed("ls-tree", &said),
        })?;
        let entries = listed.split('\0').filter(|entry| !entry.is_empty());
        let entries = entries.map(|entry| {
            let (about, path) = entry.split_once('\t')?;
            let mut about = about.split(' ');
            Some(Entry {
                mode: about.next()?.to_owned(),
                hash: about.nth(1)?.to_owned(),
                path: path.to_owned(),
            })
        });
        let entries: Option<Vec<_>> = entries.collect();
        entries.ok_or_else(|| self_failed("ls-tree", "its output is not as expected"))
    }

    fn no_folder(&self, commit: &str, folder: &str) -> Error {
        let error = Error::input(format!("`{}` has no folder `{folder}`", self.shown()));
        let suffix = format!("/{CONFIG_FILE}");
        let entries = self.entries(commit, None).unwrap_or_default();
        let paths = entries.iter().map(|entry| entry.path.as_str());
        let folders = paths.filter_map(|path| path.strip_suffix(&suffix));
        let folders: Vec<&str> = folders.take(LISTED).collect();
        match folders[..] {
            [] => error.help("no folder below its root has a template"),
            _ => error.help(suggest(folder, folders, "the folders with a template")),
        }
    }

    /// The contents of the files and links by hash.
    fn contents(&self, entries: &[Entry]) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut hashes: Vec<_> = entries.iter().map(|entry| entry.hash.as_str()).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let input: String = hashes.iter().map(|hash| format!("{hash}\n")).collect();
        let output = self.run(&["cat-file", "--batch"], input.into_bytes());
        let output = output.map_err(|said| self_failed("cat-file", &said))?;
        let cut = || self_failed("cat-file", "its output is not as expected");
        let mut contents = BTreeMap::new();
        let mut rest = &output[..];
        for hash in hashes {
            let end = memchr::memchr(b'\n', rest).ok_or_else(cut)?;
            let line = String::from_utf8_lossy(&rest[..end]);
            let size = line.rsplit(' ').next().and_then(|size| size.parse().ok());
            let size: usize = size.ok_or_else(cut)?;
            let start = end + 1;
            let bytes = rest.get(start..start + size).ok_or_else(cut)?;
            contents.insert(hash.to_owned(), bytes.to_vec());
            rest = rest.get(start + size + 1..).ok_or_else(cut)?;
        }
        Ok(contents)
    }

    /// The output of git in the temporary repository, or its message.
    fn git(&self, args: &[&str]) -> std::result::Result<String, String> {
        let output = self.run(args, Vec::new())?;
        String::from_utf8(output).map_err(|_| "a name is not UTF-8".to_owned())
    }

    fn run(&self, args: &[&str], input: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
        let mut git = self.command();
        git.args(args);
        // Git and ssh ask on the terminal itself, not through these.
        git.stdin(Stdio::piped());
        git.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = git
            .spawn()
            .map_err(|cause| format!("cannot run git: {cause}"))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let mut output = Vec::new();
        let (read, said) = thread::scope(|threads| {
            threads.spawn(move || {
                // A git that fails early closes its input; its message tells why.
                let _ = stdin.map(|mut stdin| stdin.write_all(&input));
            });
            let said = threads.spawn(move || stderr.map(pass_on).unwrap_or_default());
            let read = child
                .stdout
                .take()
                .map(|mut out| out.read_to_end(&mut output));
            (read, said.join().unwrap_or_default())
        });
        let said = in_words(&said);
        if let Some(Err(cause)) = read {
            return Err(format!("cannot read its output: {cause}"));
        }
        let status = child.wait().map_err(|cause| cause.to_string())?;
        match status.success() {
            true => Ok(output),
            false if said.is_empty() => Err(format!("`git {}` failed: {status}", args[0])),
            false => Err(said),
        }
    }

    fn command(&self) -> Command {
        let mut git = git_command();
        for setting in SETTINGS {
            git.args(["-c", setting]);
        }
        git.arg("--git-dir=.").current_dir(self.folder.path());
        for variable in [
            "GIT_NAMESPACE",
            "GIT_OBJECT_DIRECTORY",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            "GIT_SHALLOW_FILE",
            "GIT_EXTERNAL_DIFF",
        ] {
            git.env_remove(variable);
        }
        git.env("GIT_NO_LAZY_FETCH", "1");
        if !self.prompts {
            git.env("GIT_TERMINAL_PROMPT", "0");
        }
        git
    }
}

/// Reads what git says, and passes on at once what the server and helpers say to the user. Git's own
/// errors are left to the caller, as it may try another way.
fn pass_on(stderr: impl Read) -> Vec<u8> {
    let mut said = Vec::new();
    for line in BufReader::new(stderr)
        .split(b'\n')
        .map_while(io::Result::ok)
    {
        if TOLD.iter().any(|start| line.starts_with(start.as_bytes())) {
            // A failure to write it cannot be reported.
            let _ = io::stderr().write_all(&[&line[..], b"\n"].concat());
        }
        said.extend(line);
        said.push(b'\n');
    }
    said
}

/// Checks a URL, or an absolute path, which is one if it has neither protocol nor host.
fn check_url_or_path(url: &str) -> Result<()> {
    match Path::new(url).is_absolute() {
        true => Ok(()),
        false => check_url(url),
    }
}

/// Whether a text is the full hash of a commit.
fn is_hash(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Refuses entries that a template cannot have, and paths that lead out of it.
fn check_entry(label: &str, entry: &Entry) -> Result<()> {
    let path = &entry.path;
    if entry.mode == "160000" {
        let message = format!("`{label}/{path}` is a submodule, which Kiln does not fetch");
        return Err(Error::template(message).help(
            "clone the repository with `git clone --recurse-submodules` and give the folder: \
             `--template FOLDER`",
        ));
    }
    let bad = |part: &str| {
        let reserved = cfg!(windows) && part.contains(['\\', ':']);
        part.is_empty()
            || part == "."
            || part == ".."
            || part.eq_ignore_ascii_case(".git")
            || reserved
    };
    if path.split('/').any(bad) {
        let message = format!("the path `{path}` in `{label}` cannot be written");
        return Err(Error::template(message).help("rename it in the repository"));
    }
    Ok(())
}

fn put(folder: &Path, entry: &Entry, bytes: &[u8]) -> Result<()> {
    let path = folder.join(&entry.path);
    let failed = |cause| Error::io("write", &path, cause);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    // Trees that Git would not make can have an entry twice.
    let mut file = fs::File::create_new(&path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    #[cfg(unix)]
    if entry.mode == "100755" {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(())
}

/// Creates a symbolic link, which a template must not have, so that it is refused with its name.
#[cfg(unix)]
fn put_link(folder: &Path, path: &str, target: &[u8]) -> Result<()> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let path = folder.join(path);
    let failed = |cause| Error::io("write", &path, cause);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).map_err(failed)
}

/// Other platforms need rights to create one.
#[cfg(not(unix))]
fn put_link(_: &Path, path: &str, _: &[u8]) -> Result<()> {
    let message = format!("`{path}` is a symbolic link and would be missing from every project");
    Err(Error::template(message).help("replace a symbolic link by a copy of its target"))
}

/// A folder for a repository or a template, which a later run removes if this one is killed.
fn temporary() -> Result<Temporary> {
    let parent = std::env::temp_dir();
    Temporary::make(&parent, "kiln-template-")
        .map_err(|cause| Error::io("make a folder in", &parent, cause))
}

fn self_failed(command: &str, said: &str) -> Error {
    Error::system(format!(
        "`git {command}` failed in a temporary folder: {said}"
    ))
    .help("check that git runs (`git --version`) and that the disk is not full")
}
