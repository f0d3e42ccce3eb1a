//! Files on disk: a file is replaced only by a whole one, and only what is a regular file is read or
//! replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are tried for a file beside another one. Files of that name are left by processes of the same
/// number that were killed.
const NAMES_MAX: u32 = 1_000;

/// Writes `content` to the file `path`, which has its old content until the new one is whole and on disk.
///
/// The content goes to a temporary file in the same folder, which is then renamed. So an error, a full disk
/// or a killed process leaves the old file as it was. A symbolic link at `path` is replaced itself; what it
/// points to is not touched.
///
/// # Errors
/// Errors of `content` and of the system; `InvalidInput` where `path` is not a regular file (a folder, a
/// FIFO, a device), `PermissionDenied` where that file is read-only. The temporary file is removed.
pub fn replace(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    check_target(path)?;
    let (file, temporary) = create_beside(path, "tmp")?;
    let temporary = Temporary(Some(temporary));
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    drop(file);
    temporary.rename_to(path)?;
    // The name is on disk when the folder is. Not every file system can say so, and the content is safe in
    // any case.
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// As [`replace`], of a kind of file whose content always begins with `head`.
///
/// # Errors
/// As those of [`replace`], and of [`check_alike`].
pub(crate) fn replace_alike(
    path: &Path,
    head: &[u8],
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    check_alike(path, head)?;
    replace(path, content)
}

/// Refuses a path at which there is a file of another kind: one that is not empty and does not begin with
/// `head`. With a wrong path no program and no trace is lost.
///
/// # Errors
/// As those of [`check_target`]; `AlreadyExists` for a file of another kind.
pub(crate) fn check_alike(path: &Path, head: &[u8]) -> io::Result<()> {
    check_target(path)?;
    let mut there = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(head.len() as u64).read_to_end(&mut there)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if there.is_empty() || there == head {
        return Ok(());
    }
    let why = "it is a file of another kind, and is not replaced: name another file";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
}

/// Refuses a path at which no file can be replaced. Opens nothing, so that it never waits for the other end
/// of a FIFO.
///
/// # Errors
/// As those of [`replace`], as far as they can be seen before.
pub fn check_target(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => Err(no_regular_file("it cannot be replaced by one")),
        Ok(there) if there.permissions().readonly() => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only"))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a file in the folder of `path`, named after it, this process and `purpose`:
/// `run.pftrace.4711.tmp`. No other file is overwritten: if there is one of that name, the next gets a
/// number.
///
/// # Errors
/// Errors of the system.
pub fn create_beside(path: &Path, purpose: &str) -> io::Result<(File, PathBuf)> {
    // A thread of this process may write to the same path.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| no_regular_file("it names no file"))?;
    let process = std::process::id();
    let mut last = None;
    for attempt in 0..NAMES_MAX {
        let mut beside = name.to_owned();
        match attempt {
            0 => beside.push(format!(".{process}.{purpose}")),
            _ => beside.push(format!(".{process}-{}.{purpose}", NEXT.fetch_add(1, Ordering::Relaxed) + 1)),
        }
        let beside = path.with_file_name(beside);
        // A new file: no symbolic link is followed, nothing is opened that could make us wait.
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
}

/// The content of a regular file. Waits for nothing: a FIFO without a writer is refused like everything else
/// that is no regular file, and so has no size that the memory for it could be compared with.
///
/// # Errors
/// Errors of the system; `InvalidInput` for what is no regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let there = file.metadata()?;
    if !there.is_file() {
        return Err(no_regular_file("copy it to one first"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(there.len()).unwrap_or(0));
    // Bytes that are appended meanwhile are not awaited: the reading of a file that grows ends as well.
    file.take(there.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn no_regular_file(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is no regular file: {why}"))
}

/// A file that is removed unless it gets its name.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        match &self.0 {
            Some(temporary) => fs::rename(temporary, path)?,
            None => return Ok(()),
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(temporary) = self.0.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
mod tests {
    use std::io::Write;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("estafette-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_only_when_the_new_one_is_whole() {
        let folder = folder("whole");
        let path = folder.join("run");
        fs::write(&path, "good").unwrap();
        let torso = replace(&path, |out| {
            out.write_all(&[b'x'; 100_000])?;
            assert_eq!(fs::read(&path).unwrap(), b"good", "while it is written");
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        assert_eq!(torso.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"good".to_vec(), vec!["run".to_owned()]));
        replace(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"new".to_vec(), vec!["run".to_owned()]));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_panic_while_it_is_written_leaves_the_old_file() {
        let folder = folder("panic");
        let path = folder.join("run");
        fs::write(&path, "good").unwrap();
        let panicked = std::panic::catch_unwind(|| replace(&path, |_| panic!("planted")));
        assert!(panicked.is_err());
        assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"good".to_vec(), vec!["run".to_owned()]));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = folder("special");
        let fifo = folder.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        for path in [&fifo, &folder, Path::new("/dev/null"), Path::new("/dev/zero")] {
            let refused = replace(path, |_| unreachable!("nothing is written")).unwrap_err();
            assert!(refused.to_string().contains("no regular file"), "{refused}");
            let refused = read(path).unwrap_err();
            assert!(refused.to_string().contains("no regular file"), "{refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_of_another_kind_is_not_replaced() {
        let folder = folder("kind");
        let path = folder.join("page");
        let write = |text: &str| replace_alike(&path, b"<page>", |out| out.write_all(text.as_bytes()));
        write("<page> new").unwrap();
        write("<page>").unwrap();
        write("").unwrap();
        write("else").unwrap();
        for there in ["else", "<pag", " <page>"] {
            fs::write(&path, there).unwrap();
            assert_eq!(write("<page>").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(&path).unwrap(), there);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_is_replaced_and_what_it_points_to_is_not_touched() {
        let folder = folder("link");
        let (precious, link) = (folder.join("precious"), folder.join("run"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        replace(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(
            (fs::read(&precious).unwrap(), fs::read(&link).unwrap()),
            (b"precious".to_vec(), b"new".to_vec())
        );
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        fs::remove_dir_all(&folder).unwrap();
    }
}
