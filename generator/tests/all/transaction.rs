//! Transactions, as the commands use them.

use std::{fs, path::Path};

use kiln::{
    error::Kind,
    project::transaction::{Change, FOLDER, Transaction, is_unfinished, recover},
};

fn change(path: &str, was: Option<&str>, now: Option<&str>) -> Change {
    Change {
        path: path.into(),
        was: was.map(|text| text.as_bytes().to_vec()),
        contents: now.map(|text| (text.as_bytes().to_vec(), false)),
        mode: None,
    }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        fs::write(folder.path().join(path), text).unwrap();
    }
    folder
}

fn read(folder: &Path, path: &str) -> String {
    fs::read_to_string(folder.join(path)).unwrap()
}

#[test]
fn all_is_changed_and_nothing_is_left_beside_it() {
    let place = folder(&[("a", "a"), ("b", "b")]);
    let changes = [
        change("a", Some("a"), Some("A")),
        change("b", Some("b"), None),
        change("c/d/e", None, Some("e")),
    ];
    let transaction = Transaction::begin(place.path()).unwrap();
    transaction.apply(&changes, &["f/g".into()]).unwrap();
    assert_eq!(read(place.path(), "a"), "A");
    assert_eq!(read(place.path(), "c/d/e"), "e");
    assert!(!place.path().join("b").exists() && place.path().join("f/g").is_dir());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
}

/// A file was saved after it was read.
#[test]
fn what_changed_meanwhile_is_not_written_over() {
    let place = folder(&[("a", "a"), ("b", "saved")]);
    let changes = [
        change("a", Some("a"), Some("A")),
        change("b", Some("b"), Some("B")),
    ];
    let transaction = Transaction::begin(place.path()).unwrap();
    let error = transaction.apply(&changes, &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("was changed while Kiln was running"),
        "{error}"
    );
    assert_eq!(read(place.path(), "a"), "a");
    assert_eq!(read(place.path(), "b"), "saved");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn one_works_at_a_time() {
    let place = folder(&[]);
    let first = Transaction::begin(place.path()).unwrap();
    let error = Transaction::begin(place.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("another process of Kiln is changing"),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::System);
    drop(first);
    drop(Transaction::begin(place.path()).unwrap());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn a_file_keeps_its_rights() {
    use std::os::unix::fs::PermissionsExt;
    let place = folder(&[("a", "a"), ("b", "b")]);
    let mode = |path: &str| {
        fs::metadata(place.path().join(path))
            .unwrap()
            .permissions()
            .mode()
    };
    for path in ["a", "b"] {
        let rights = fs::Permissions::from_mode(0o640);
        fs::set_permissions(place.path().join(path), rights).unwrap();
    }
    let mut runs = change("b", Some("b"), Some("B"));
    runs.contents = Some((b"B".to_vec(), true));
    let changes = [change("a", Some("a"), Some("A")), runs];
    let transaction = Transaction::begin(place.path()).unwrap();
    transaction.apply(&changes, &[]).unwrap();
    assert_eq!((mode("a") & 0o777, mode("b") & 0o777), (0o640, 0o750));
}

/// A journal may come from someone else's project.
#[cfg(unix)]
#[test]
fn nothing_outside_is_restored() {
    let outside = folder(&[]);
    let absolute = outside.path().join("x").display().to_string();
    for path in ["link/x", "../x", &absolute] {
        let around = folder(&[]);
        let place = around.path().join("project");
        fs::create_dir_all(place.join(FOLDER).join("old")).unwrap();
        std::os::unix::fs::symlink(outside.path(), place.join("link")).unwrap();
        fs::write(place.join(FOLDER).join("old/0"), "planted").unwrap();
        let entry = format!(r#"{{"path":"{path}","new":null,"old":true}}"#);
        let journal = format!(r#"{{"entries":[{entry}],"folders":[]}}"#);
        fs::write(place.join(FOLDER).join("journal.json"), journal).unwrap();
        assert!(is_unfinished(&place));
        let recovered = recover(&place);
        assert_eq!(recovered.is_err(), path != "link/x", "{path}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{path}");
        assert_eq!(fs::read_dir(around.path()).unwrap().count(), 1, "{path}");
    }
}

/// The user continued to work after an update was killed.
#[test]
fn what_was_edited_since_stays() {
    let place = folder(&[("a", "edited"), ("b", "B")]);
    let hidden = place.path().join(FOLDER);
    fs::create_dir_all(hidden.join("old")).unwrap();
    fs::write(hidden.join("old/0"), "a").unwrap();
    fs::write(hidden.join("old/1"), "b").unwrap();
    // The old contents of `A` and `B`.
    let hashes = [
        "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd",
        "df7e70e5021544f4834bbee64a9e3789febc4be81470df629cad6ddb03320a5c",
    ];
    let entry =
        |path: &str, hash: &str| format!(r#"{{"path":"{path}","new":"{hash}","old":true}}"#);
    let entries = [entry("a", hashes[0]), entry("b", hashes[1])].join(",");
    let journal = format!(r#"{{"entries":[{entries}],"folders":[]}}"#);
    fs::write(hidden.join("journal.json"), journal).unwrap();
    assert!(recover(place.path()).unwrap());
    assert_eq!(read(place.path(), "a"), "edited");
    assert_eq!(read(place.path(), "b"), "b");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}
