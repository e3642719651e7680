//! The fake CUDA driver (`tests/fake-cuda`), for tests that need a GPU.
//!
//! A process has one driver, and it is found once. So the body of each such test runs in a process of its own, which
//! loads the fake by its path first: whoever asks for `libcuda.so.1` then gets that one. Tests that need none never meet it.
//!
//! With `TRANSLOAD_TEST_GPU=1` the bodies of [`run_anywhere`] run on the driver and the GPU of this machine instead, and
//! tests that need the fake are told as not run. `cuda/check` does that.

use std::env;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::Library;
use tempfile::TempDir;

/// The variable that has the library's path, in the process that runs a test's body.
const LIBRARY: &str = "FAKE_CUDA_TEST_LIBRARY";

/// Returns whether tests run on the GPU of this machine.
fn with_gpu() -> bool {
    env::var_os("TRANSLOAD_TEST_GPU").is_some_and(|value| value == "1")
}

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

/// Runs the body of a test in a process with these variables, and with the fake driver.
pub fn run(test: &str, variables: &[(&str, &str)], body: fn(Fake)) {
    if with_gpu() {
        eprintln!("NOT RUN: {test} needs the fake driver");
        return;
    }
    if env::var_os(LIBRARY).is_some() {
        body(Fake::load());
        std::process::exit(0);
    }
    let status = status(test, &library(), variables, || ());
    assert!(status.success(), "{test}: {status}");
}

/// Runs the body of a test in a process with these variables, and with a driver: the fake one, or this machine's where
/// tests run on its GPU.
pub fn run_anywhere(test: &str, variables: &[(&str, &str)], body: fn(Driver)) {
    if env::var_os(LIBRARY).is_some() {
        body(Driver::load());
        std::process::exit(0);
    }
    let library = if with_gpu() { "libcuda.so.1".into() } else { library() };
    let status = status(test, &library, variables, || ());
    assert!(status.success(), "{test}: {status}");
}

/// The driver of this process.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Library>);

impl Driver {
    /// Loads the library that this process was started with.
    pub fn load() -> Self {
        let path = env::var_os(LIBRARY).expect("a process that was started by `run` or `status`");
        // SAFETY: loading the fake runs nothing, and a driver is made to be loaded.
        Self(Arc::new(unsafe { Library::new(path) }.unwrap()))
    }

    /// Returns the fake, if it is that.
    pub fn fake(&self) -> Option<Fake> {
        self.has("fake_cuda_live").then(|| Fake(self.clone()))
    }

    /// Returns whether it has such a function.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: nobody calls it by this type.
        unsafe { self.0.get::<*const c_void>(name) }.is_ok()
    }

    /// Returns a function of the driver, to be compared.
    pub fn address(&self, name: &str) -> *const c_void {
        // SAFETY: nobody calls it by this type.
        unsafe { self.function(name) }
    }

    /// Returns a function of the driver, as an engine would call it.
    ///
    /// # Safety
    /// It is of that type.
    pub unsafe fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller knows the type.
        *unsafe { self.0.get::<T>(name) }.unwrap()
    }
}

/// The fake driver of this process, with the functions that control it.
#[derive(Debug)]
pub struct Fake(Driver);

impl Deref for Fake {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.0
    }
}

impl Fake {
    /// Loads the library that this process was started with.
    pub fn load() -> Self {
        Self(Driver::load())
    }

    /// Makes the nth next call of a function fail with this code. With 0, no call fails.
    pub fn fail(&self, name: &str, nth: u32, code: u32) {
        // SAFETY: the fake has it like that.
        let fail: extern "C" fn(*const c_char, u32, u32) = unsafe { self.function("fake_cuda_fail") };
        fail(CString::new(name).unwrap().as_ptr(), nth, code);
    }

    /// Makes all calls of a function fail with this code, until [`fail`](Self::fail) is called with 0.
    pub fn fail_always(&self, name: &str, code: u32) {
        // SAFETY: the fake has it like that.
        let fail: extern "C" fn(*const c_char, u32) = unsafe { self.function("fake_cuda_fail_always") };
        fail(CString::new(name).unwrap().as_ptr(), code);
    }

    /// Makes the next call of a function never return.
    pub fn hang(&self, name: &str) {
        self.fail(name, 1, u32::MAX);
    }

    /// Keeps streams from going on, as [`hold`](Self::hold) does, from the next call of a function on, or the next
    /// `registered copy`.
    pub fn hold_at(&self, name: &str) {
        self.fail(name, 1, u32::MAX - 1);
    }

