//! Downloads: verified by a checksum, and resumed after an interruption.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use ureq::{Agent, Body, http::Response};

use crate::bytes::hex;

/// A file that can be downloaded from several mirrors.
#[derive(Clone, Copy, Debug)]
pub struct Download<'a> {
    /// File name, below each mirror and in the folder.
    pub name: &'a str,
    /// URLs that end in `/`, tried in order.
    pub mirrors: &'a [&'a str],
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: &'a str,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Downloads a file into `folder`, unless it exists, and returns its path.
///
/// Partial data is kept beside it as `NAME.part`, from which the next call resumes. A connection without
/// data for `timeout` is closed. If several processes download the same file, one does it and the others
/// wait.
///
/// # Errors
/// No mirror serves the file, or the folder has a different file of that name, which is left untouched.
pub fn download(file: &Download<'_>, folder: &Path, timeout: Duration) -> Result<PathBuf> {
    let path = folder.join(file.name);
    if path.exists() {
        check(file, &path)?;
        return Ok(path);
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let part = folder.join(format!("{}.part", file.name));
    let unusable = || format!("cannot write {}", part.display());
    let open = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(&part);
    let mut fetched = open.with_context(unusable)?;
    fetched.lock().with_context(unusable)?;
    if path.exists() {
        // Another process was faster; `part` may be a new empty file.
        let _ = fs::remove_file(&part);
        return Ok(path);
    }
    let agent = Agent::config_builder()
        .timeout_connect(Some(timeout))
        .timeout_recv_response(Some(timeout))
        .timeout_recv_body(Some(timeout))
        .build()
        .new_agent();
    let mut failures = String::new();
    for mirror in file.mirrors {
        let result = fetch(&agent, file, mirror, &mut fetched);
        match result.and_then(|()| finish(file, &fetched, &part, &path)) {
            Ok(()) => return Ok(path),
            Err(error) => failures += &format!("\n  {mirror}{}: {error:#}", file.name),
        }
    }
    bail!(
        "cannot fetch {}; download it by hand, from one of these or elsewhere:{failures}",
        path.display()
    )
}

/// Downloads a whole file from a mirror, in several requests if they end early.
fn fetch(agent: &Agent, file: &Download<'_>, mirror: &str, part: &mut File) -> Result<()> {
    loop {
        let start = part.metadata()?.len();
        if start == file.bytes {
            return Ok(());
        }
        if start > file.bytes {
            part.set_len(0)?;
            continue;
        }
        let request = agent.get(format!("{mirror}{}", file.name));
        let response = request.header("Range", format!("bytes={start}-")).call()?;
        let result = append(response, file.bytes, part);
        let reached = part.metadata()?.len();
        if reached > file.bytes {
            bail!("it has more than {} bytes", file.bytes);
        }
        if reached < file.bytes && reached <= start {
            result?;
            bail!("it ends after {reached} of {} bytes", file.bytes);
        }
    }
}

/// Appends a response, or starts over if the mirror does not resume.
fn append(response: Response<Body>, bytes: u64, part: &mut File) -> Result<()> {
    const PARTIAL_CONTENT: u16 = 206;
    if response.status().as_u16() != PARTIAL_CONTENT {
        part.set_len(0)?;
    }
    // One byte more than expected shows that it is another file.
    let left = bytes + 1 - part.metadata()?.len();
    io::copy(&mut response.into_body().into_reader().take(left), part)?;
    Ok(())
}

/// Verifies a complete file and gives it its name.
fn finish(file: &Download<'_>, mut fetched: &File, part: &Path, path: &Path) -> Result<()> {
    fetched.flush()?;
    fetched.sync_all()?;
    if let Err(error) = check(file, part) {
        // Wrong data cannot be resumed.
        fetched.set_len(0)?;
        return Err(error);
    }
    fs::rename(part, path).with_context(|| format!("cannot write {}", path.display()))
}

fn check(file: &Download<'_>, path: &Path) -> Result<()> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut opened = File::open(path).with_context(unreadable)?;
    let mut hasher = Sha256::new();
    io::copy(&mut opened, &mut hasher).with_context(unreadable)?;
    let bytes = opened.stream_position().with_context(unreadable)?;
    let sha256 = hex(hasher);
    ensure!(
        sha256 == file.sha256,
        "{} is another file: it has {bytes} bytes with SHA-256 {sha256}, and should have {} with {}",
        path.display(),
        file.bytes,
        file.sha256
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        net::{TcpListener, TcpStream},
        thread,
    };

    use super::*;

    const CONTENTS: &[u8] = b"twenty-two bytes, all.";
    const TIMEOUT: Duration = Duration::from_millis(500);

    fn file<'a>(mirrors: &'a [&'a str]) -> Download<'a> {
        Download {
            name: "data.gz",
            mirrors,
            sha256: "32fa3d643bd5de1fd5bbeb4f6030770383fed1f68f94cedaa279cfdb441625cf",
            bytes: CONTENTS.len() as u64,
        }
    }

    /// A mirror's response to one request.
    #[derive(Clone, Copy)]
    enum Answer {
        /// The requested range, cut off after this many bytes.
        Partial(usize),
        /// The whole file, whatever the range.
        Whole(&'static [u8]),
        NotFound,
        Silence,
    }

    /// A mirror that sends these responses and then stops.
    fn mirror(answers: &'static [Answer]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let start = requested_start(&stream);
                match *answer {
                    Answer::Partial(most) => {
                        let left = &CONTENTS[start..];
                        let body = &left[..most.min(left.len())];
                        respond(stream, "206 Partial Content", left.len(), body);
                    }
                    Answer::Whole(body) => respond(stream, "200 OK", body.len(), body),
                    Answer::NotFound => respond(stream, "404 Not Found", 0, b""),
                    Answer::Silence => thread::sleep(4 * TIMEOUT),
                }
            }
        });
        format!("http://{address}/")
    }

    /// The start of the requested range.
    fn requested_start(stream: &TcpStream) -> usize {
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let lines = lines.iter().map(|line| line.to_lowercase());
        let mut ranges = lines.filter_map(|line| {
            let range = line.strip_prefix("range: bytes=")?.strip_suffix('-')?;
            range.parse().ok()
        });
        ranges.next().unwrap()
    }

    fn respond(mut stream: TcpStream, status: &str, len: usize, body: &[u8]) {
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
    }

    fn fetched(answers: &[&'static [Answer]], part: &[u8]) -> Result<Vec<u8>> {
        let folder = tempfile::tempdir()?;
        if !part.is_empty() {
            fs::write(folder.path().join("data.gz.part"), part)?;
        }
        let mirrors: Vec<String> = answers.iter().map(|answers| mirror(answers)).collect();
        let mirrors: Vec<&str> = mirrors.iter().map(String::as_str).collect();
        let path = download(&file(&mirrors), folder.path(), TIMEOUT)?;
        assert!(!folder.path().join("data.gz.part").exists());
        Ok(fs::read(path)?)
    }

    #[test]
    fn a_file_comes_whole_in_parts_or_from_another_mirror() {
        use Answer::{NotFound, Partial, Silence, Whole};
        let cases: [(&[&'static [Answer]], &[u8]); 8] = [
            (&[&[Partial(99)]], b""),
            (&[&[Whole(CONTENTS)]], b""),
            (&[&[Partial(5), Partial(9), Partial(99)]], b""),
            (&[&[Partial(99)]], b"twenty"),
            (&[&[Whole(CONTENTS)]], b"twenty"),
            (&[&[NotFound], &[Partial(99)]], b""),
            (&[&[Partial(7), Silence], &[Partial(99)]], b""),
            // Damaged earlier, detected only by the checksum.
            (&[&[Partial(99)], &[Partial(99)]], b"other!"),
        ];
        for (answers, part) in cases {
            assert_eq!(fetched(answers, part).unwrap(), CONTENTS);
        }
    }

    #[test]
    fn what_no_mirror_gives_is_named_with_each_reason() {
        use Answer::{NotFound, Whole};
        let cases: [(&[&'static [Answer]], &str); 5] = [
            (&[&[Whole(b"short"), Whole(b"short")]], "ends after 5 of 22"),
            (
                &[&[Whole(b"<html>Please sign in to this network")]],
                "more than 22",
            ),
            (&[&[Whole(b"another one of 22 byte")]], "is another file"),
            (&[&[NotFound]], "404"),
            (&[], "cannot fetch"),
        ];
        for (answers, reason) in cases {
            let error = fetched(answers, b"").unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("data.gz"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_there_is_checked_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.gz");
        fs::write(&path, CONTENTS).unwrap();
        assert_eq!(download(&file(&[]), folder.path(), TIMEOUT).unwrap(), path);
        fs::write(&path, "mine").unwrap();
        let error = download(&file(&[]), folder.path(), TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("is another file"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
