//! The fake CUDA driver (`tests/fake-cuda`), for tests that need a GPU.
//!
//! A process has one driver, and it is found once. So the body of each such test runs in a process of its own, which
//! loads the fake by its path first: whoever asks for a `libcuda.so` then gets that one. Tests that need none never meet it.

use std::env;
use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::ptr;

use libloading::Library;
use tempfile::TempDir;

/// The variable that has the library's path, in the process that runs a test's body.
const LIBRARY: &str = "FAKE_CUDA_TEST_LIBRARY";

/// Runs the body of a test in a process with these variables, and returns how that ended. `test` is the name of
/// the test that calls this.
pub fn status(test: &str, library: &Path, variables: &[(&str, &str)], body: fn()) -> ExitStatus {
    if env::var_os(LIBRARY).is_some() {
        body();
        std::process::exit(0);
    }
    Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(LIBRARY, library)
        .envs(variables.iter().copied())
        .status()
        .unwrap()
}

/// Runs the body of a test in a process with these variables, and with a driver.
pub fn run(test: &str, variables: &[(&str, &str)], body: fn(Fake)) {
    if env::var_os(LIBRARY).is_some() {
        body(Fake::load());
        std::process::exit(0);
    }
    let status = status(test, &library(), variables, || ());
    assert!(status.success(), "{test}: {status}");
}

/// The fake driver of this process.
#[derive(Debug)]
pub struct Fake(Library);

impl Fake {
    /// Loads the library that this process was started with.
    pub fn load() -> Self {
        let path = env::var_os(LIBRARY).expect("a process that was started by `run` or `status`");
        // SAFETY: loading the fake runs nothing.
        Self(unsafe { Library::new(path) }.unwrap())
    }

    /// A function of the driver, to be compared.
    pub fn address(&self, name: &str) -> *const c_void {
        // SAFETY: nobody calls it by this type.
        unsafe { self.function(name) }
    }

    /// Has the nth next call of a function fail with this code; with 0, none that was told to.
    pub fn fail(&self, name: &str, nth: u32, code: u32) {
        // SAFETY: the fake has it like that.
        let fail: extern "C" fn(*const c_char, u32, u32) =
            unsafe { self.function("fake_cuda_fail") };
        fail(CString::new(name).unwrap().as_ptr(), nth, code);
    }

    /// How often a function was called.
    pub fn calls(&self, name: &str) -> u64 {
        // SAFETY: the fake has it like that.
        let calls: extern "C" fn(*const c_char) -> u64 =
            unsafe { self.function("fake_cuda_calls") };
        calls(CString::new(name).unwrap().as_ptr())
    }

    /// How many allocations, streams, events, modules and the like there are.
    pub fn live(&self) -> u64 {
        // SAFETY: the fake has it like that.
        let live: extern "C" fn() -> u64 = unsafe { self.function("fake_cuda_live") };
        live()
    }

    /// How many bytes copies have carried to or from registered memory of the host.
    pub fn registered_bytes(&self) -> u64 {
        // SAFETY: the fake has it like that.
        let bytes: extern "C" fn() -> u64 = unsafe { self.function("fake_cuda_registered_bytes") };
        bytes()
    }

    /// Keeps streams from going on to their next operations, or lets them.
    pub fn hold(&self, on: bool) {
        // SAFETY: the fake has it like that.
        let hold: extern "C" fn(u32) = unsafe { self.function("fake_cuda_hold") };
        hold(on.into());
    }

    /// Keeps one stream from going on to its next operation, or lets it.
    pub fn hold_stream(&self, stream: usize, on: bool) {
        // SAFETY: the fake has it like that.
        let hold: extern "C" fn(usize, u32) = unsafe { self.function("fake_cuda_hold_stream") };
        hold(stream, on.into());
    }

    /// A function of the driver, as an engine would call it.
    ///
    /// # Safety
    /// It is of that type.
    pub unsafe fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller knows the type.
        *unsafe { self.0.get::<T>(name) }.unwrap()
    }
}

/// Builds the library once in a run of the tests, and returns its file.
pub fn library() -> PathBuf {
    // With cargo-nextest each test is a process, and cargo takes a quarter of a second to find that nothing is to do.
    let Ok(run) = env::var("NEXTEST_RUN_ID") else {
        return build();
    };
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = folder.join("fake-cuda-built");
    let said = fs::read_to_string(&built).unwrap_or_default();
    if let Some(path) = said.strip_prefix(&format!("{run} ")) {
        return path.into();
    }
    let path = build();
    // Renamed into its place, so that no test reads a part of it.
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    write!(file, "{run} {}", path.display()).unwrap();
    file.persist(built).unwrap();
    path
}

fn build() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "-p", "transload-fake-cuda"])
        .args(["--message-format", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo build:\n{said}");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| {
            let files = message.get("filenames")?.as_array()?.clone();
            files.into_iter().find_map(|name| {
                let path = PathBuf::from(name.as_str()?);
                (path.file_name()? == "libfake_cuda.so").then_some(path)
            })
        })
        .next()
        .expect("cargo build made no libfake_cuda.so")
}