    /// Returns the functions of the driver that this crate's device room calls, as it lists them itself.
    pub fn functions() -> Vec<&'static str> {
        let source = include_str!("../../crates/cuda/src/driver.rs");
        let (_, list) = source.split_once("\nfunctions! {").unwrap();
        let (list, _) = list.split_once("\n}").unwrap();
        let lines = list.lines().filter_map(|line| line.trim().strip_prefix("fn "));
        lines.map(|line| line.split_once('(').unwrap().0).collect()
    }

    /// Returns how often a function was called, or an entry of a module launched.
    pub fn calls(&self, name: &str) -> u64 {
        // SAFETY: the fake has it like that.
        let calls: extern "C" fn(*const c_char) -> u64 = unsafe { self.function("fake_cuda_calls") };
        calls(CString::new(name).unwrap().as_ptr())
    }

    /// Returns how many allocations, streams, events, modules and the like there are.
    pub fn live(&self) -> u64 {
        // SAFETY: the fake has it like that.
        let live: extern "C" fn() -> u64 = unsafe { self.function("fake_cuda_live") };
        live()
    }

    /// Returns how many bytes copies have carried to or from registered memory of the host.
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

    /// Keeps the streams of one device from going on to their next operations, or lets them.
    pub fn hold_device(&self, device: u32, on: bool) {
        // SAFETY: the fake has it like that.
        let hold: extern "C" fn(u32, u32) = unsafe { self.function("fake_cuda_hold_device") };
        hold(device, on.into());
    }

    /// Makes a stream report that it is being captured into a graph, or that it is not.
    pub fn capture(&self, stream: u64, on: bool) {
        // SAFETY: the fake has it like that.
        let capture: extern "C" fn(u64, u32) = unsafe { self.function("fake_cuda_capture") };
        capture(stream, on.into());
    }

    /// Keeps one stream from going on to its next operation, or lets it.
    pub fn hold_stream(&self, stream: usize, on: bool) {
        // SAFETY: the fake has it like that.
        let hold: extern "C" fn(usize, u32) = unsafe { self.function("fake_cuda_hold_stream") };
        hold(stream, on.into());
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

/// Copies a library without those symbols. Their names are overwritten, so nobody finds them.
pub fn without(library: &Path, symbols: &[&str]) -> (TempDir, PathBuf) {
    let mut bytes = fs::read(library).unwrap();
    for symbol in symbols {
        let name = format!("\0{symbol}\0").into_bytes();
        let windows = bytes.windows(name.len()).enumerate();
        let places: Vec<_> = windows.filter(|(_, w)| *w == name).map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "{symbol} is not there");
        for at in places {
            bytes[at + 1] = b'-';
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so.1");
    fs::write(&file, bytes).unwrap();
    (folder, file)
}

/// Returns a library of the driver's name without anything in it; `None` where there is no C compiler.
pub fn empty() -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so.1");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o"]);
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

/// The engine's own kernel, and the one of Transload.
const SPIN: &str = include_str!("../../cuda/spin.ptx");
const WALK: &str = include_str!("../../cuda/walk.ptx");

const PINNED: usize = 16 << 20;

/// An engine: another user of the first GPU in this process, with a stream of its own. Its work runs in the order of that
/// stream.
#[derive(Debug)]
pub struct Engine<'a> {
    driver: &'a Driver,
    context: Handle,
    stream: Handle,
    spin: Handle,
    /// The part of its pinned memory that is still free.
    pinned: Mutex<&'static mut [u8]>,
}

// SAFETY: the handles are numbers that any thread may use.
unsafe impl Send for Engine<'_> {}
// SAFETY: as above.
unsafe impl Sync for Engine<'_> {}

/// Calls a function of the driver that has to succeed; its arguments have the types of the driver's header.
macro_rules! driver {
    ($driver:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the caller gives the types.
        let function: unsafe extern "C" fn($($type),*) -> u32 = unsafe { $driver.function(stringify!($name)) };
        // SAFETY: what is pointed to is there.
        assert_eq!(unsafe { function($($argument),*) }, 0, stringify!($name));
    }};
}

impl<'a> Engine<'a> {
    /// Makes its stream, in the context that everybody uses.
    pub fn new(driver: &'a Driver) -> Self {
        let null = ptr::null_mut;
        let mut engine = Self { driver, context: null(), stream: null(), spin: null(), pinned: Mutex::default() };
        driver!(driver, cuInit(0 => u32));
        driver!(driver, cuDevicePrimaryCtxRetain(&mut engine.context => *mut Handle, 0 => i32));
        engine.enter();
        driver!(driver, cuStreamCreate(&mut engine.stream => *mut Handle, 1 => u32));
        engine.spin = engine.kernel(SPIN, c"spin");
        // At once: a driver may wait for all that runs before it pins memory.
        let mut start = null();
        driver!(driver, cuMemHostAlloc(&mut start => *mut Handle, PINNED => usize, 0 => u32));
        // SAFETY: that much was just allocated, and nobody gives it back.
        let pinned = unsafe { std::slice::from_raw_parts_mut(start.cast(), PINNED) };
        engine.pinned = Mutex::new(pinned);
        engine
    }

