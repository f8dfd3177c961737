//! Finds ONNX Runtime's shared library and its version by file names; loads nothing.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sconce_core::device::DeviceKind;
use sconce_core::obstacle::Obstacle;

/// The Python package that contains the library.
const NAME: &str = "onnxruntime";
/// Environment variable with the path of the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// A library file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// Its path.
    pub(super) path: PathBuf,
    /// How it was found.
    pub(super) found_by: String,
    /// Its version, if its name or its package tells.
    pub(super) version: Option<String>,
}

/// A folder to search.
struct SearchFolder {
    folder: PathBuf,
    found_by: &'static str,
}

/// Searches the locations that the environment defines.
pub(super) fn find() -> Result<Library, Obstacle> {
    match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(file) => at(Path::new(&file), VARIABLE),
        None => search(&folders()),
    }
}

/// The library at a path that was given explicitly.
pub(super) fn at(path: &Path, found_by: &str) -> Result<Library, Obstacle> {
    if !path.is_file() {
        let searched = vec![format!("`{}`, which {found_by} names", path.display())];
        return Err(Obstacle::LibraryMissing { library: NAME.to_owned(), searched });
    }
    checked(Library { path: path.to_owned(), found_by: found_by.to_owned(), version: version(path) })
}

/// The first folder that has the library; the newest version in it.
fn search(folders: &[SearchFolder]) -> Result<Library, Obstacle> {
    for searched_folder in folders {
        let newest = libraries(&searched_folder.folder)
            .into_iter()
            .max_by_key(|path| components(version(path).as_deref()));
        if let Some(path) = newest {
            let version = version(&path);
            return checked(Library { path, found_by: searched_folder.found_by.to_owned(), version });
        }
    }
    let mut searched = vec![VARIABLE.to_owned()];
    searched.extend(folders.iter().map(|searched_folder| {
        format!("{} ({})", searched_folder.folder.display(), searched_folder.found_by)
    }));
    Err(Obstacle::LibraryMissing { library: NAME.to_owned(), searched })
}

/// Rejects a library whose known version is too old; an unknown version is checked on load.
fn checked(library: Library) -> Result<Library, Obstacle> {
    let least = ort::MINOR_VERSION;
    match &library.version {
        Some(version) if components(Some(version)) < vec![1, least] => Err(Obstacle::LibraryTooOld {
            library: library.path.display().to_string(),
            found: version.clone(),
            needed: format!("1.{least}"),
        }),
        Some(_) | None => Ok(library),
    }
}

/// Folders that may have the library, in order of preference.
fn folders() -> Vec<SearchFolder> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut folders = Vec::new();
    if let Some(folder) = env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)) {
        folders.push(SearchFolder { folder, found_by: "beside the program" });
    }
    for (name, found_by) in [("VIRTUAL_ENV", "VIRTUAL_ENV"), ("CONDA_PREFIX", "CONDA_PREFIX")] {
        if let Some(prefix) = variable(name) {
            folders.extend(packages(&prefix).into_iter().map(|folder| SearchFolder { folder, found_by }));
            folders.push(SearchFolder { folder: prefix.join("lib"), found_by });
        }
    }
    for name in ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"] {
        let paths = env::var_os(name).unwrap_or_default();
        let absolute = env::split_paths(&paths).filter(|folder| folder.is_absolute());
        folders.extend(absolute.map(|folder| SearchFolder { folder, found_by: name }));
    }
    let system = [
        "/usr/local/lib",
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/opt/homebrew/lib",
    ];
    folders.extend(system.map(|folder| SearchFolder { folder: folder.into(), found_by: "the system" }));
    let home = variable("HOME").map(|home| home.join(".local"));
    for prefix in home.into_iter().chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        folders.extend(
            packages(&prefix).into_iter().map(|folder| SearchFolder { folder, found_by: "a Python package" }),
        );
    }
    folders
}

/// Folders of the package in a Python installation.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let pythons = fs::read_dir(&lib).into_iter().flatten().flatten().map(|entry| entry.path());
    let pythons = pythons.filter(|path| file_name(path).starts_with("python3"));
    let inside = ["site-packages", "dist-packages"];
    let mut folders: Vec<PathBuf> =
        pythons.flat_map(|python| inside.map(|inside| python.join(inside))).collect();
    folders.push(prefix.join("Lib/site-packages"));
    folders.retain(|folder| folder.join(NAME).is_dir());
    folders.sort();
    folders.into_iter().map(|folder| folder.join(NAME).join("capi")).collect()
}

/// The library files in `folder`.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = file_name(path);
        let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix(NAME);
        let parts = |rest: &str| rest.split('.').any(|part| ["so", "dylib", "dll"].contains(&part));
        rest.is_some_and(|rest| rest.starts_with('.') && parts(rest)) && path.is_file()
    };
    entries.filter(is_it).collect()
}

/// The version in `libonnxruntime.so.1.31.1`, in the target of a symlink, or in the folder of the Python package.
fn version(path: &Path) -> Option<String> {
    let of_name = |path: &Path| {
        let parts = file_name(path).split('.').filter(|part| part.parse::<u32>().is_ok());
        let parts: Vec<&str> = parts.collect();
        (parts.len() >= 2).then(|| parts.join("."))
    };
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    of_name(path).or_else(|| of_name(&real)).or_else(|| {
        let packages = real.parent()?.parent()?.parent()?;
        let entries = fs::read_dir(packages).ok()?.flatten().map(|entry| entry.path());
        let mut infos = entries.filter_map(|path| {
            Some(
                file_name(&path)
                    .strip_prefix(NAME)?
                    .strip_suffix(".dist-info")?
                    .rsplit('-')
                    .next()?
                    .to_owned(),
            )
        });
        infos.next()
    })
}