/// A copy of a library without those symbols: their names are overwritten, so no search for them comes to anything.
pub fn without(library: &Path, symbols: &[&str]) -> (TempDir, PathBuf) {
    let mut bytes = fs::read(library).unwrap();
    for symbol in symbols {
        let name = format!("\0{symbol}\0").into_bytes();
        let windows = bytes.windows(name.len()).enumerate();
        let places: Vec<_> = windows
            .filter(|(_, w)| *w == name)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "{symbol} is not there");
        for at in places {
            bytes[at + 1] = b'-';
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so");
    fs::write(&file, bytes).unwrap();
    (folder, file)
}

/// A library of the driver's name without anything in it; `None` where there is no C compiler.
pub fn empty() -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so");
    let mut cc = Command::new("cc");
    cc.args([
        "-shared",
        "-Wl,-soname,libcuda.so",
        "-x",
        "c",
        "/dev/null",
        "-o",
    ]);
    match cc.arg(&file).status() {
        Ok(compiled) => assert!(compiled.success()),
        Err(error) => {
            eprintln!("NOT RUN: cc: {error}; install a C compiler");
            return None;
        }
    }
    Some((folder, file))
}

type Handle = *mut c_void;

/// An engine: somebody else in the process who uses the first GPU, on a stream of their own. Everything waits its turn
/// there.
#[derive(Debug)]
pub struct Engine<'a> {
    fake: &'a Fake,
    context: Handle,
    stream: Handle,
    spin: Handle,
}

// SAFETY: the handles are numbers that any thread may use.
unsafe impl Send for Engine<'_> {}
// SAFETY: as above.
unsafe impl Sync for Engine<'_> {}

/// Calls a function of the driver that has to succeed; its arguments have the types of the driver's header.
macro_rules! driver {
    ($fake:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the caller gives the types.
        let function: unsafe extern "C" fn($($type),*) -> u32 = unsafe { $fake.function(stringify!($name)) };
        // SAFETY: what is pointed to is there.
        assert_eq!(unsafe { function($($argument),*) }, 0, stringify!($name));
    }};
}

impl<'a> Engine<'a> {
    /// Makes its stream, in the context that everybody uses.
    pub fn new(fake: &'a Fake) -> Self {
        let null = ptr::null_mut;
        let mut engine = Self {
            fake,
            context: null(),
            stream: null(),
            spin: null(),
        };
        let mut module = null();
        let image = c".visible .entry walk_16()".as_ptr();
        driver!(fake, cuInit(0 => u32));
        driver!(fake, cuDevicePrimaryCtxRetain(&mut engine.context => *mut Handle, 0 => i32));
        engine.enter();
        driver!(fake, cuStreamCreate(&mut engine.stream => *mut Handle, 1 => u32));
        driver!(fake, cuModuleLoadData(&mut module => *mut Handle, image => *const c_char));
        let spin = c"spin".as_ptr();
        driver!(fake, cuModuleGetFunction(
            &mut engine.spin => *mut Handle, module => Handle, spin => *const c_char));
        engine
    }

    fn enter(&self) {
        driver!(self.fake, cuCtxSetCurrent(self.context => Handle));
    }

    /// Its stream, as engines hand it over.
    pub fn stream(&self) -> u64 {
        self.stream.expose_provenance() as u64
    }

    /// Is busy for so many microseconds.
    pub fn spin(&self, micros: u32) {
        self.enter();
        let mut arguments: [Handle; 1] = [(&raw const micros).cast_mut().cast()];
        driver!(self.fake, cuLaunchKernel(
            self.spin => Handle, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
            self.stream => Handle, arguments.as_mut_ptr() => *mut Handle, ptr::null_mut() => *mut Handle));
    }

    /// Writes to device memory.
    pub fn write(&self, to: u64, bytes: &[u8]) {
        let pinned = self.pinned(bytes.len());
        pinned.copy_from_slice(bytes);
        driver!(self.fake, cuMemcpyHtoDAsync_v2(
            to => u64, pinned.as_ptr().cast() => *const c_void, bytes.len() => usize, self.stream => Handle));
    }

    /// Reads device memory. The bytes are there once the stream has come to it.
    pub fn read(&self, from: u64, len: usize) -> &'static [u8] {
        let pinned = self.pinned(len);
        driver!(self.fake, cuMemcpyDtoHAsync_v2(
            pinned.as_mut_ptr().cast() => *mut c_void, from => u64, len => usize, self.stream => Handle));
        pinned
    }

    /// Managed memory.
    pub fn managed(&self, len: usize) -> u64 {
        self.enter();
        let mut start = 0;
        driver!(self.fake, cuMemAllocManaged(&mut start => *mut u64, len => usize, 1 => u32));
        start
    }

    /// Pinned memory that nobody gives back.
    fn pinned(&self, len: usize) -> &'static mut [u8] {
        self.enter();
        let mut start: Handle = ptr::null_mut();
        driver!(self.fake, cuMemHostAlloc(&mut start => *mut Handle, len => usize, 0 => u32));
        // SAFETY: that much was just allocated, and is zeros.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }
    }
}
