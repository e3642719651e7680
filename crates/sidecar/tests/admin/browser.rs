//! A browser under test control, over the W3C WebDriver protocol.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use transload_test_servers::ask;

const PATIENCE: Duration = Duration::from_secs(30);

const CHROMIUM: &str = "/usr/bin/chromium";
const CHROMEDRIVER: &str = "/usr/bin/chromedriver";

fn driver() -> Option<(Child, u16)> {
    let mut driver = Command::new(CHROMEDRIVER)
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver runs");
    let lines = BufReader::new(driver.stdout.take().expect("its output")).lines();
    let port = lines.map_while(Result::ok).find_map(|line| {
        let port = line.strip_suffix('.')?.split_once("successfully on port ")?.1;
        port.parse().ok()
    });
    if port.is_none() {
        let _ = driver.kill();
        let _ = driver.wait();
    }
    Some((driver, port?))
}

/// A browser with one window, which is closed when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser. If none is installed, says so and returns `None`.
    pub(crate) async fn start() -> Option<Self> {
        for file in [CHROMIUM, CHROMEDRIVER] {
            if !Path::new(file).exists() {
                eprintln!("NOT RUN: there is no {file}; install chromium and chromium-driver");
                return None;
            }
        }
        // chromedriver needs a port that is free for both IP versions, and ends otherwise.
        let Some((driver, port)) = (0..20).find_map(|_| driver()) else {
            panic!("chromedriver finds no port");
        };
        let profile = tempfile::tempdir().expect("a folder");
        let mut browser = Self {
            driver,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            session: String::new(),
            _profile: profile,
        };
        let profile = browser._profile.path().display();
        let answer = browser
            .call(
                "/session",
                &json!({"capabilities": {"alwaysMatch": {
                    "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                    "goog:chromeOptions": {"binary": CHROMIUM, "args": [
                        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                        "--disable-background-networking", format!("--user-data-dir={profile}"),
                    ]},
                }}}),
            )
            .await;
        browser.session = answer["sessionId"].as_str().expect("a session").into();
        Some(browser)
    }

    async fn call(&self, path: &str, body: &Value) -> Value {
        let mut body = ask(self.address, "POST", path, &[], &body.to_string()).await.json();
        let value = body["value"].take();
        assert!(value.get("error").is_none(), "{path}: {value}");
        value
    }

    async fn post(&self, command: &str, body: Value) -> Value {
        let path = format!("/session/{}/{command}", self.session);
        self.call(&path, &body).await
    }

    pub(crate) async fn open(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    pub(crate) async fn script(&self, script: &str) -> Value {
        self.post("execute/sync", json!({"script": script, "args": []})).await
    }

    pub(crate) async fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.script(&format!("return !!({expression})")).await != json!(true) {
            assert!(Instant::now() < deadline, "never true: {expression}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    /// Sets the window's width and height, and `light` or `dark`.
    pub(crate) async fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let hidden = json!({"hidden": true});
        self.devtools("Emulation.setScrollbarsHidden", hidden).await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", scheme).await;
    }

    pub(crate) async fn key(&self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            let code = match key {
                "Tab" => 9,
                "ArrowDown" => 40,
                "Enter" => 13,
                other => panic!("{other}?"),
            };
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.devtools("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Returns the new entries of a log: `browser` is the console, `performance` has the requests.
    pub(crate) async fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.post("se/log", json!({ "type": kind })).await;
        entries.as_array().expect("a list").clone()
    }

    /// Returns the URLs of all requests since the last call.
    pub(crate) async fn requested(&self) -> Vec<String> {
        let entries = self.log("performance").await;
        let messages = entries.iter().map(|entry| {
            let text = entry["message"].as_str().expect("a message");
            serde_json::from_str::<Value>(text).expect("JSON")["message"].take()
        });
        messages
            .filter(|message| message["method"] == "Network.requestWillBeSent")
            .map(|message| message["params"]["request"]["url"].as_str().expect("a URL").into())
            .collect()
    }

    /// Takes a picture of the window, as PNG in base64.
    pub(crate) async fn picture(&self) -> String {
        let picture = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await;
        picture["data"].as_str().expect("a picture").into()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // When asked to shut down, the driver closes its browser. If it were killed, the browser would stay.
        let asked = std::net::TcpStream::connect_timeout(&self.address, PATIENCE).and_then(|mut stream| {
            use std::io::{Read, Write};
            stream.set_read_timeout(Some(PATIENCE))?;
            let path = format!("/session/{}", self.session);
            write!(stream, "DELETE {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)?;
            stream.read(&mut [0; 256])
        });
        if let Err(error) = asked {
            eprintln!("the browser may be left: {error}");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