fn components(version: Option<&str>) -> Vec<u32> {
    version.unwrap_or_default().split('.').map_while(|part| part.parse().ok()).collect()
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

impl Library {
    /// The version, or a phrase if it is unknown.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().unwrap_or("of a version that its file does not tell")
    }

    /// Identifies the file, to detect a replacement.
    pub(super) fn identity(&self) -> String {
        let metadata = fs::metadata(&self.path).ok();
        let length = metadata.as_ref().map_or(0, fs::Metadata::len);
        let modified = metadata.and_then(|metadata| metadata.modified().ok());
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        format!("{length}-{}", modified.as_secs())
    }

    /// Whether the execution provider of this kind of device is installed.
    pub(super) fn drives(&self, kind: DeviceKind) -> Result<(), Obstacle> {
        let failed = |provider: &str, reason: String| {
            Err(Obstacle::ProviderFailed { provider: provider.to_owned(), reason })
        };
        match kind {
            DeviceKind::Cpu => Ok(()),
            DeviceKind::Metal if cfg!(target_os = "macos") => Ok(()),
            DeviceKind::Metal => failed("CoreMLExecutionProvider", "it is there on macOS alone".to_owned()),
            DeviceKind::Cuda => {
                let names = ["libonnxruntime_providers_cuda.so", "onnxruntime_providers_cuda.dll"];
                let real = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
                let folders = [self.path.parent(), real.parent()];
                if folders
                    .into_iter()
                    .flatten()
                    .any(|folder| names.iter().any(|name| folder.join(name).is_file()))
                {
                    return Ok(());
                }
                let reason = format!("`{}` does not lie beside `{}`", names[0], self.path.display());
                failed("CUDAExecutionProvider", reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> PathBuf {
        let name = files.join("+").replace('/', "-");
        let folder = env::temp_dir().join(format!("sconce-library-{}-{name}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder can be made");
            fs::write(path, "").expect("a file can be written");
        }
        folder
    }

    fn search_folder(folder: &Path) -> SearchFolder {
        SearchFolder { folder: folder.to_owned(), found_by: "a test" }
    }

    #[test]
    fn the_newest_of_a_folder_is_taken_and_its_name_tells_its_version() {
        let some = folder(&[
            "libonnxruntime.so.1.30.0",
            "libonnxruntime.so.1.31.1",
            "libonnxruntime_providers_shared.so",
        ]);
        let found =
            search(&[search_folder(Path::new("no such folder")), search_folder(&some)]).expect("it is there");
        assert_eq!(found.version.as_deref(), Some("1.31.1"));
        assert_eq!(found.path, some.join("libonnxruntime.so.1.31.1"));
        fs::remove_dir_all(some).expect("a folder can be removed");
    }

    #[test]
    fn a_library_that_is_too_old_is_told_with_what_is_needed() {
        let some = folder(&["libonnxruntime.1.16.3.dylib"]);
        let obstacle = search(&[search_folder(&some)]).expect_err("1.16 is too old");
        assert!(
            matches!(&obstacle, Obstacle::LibraryTooOld { found, needed, .. } if found == "1.16.3" && needed == "1.17"),
            "{obstacle}"
        );
        fs::remove_dir_all(some).expect("a folder can be removed");
    }

    #[test]
    fn where_it_is_nowhere_every_place_and_the_remedy_are_said() {
        let obstacle = search(&[search_folder(Path::new("no/such/folder"))]).expect_err("nothing is there");
        assert!(obstacle.to_string().contains("no/such/folder (a test)"), "{obstacle}");
        assert!(obstacle.remedy().to_string().contains("pip install onnxruntime"), "{}", obstacle.remedy());
        let obstacle = at(Path::new("no/such/file.so"), VARIABLE).expect_err("nothing is there");
        assert!(obstacle.to_string().contains("ORT_DYLIB_PATH names"), "{obstacle}");
    }

    #[test]
    fn a_python_package_is_looked_into_and_tells_the_version() {
        let prefix = folder(&[
            "lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so",
            "lib/python3.11/site-packages/onnxruntime-1.29.0.dist-info/METADATA",
        ]);
        let folders: Vec<SearchFolder> =
            packages(&prefix).iter().map(|folder| search_folder(folder)).collect();
        assert_eq!(search(&folders).expect("it is there").version.as_deref(), Some("1.29.0"));
        fs::remove_dir_all(prefix).expect("a folder can be removed");
    }

    #[test]
    fn a_device_without_its_provider_is_an_obstacle() {
        let some = folder(&["libonnxruntime.so.1.31.2"]);
        let library = search(&[search_folder(&some)]).expect("it is there");
        let obstacle = library.drives(DeviceKind::Cuda).expect_err("no provider lies there");
        assert_eq!(obstacle.code(), "provider_failed");
        assert!(obstacle.remedy().to_string().contains("onnxruntime-gpu"), "{}", obstacle.remedy());
        fs::remove_dir_all(some).expect("a folder can be removed");
    }
}
