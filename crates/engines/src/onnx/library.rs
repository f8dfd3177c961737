//! Where ONNX Runtime's library lies and which version it is, found by looking at files: nothing is loaded here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sconce_core::device::DeviceKind;
use sconce_core::obstacle::Obstacle;

/// The Python package that carries the library, and so its name for people.
const NAME: &str = "onnxruntime";
/// The variable that names the library's file.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// Its file.
    pub(super) path: PathBuf,
    /// What led to it.
    pub(super) by: String,
    /// Its version, where its name or its package tells.
    pub(super) version: Option<String>,
}

/// A folder to look in, and why.
struct Place {
    folder: PathBuf,
    by: &'static str,
}

/// Looks where the environment of this process says.
pub(super) fn find() -> Result<Library, Obstacle> {
    match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(file) => at(Path::new(&file), VARIABLE),
        None => search(&places()),
    }
}

/// The file that somebody named: no other will do.
pub(super) fn at(path: &Path, by: &str) -> Result<Library, Obstacle> {
    if !path.is_file() {
        let looked = vec![format!("`{}`, which {by} names", path.display())];
        return Err(Obstacle::LibraryMissing { library: NAME.to_owned(), looked });
    }
    checked(Library { path: path.to_owned(), by: by.to_owned(), version: version(path) })
}

/// The first place that has it; in one folder the newest.
fn search(places: &[Place]) -> Result<Library, Obstacle> {
    for place in places {
        let newest =
            libraries(&place.folder).into_iter().max_by_key(|path| numbers(version(path).as_deref()));
        if let Some(path) = newest {
            let version = version(&path);
            return checked(Library { path, by: place.by.to_owned(), version });
        }
    }
    let mut looked = vec![VARIABLE.to_owned()];
    looked.extend(places.iter().map(|place| format!("{} ({})", place.folder.display(), place.by)));
    Err(Obstacle::LibraryMissing { library: NAME.to_owned(), looked })
}

/// Refuses a library that says itself that it is too old; one that does not say is asked when it is loaded.
fn checked(library: Library) -> Result<Library, Obstacle> {
    let least = ort::MINOR_VERSION;
    match &library.version {
        Some(version) if numbers(Some(version)) < vec![1, least] => Err(Obstacle::LibraryTooOld {
            library: library.path.display().to_string(),
            found: version.clone(),
            needed: format!("1.{least}"),
        }),
        Some(_) | None => Ok(library),
    }
}

/// Every folder that may have the library, the nearest first.
fn places() -> Vec<Place> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places = Vec::new();
    if let Some(folder) = env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)) {
        places.push(Place { folder, by: "beside the program" });
    }
    for (name, by) in [("VIRTUAL_ENV", "VIRTUAL_ENV"), ("CONDA_PREFIX", "CONDA_PREFIX")] {
        if let Some(prefix) = variable(name) {
            places.extend(packages(&prefix).into_iter().map(|folder| Place { folder, by }));
            places.push(Place { folder: prefix.join("lib"), by });
        }
    }
    for name in ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"] {
        let paths = env::var_os(name).unwrap_or_default();
        let folders = env::split_paths(&paths).filter(|folder| folder.is_absolute());
        places.extend(folders.map(|folder| Place { folder, by: name }));
    }
    let system = [
        "/usr/local/lib",
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/opt/homebrew/lib",
    ];
    places.extend(system.map(|folder| Place { folder: folder.into(), by: "the system" }));
    let home = variable("HOME").map(|home| home.join(".local"));
    for prefix in home.into_iter().chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        places.extend(packages(&prefix).into_iter().map(|folder| Place { folder, by: "a Python package" }));
    }
    places
}

/// The folders of the package under a Python installation's `prefix`.
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

/// The library's files in `folder`, under any of its names.
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

/// The version in `libonnxruntime.so.1.31.1`, behind a link of that name, or in its Python package's folder.
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

