//! Interpreters, and the clients' packages for them: made once under cargo's target directory, and kept while the lock files and
//! the interpreter are the same.
//!
//! Invariant: an environment is made under another name and renamed when it is whole, so one that is there is whole; what a
//! process that died left half-made is swept by the next one that makes something.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seconds that one step of an installation may take.
const STEP_S: &str = "600";
/// What the pinned packages need at least: Debian 12 has these.
const PYTHON_MIN: (u32, u32) = (3, 11);
const NODE_MIN: u32 = 18;

/// The suites and their lock files.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// A Python with the clients' packages.
pub fn python() -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = needed("the Python clients", &MADE, make_python)?;
    Some(made.join("bin/python"))
}

/// A folder in which Node finds the clients' packages.
pub struct Node(PathBuf);

/// See [`Node`].
pub fn node() -> Option<Node> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    needed("the Node client", &MADE, make_node).map(Node)
}

/// curl itself.
pub fn curl() -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let find = || {
        let version = output(Command::new("curl").arg("--version"));
        let version = version.map_err(|_| "needs curl (apt-get install curl)");
        version.map(|_| PathBuf::from("curl")).map_err(String::from)
    };
    needed("curl", &MADE, find)
}

impl Node {
    /// Runs a suite. It runs as a copy, since Node looks for packages beside a script; the copy goes with the second value.
    pub fn command(&self, script: &str) -> (Command, Copy) {
        static COPIES: AtomicUsize = AtomicUsize::new(0);
        let number = COPIES.fetch_add(1, Ordering::SeqCst);
        let copy = self.0.join(format!("run-{}-{number}", process::id()));
        fs::create_dir_all(&copy).expect("a folder for the suite");
        let copy = Copy(copy);
        for entry in fs::read_dir(folder()).expect("the suites") {
            let path = entry.expect("a suite").path();
            if path.extension().is_some_and(|end| end == "mjs") {
                let name = path.file_name().expect("a name");
                fs::copy(&path, copy.0.join(name)).expect("a copy of the suite");
            }
        }
        let mut command = Command::new("node");
        command.arg(copy.0.join(script));
        (command, copy)
    }
}

/// Files of one run, removed when dropped.
pub struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What was made, or `None` after one line that says why not. With NARWHAL_CLIENTS=all that fails the test.
fn needed(
    what: &str,
    made: &OnceLock<Result<PathBuf, String>>,
    make: impl FnOnce() -> Result<PathBuf, String>,
) -> Option<PathBuf> {
    let all = env::var_os("NARWHAL_CLIENTS").is_some_and(|value| value == "all");
    let made = made.get_or_init(|| {
        let made = make();
        if let Err(why) = &made
            && !all
        {
            // Not by `eprintln`, which is held back from those who run tests that pass.
            let _ = std::io::stderr().write_all(format!("skipped: {what}: {why}\n").as_bytes());
        }
        made
    });
    match made {
        Ok(made) => Some(made.clone()),
        Err(why) if all => panic!("{what}: {why}"),
        Err(_) => None,
    }
}

fn make_python() -> Result<PathBuf, String> {
    let (major, minor) = PYTHON_MIN;
    let probe = format!(
        "import ensurepip, sys, venv; print(sys.version, sys.base_prefix); \
         sys.exit(sys.version_info < ({major}, {minor}))"
    );
    let found = ["python3", "/usr/bin/python3"]
        .into_iter()
        .find_map(|name| {
            let version = output(Command::new(name).args(["-c", &probe])).ok()?;
            Some((name, version))
        });
    let (name, version) = found.ok_or_else(|| {
        format!(
            "needs Python from {major}.{minor} on and its venv (apt-get install python3 python3-venv)"
        )
    })?;
    let locked = folder().join("requirements.txt");
    let text = read(&locked)?;
    made("python", &[&version, &text], |place| {
        output(Command::new(name).args(["-m", "venv"]).arg(place))?;
        let mut pip = Command::new("timeout");
        pip.arg(STEP_S).arg(place.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input"]);
        pip.args(["--disable-pip-version-check", "--only-binary", ":all:"]);
        pip.args(["--retries", "2", "--timeout", "60"]);
        let done = output(pip.arg("--requirement").arg(&locked));
        done.map(drop).map_err(|why| registry("pip", &why))
    })
}

fn make_node() -> Result<PathBuf, String> {
    let needs = || format!("needs Node from {NODE_MIN} on (apt-get install nodejs npm)");
    let version = output(Command::new("node").arg("--version")).map_err(|_| needs())?;
    let major = version.trim().trim_start_matches('v').split('.').next();
    let major: u32 = major.and_then(|text| text.parse().ok()).unwrap_or(0);
    if major < NODE_MIN {
        return Err(format!("{}, not {}", needs(), version.trim()));
    }
    output(Command::new("npm").arg("--version"))
        .map_err(|_| "needs npm (apt-get install npm)".to_owned())?;
    let files = ["package.json", "package-lock.json"];
    let [wanted, locked] = files.map(|file| read(&folder().join(file)));
    let texts = [wanted?, locked?];
    made("node", &[&version, &texts[0], &texts[1]], |place| {
        fs::create_dir_all(place).map_err(|e| e.to_string())?;
        for (file, text) in files.iter().zip(&texts) {
            fs::write(place.join(file), text).map_err(|e| e.to_string())?;
        }
        let mut npm = Command::new("timeout");
        npm.args([STEP_S, "npm", "ci", "--no-audit", "--no-fund"]);
        npm.args([
            "--ignore-scripts",
            "--loglevel",
            "error",
            "--fetch-timeout",
            "60000",
        ]);
        let done = output(npm.current_dir(place));
        done.map(drop).map_err(|why| registry("npm", &why))
    })
}

/// The environment of this name and these contents; `make` fills the folder that it is given.
fn made(
    name: &str,
    contents: &[&str],
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let mut hash = DefaultHasher::new();
    contents.hash(&mut hash);
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let name = format!("{name}-{:016x}", hash.finish());
    let whole = all.join(&name);
    if whole.is_dir() {
        return Ok(whole);
    }
    fs::create_dir_all(&all).map_err(|e| e.to_string())?;
    sweep(&all);
    let half = all.join(format!("{name}.{}", process::id()));
    let outcome = make(&half).and_then(|()| match fs::rename(&half, &whole) {
        // Another process was faster.
        Err(e) if !whole.is_dir() => Err(e.to_string()),
        _ => Ok(()),
    });
    let _ = fs::remove_dir_all(&half);
    outcome.map(|()| whole)
}

/// Removes what processes that are gone left half-made: `NAME-HASH.PROCESS`.
fn sweep(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = Path::new(&name).extension();
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Why packages could not be installed.
fn registry(installer: &str, why: &str) -> String {
    format!("needs the network, with a package registry that {installer} can use: {why}")
}

/// What a command prints, or how it failed and the first that it says of that.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().display().to_string();
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("{program}: {e}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let errors = said
        .lines()
        .filter(|line| line.to_lowercase().contains("error"));
    let errors: Vec<&str> = errors.take(3).collect();
    Err(format!("{}: {}", done.status, errors.join("; ")))
}