    fn enter(&self) {
        driver!(self.driver, cuCtxSetCurrent(self.context => Handle));
    }

    /// Returns its stream, in the form in which engines pass it.
    pub fn stream(&self) -> u64 {
        self.stream.expose_provenance() as u64
    }

    /// Keeps its stream busy for this many microseconds.
    pub fn spin(&self, micros: u32) {
        self.enter();
        let mut arguments: [Handle; 1] = [(&raw const micros).cast_mut().cast()];
        driver!(self.driver, cuLaunchKernel(
            self.spin => Handle, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
            self.stream => Handle, arguments.as_mut_ptr() => *mut Handle, ptr::null_mut() => *mut Handle));
    }

    /// Writes to device memory.
    pub fn write(&self, to: u64, bytes: &[u8]) {
        let pinned = self.pinned(bytes.len());
        pinned.copy_from_slice(bytes);
        driver!(self.driver, cuMemcpyHtoDAsync_v2(
            to => u64, pinned.as_ptr().cast() => *const c_void, bytes.len() => usize, self.stream => Handle));
    }

    /// Reads device memory. The bytes are there once the stream has reached this read.
    pub fn read(&self, from: u64, len: usize) -> &'static [u8] {
        let pinned = self.pinned(len);
        driver!(self.driver, cuMemcpyDtoHAsync_v2(
            pinned.as_mut_ptr().cast() => *mut c_void, from => u64, len => usize, self.stream => Handle));
        pinned
    }

    /// Returns managed memory.
    pub fn managed(&self, len: usize) -> u64 {
        self.enter();
        let mut start = 0;
        driver!(self.driver, cuMemAllocManaged(&mut start => *mut u64, len => usize, 1 => u32));
        start
    }

    /// Runs a kernel that reads an invalid address, 20 ms later, like an engine with a bug.
    pub fn stray(&self) {
        self.enter();
        // It is loaded before the time begins.
        let walk = self.kernel(WALK, c"walk_16");
        self.spin(20_000);
        // One unit of a place that lies nowhere: `count` of `struct launch` is 1, the rest is 0.
        let mut launch = [0u64; 64];
        launch[6] = 1 << 32;
        let mut arguments: [Handle; 1] = [launch.as_mut_ptr().cast()];
        driver!(self.driver, cuLaunchKernel(
            walk => Handle, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
            self.stream => Handle, arguments.as_mut_ptr() => *mut Handle, ptr::null_mut() => *mut Handle));
    }

    /// Captures what `submit` submits as a graph, in the strictest mode, and launches that.
    pub fn graph(&self, submit: impl FnOnce()) {
        const GLOBAL: u32 = 0;
        self.enter();
        let (mut graph, mut launchable): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        driver!(self.driver, cuStreamBeginCapture_v2(self.stream => Handle, GLOBAL => u32));
        submit();
        driver!(self.driver, cuStreamEndCapture(self.stream => Handle, &mut graph => *mut Handle));
        driver!(self.driver, cuGraphInstantiateWithFlags(
            &mut launchable => *mut Handle, graph => Handle, 0 => u64));
        driver!(self.driver, cuGraphLaunch(launchable => Handle, self.stream => Handle));
        self.wait();
        driver!(self.driver, cuGraphExecDestroy(launchable => Handle));
        driver!(self.driver, cuGraphDestroy(graph => Handle));
    }

    /// Waits until all submitted work is done.
    pub fn wait(&self) {
        self.enter();
        driver!(self.driver, cuStreamSynchronize(self.stream => Handle));
    }

    /// Returns a kernel of these sources.
    fn kernel(&self, image: &str, name: &CStr) -> Handle {
        let (mut module, mut kernel): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        let image = CString::new(image).unwrap();
        driver!(self.driver, cuModuleLoadData(&mut module => *mut Handle, image.as_ptr() => *const c_char));
        driver!(self.driver, cuModuleGetFunction(
            &mut kernel => *mut Handle, module => Handle, name.as_ptr() => *const c_char));
        kernel
    }

    /// Returns pinned memory that has no other user.
    fn pinned(&self, len: usize) -> &'static mut [u8] {
        self.enter();
        let mut all = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let (taken, left) = std::mem::take(&mut *all).split_at_mut(len);
        *all = left;
        taken
    }
}