fn numbers(version: Option<&str>) -> Vec<u32> {
    version.unwrap_or_default().split('.').map_while(|part| part.parse().ok()).collect()
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

impl Library {
    /// The version, or the words that it is not told.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().unwrap_or("of a version that its file does not tell")
    }

    /// What tells this file from another that takes its place.
    pub(super) fn identity(&self) -> String {
        let metadata = fs::metadata(&self.path).ok();
        let length = metadata.as_ref().map_or(0, fs::Metadata::len);
        let modified = metadata.and_then(|metadata| metadata.modified().ok());
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        format!("{length}-{}", modified.as_secs())
    }

    /// Whether the files that drive this kind of device lie beside it.
    pub(super) fn drives(&self, kind: DeviceKind) -> Result<(), Obstacle> {
        let failed = |provider: &str, says: String| {
            Err(Obstacle::ProviderFailed { provider: provider.to_owned(), says })
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
                let says = format!("`{}` does not lie beside `{}`", names[0], self.path.display());
                failed("CUDAExecutionProvider", says)
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

    fn place(folder: &Path) -> Place {
        Place { folder: folder.to_owned(), by: "a test" }
    }

    #[test]
    fn the_newest_of_a_folder_is_taken_and_its_name_tells_its_version() {
        let some = folder(&[
            "libonnxruntime.so.1.30.0",
            "libonnxruntime.so.1.31.1",
            "libonnxruntime_providers_shared.so",
        ]);
        let found = search(&[place(Path::new("no such folder")), place(&some)]).expect("it is there");
        assert_eq!(found.version.as_deref(), Some("1.31.1"));
        assert_eq!(found.path, some.join("libonnxruntime.so.1.31.1"));
        fs::remove_dir_all(some).expect("a folder can be removed");
    }

    #[test]
    fn a_library_that_is_too_old_is_told_with_what_is_needed() {
        let some = folder(&["libonnxruntime.1.16.3.dylib"]);
        let obstacle = search(&[place(&some)]).expect_err("1.16 is too old");
        assert!(
            matches!(&obstacle, Obstacle::LibraryTooOld { found, needed, .. } if found == "1.16.3" && needed == "1.17"),
            "{obstacle}"
        );
        fs::remove_dir_all(some).expect("a folder can be removed");
    }

    #[test]
    fn where_it_is_nowhere_every_place_and_the_remedy_are_said() {
        let obstacle = search(&[place(Path::new("no/such/folder"))]).expect_err("nothing is there");
        assert!(obstacle.to_string().contains("no/such/folder (a test)"), "{obstacle}");
        assert!(obstacle.remedy().contains("pip install onnxruntime"), "{}", obstacle.remedy());
        let obstacle = at(Path::new("no/such/file.so"), VARIABLE).expect_err("nothing is there");
        assert!(obstacle.to_string().contains("ORT_DYLIB_PATH names"), "{obstacle}");
    }

    #[test]
    fn a_python_package_is_looked_into_and_tells_the_version() {
        let prefix = folder(&[
            "lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so",
            "lib/python3.11/site-packages/onnxruntime-1.29.0.dist-info/METADATA",
        ]);
        let places: Vec<Place> = packages(&prefix).iter().map(|folder| place(folder)).collect();
        assert_eq!(search(&places).expect("it is there").version.as_deref(), Some("1.29.0"));
        fs::remove_dir_all(prefix).expect("a folder can be removed");
    }

    #[test]
    fn a_device_without_its_provider_is_an_obstacle() {
        let some = folder(&["libonnxruntime.so.1.31.2"]);
        let library = search(&[place(&some)]).expect("it is there");
        let obstacle = library.drives(DeviceKind::Cuda).expect_err("no provider lies there");
        assert_eq!(obstacle.code(), "provider_failed");
        assert!(obstacle.remedy().contains("onnxruntime-gpu"), "{}", obstacle.remedy());
        fs::remove_dir_all(some).expect("a folder can be removed");
    }
}
