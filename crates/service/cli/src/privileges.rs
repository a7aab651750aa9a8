//! Becoming an ordinary user.
//!
//! **Invariant.** Everything runs as one ordinary user: PostgreSQL refuses root, and files made by
//! root could not be read again by a later start as that user. When started as root, the data
//! directory is prepared, then root is given up for good before anything else is done.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use crate::error::{Failure, Outcome};

/// A user of the operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// Whether this process is root.
#[must_use]
#[allow(unsafe_code, reason = "libc is the only way to ask")]
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// The data directory to use.
///
/// # Errors
/// When there is no home directory to put it in, or the path cannot be made absolute.
pub fn data_directory(given: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given)
            .map_err(|error| Failure::new(format!("{}: {error}", given.display())));
    }
    if is_root() {
        return Ok(PathBuf::from("/var/lib/strandline"));
    }
    let home = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    home.map(|home| home.join("strandline")).ok_or_else(|| {
        Failure::new("there is no HOME to keep a cluster in").hint("name a directory with --data")
    })
}

/// Makes sure the data directory exists, belongs to an ordinary user and can be reached, and becomes
/// that user if this process is root.
///
/// # Errors
/// [`Failure`] with the remedy.
pub fn prepare_data_directory(data: &Path, wanted: Option<&str>) -> Outcome<()> {
    if !is_root() {
        if wanted.is_some() {
            return Err(Failure::new("only root can run as another user")
                .hint("leave --user out, or start with sudo"));
        }
        make_directory(data)?;
        return check_reachable(data);
    }
    let user = choose_user(data, wanted)?;
    if user.uid == 0 {
        return Err(Failure::new("PostgreSQL does not run as root")
            .hint("name an ordinary user with --user"));
    }
    let fresh = make_directory(data)?;
    let about = fs::metadata(data).map_err(|error| at(data, &error))?;
    if about.uid() != user.uid {
        let empty = fs::read_dir(data)
            .map_err(|error| at(data, &error))?
            .next()
            .is_none();
        if !fresh && !empty {
            return Err(Failure::new(format!(
                "{} belongs to user id {}, not to {}",
                data.display(),
                about.uid(),
                user.name
            ))
            .hint("name its owner with --user, or another directory with --data"));
        }
        chown(data, Some(user.uid), Some(user.gid)).map_err(|error| at(data, &error))?;
    }
    become_user(&user)?;
    check_reachable(data)
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// Creates the directory (and its parents) unless it is there; says whether it was created.
fn make_directory(data: &Path) -> Outcome<bool> {
    if data.is_dir() {
        return Ok(false);
    }
    if let Some(parent) = data.parent() {
        fs::create_dir_all(parent).map_err(|error| at(parent, &error))?;
    }
    match DirBuilder::new().mode(0o700).create(data) {
        Ok(()) => Ok(true),
        Err(error) => {
            let failure = at(data, &error);
            Err(match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    failure.hint("name a directory you may write with --data")
                }
                io::ErrorKind::AlreadyExists => {
                    failure.hint("it is no directory; name another with --data")
                }
                _ => failure,
            })
        }
    }
}

/// Fails unless this user can work in `data`.
fn check_reachable(data: &Path) -> Outcome<()> {
    let probe = data.join(format!(".probe-{}", std::process::id()));
    match fs::write(&probe, []).and_then(|()| fs::remove_file(&probe)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let blocked = data.ancestors().skip(1).find(|parent| {
                fs::metadata(parent).is_ok() && fs::metadata(parent.join(".")).is_err()
            });
            let place = blocked.unwrap_or(data);
            let user = compute::manager::current_user().unwrap_or_else(|_| "this user".to_owned());
            Err(Failure::new(format!(
                "user {user} cannot use {}: permission denied at {}",
                data.display(),
                place.display()
            ))
            .hint("name a directory whose parents that user may enter with --data"))
        }
        Err(error) => Err(at(data, &error)),
    }
}

fn choose_user(data: &Path, wanted: Option<&str>) -> Outcome<User> {
    if let Some(name) = wanted {
        return find_user(name)?.ok_or_else(|| {
            Failure::new(format!("there is no user {name}"))
                .hint(format!("create it: useradd --system {name}"))
        });
    }
    if let Some(owner) = fs::metadata(data)
        .ok()
        .map(|about| about.uid())
        .filter(|uid| *uid != 0)
        && let Some(user) = find_uid(owner)?
    {
        return Ok(user);
    }
    for name in ["postgres", "strandline"] {
        if let Some(user) = find_user(name)? {
            return Ok(user);
        }
    }
    Err(Failure::new(
        "PostgreSQL does not run as root, and there is no user postgres or strandline",
    )
    .hint("create one with `useradd --system strandline`, or name one with --user"))
}

fn find_user(name: &str) -> Outcome<Option<User>> {
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    look_up(|entry, buffer, found| {
        // SAFETY: every pointer is valid for the call, and the length is the buffer's.
        #[allow(unsafe_code, reason = "the user database has no wrapper in std")]
        unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry,
                buffer.as_mut_ptr(),
                buffer.len(),
                found,
            )
        }
    })
}

fn find_uid(uid: u32) -> Outcome<Option<User>> {
    look_up(|entry, buffer, found| {
        // SAFETY: every pointer is valid for the call, and the length is the buffer's.
        #[allow(unsafe_code, reason = "the user database has no wrapper in std")]
        unsafe {
            libc::getpwuid_r(uid, entry, buffer.as_mut_ptr(), buffer.len(), found)
        }
    })
}

#[allow(unsafe_code, reason = "the user database has no wrapper in std")]
fn look_up(
    ask: impl Fn(&mut libc::passwd, &mut [libc::c_char], &mut *mut libc::passwd) -> i32,
) -> Outcome<Option<User>> {
    let mut buffer = vec![0; 64 << 10];
    // SAFETY: an all-zero passwd is a valid value to be filled in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    match ask(&mut entry, &mut buffer, &mut found) {
        0 if found.is_null() => Ok(None),
        0 => {
            // SAFETY: the call succeeded, so pw_name is a NUL-terminated string inside `buffer`.
            let name = unsafe { CStr::from_ptr(entry.pw_name) };
            let name = name.to_string_lossy().into_owned();
            Ok(Some(User {
                name,
                uid: entry.pw_uid,
                gid: entry.pw_gid,
            }))
        }
        libc::ENOENT | libc::ESRCH => Ok(None),
        error => Err(Failure::new(format!(
            "the user database cannot be read: {}",
            io::Error::from_raw_os_error(error)
        ))),
    }
}

/// Gives up root for good.
#[allow(unsafe_code, reason = "changing users has no wrapper in std")]
fn become_user(user: &User) -> Outcome<()> {
    let name =
        CString::new(user.name.as_str()).map_err(|_| Failure::new("a user name holds a NUL"))?;
    let fail = || {
        let error = io::Error::last_os_error();
        Failure::new(format!("cannot become user {}: {error}", user.name))
    };
    // SAFETY: plain system calls; `name` is a NUL-terminated string that outlives the call.
    unsafe {
        if libc::initgroups(name.as_ptr(), user.gid) != 0
            || libc::setgid(user.gid) != 0
            || libc::setuid(user.uid) != 0
        {
            return Err(fail());
        }
        // Must not be possible any more.
        if libc::setuid(0) == 0 {
            return Err(Failure::new("root could not be given up"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_id() {
        let root = find_user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(find_uid(0).unwrap().unwrap().name, "root");
        assert_eq!(find_user("no-such-user-at-all").unwrap(), None);
    }
}
