//! The page in a real browser. With `TRANSLOAD_PICTURES=FOLDER` the pictures of the guide are written there.

use std::io::Write;

use serde_json::json;
use transload_sidecar::internal::observe::{Outcome, Path, ServerState};
use transload_sidecar::{Host, Role, ServerUrl, Target};

use crate::browser::Browser;
use crate::made_up::{ago, busy, nothing, server, start};

const WIDTHS: [u32; 3] = [360, 768, 1280];
const ROWS: &str = "document.querySelectorAll('#rows .row').length";
const LIVE: &str = "document.body.dataset.live";
/// The pictures of the guide: width, scheme, file.
const PICTURES: [(u32, &str, &str); 3] =
    [(1280, "light", "sidecar.png"), (768, "dark", "sidecar-dark.png"), (360, "dark", "sidecar-phone.png")];
/// A script that finds texts with a contrast below 4.5 and stages with one below 3 (WCAG 2.2, AA).
const FAINT: &str = include_str!("faint.js");
const NO_SCROLL: &str = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_is_shown_at_each_width_and_in_light_and_dark() {
    let Some(browser) = Browser::start().await else {
        return;
    };
    let mut world = busy(30);
    let prefill = world.servers[0].url.clone();
    world.servers[4].misfits = vec![prefill.clone()];
    let (address, world, task) = start(world).await;
    let own = format!("http://{address}/");
    browser.look(1280, 900, "light").await;
    browser.open(&own).await;
    browser.until(&format!("{LIVE} === 'on' && document.querySelector('#transfers li')")).await;
    assert_eq!(browser.script(&format!("return {ROWS}")).await, json!(30 + world.going.len()));
    assert_eq!(browser.script("return document.querySelectorAll('#servers li').length").await, json!(5));
    let misfits = format!("misfit: kept apart from {prefill}");
    let shown = "return document.getElementById('servers').innerText";
    let shown = browser.script(shown).await;
    assert!(shown.as_str().is_some_and(|text| text.contains(&misfits)), "{shown}");
    browser.script("document.querySelectorAll('#rows .row')[8].click()").await;
    let chosen = browser.script("return document.getElementById('legend').innerText").await;
    assert!(chosen.as_str().is_some_and(|text| text.contains(" ms")), "{chosen}");
    let mut colours = Vec::new();
    for scheme in ["light", "dark"] {
        for width in WIDTHS {
            browser.look(width, 900, scheme).await;
            assert_eq!(browser.script(NO_SCROLL).await, json!(0), "{width} px, {scheme}");
            let faint = browser.script(FAINT).await;
            assert_eq!(faint, json!([]), "{width} px, {scheme}");
            if let Some((.., name)) = PICTURES.iter().find(|one| (one.0, one.1) == (width, scheme)) {
                save(&browser, name).await;
            }
        }
        colours.push(browser.script("return getComputedStyle(document.body).backgroundColor").await);
    }
    assert_ne!(colours[0], colours[1]);
    let requested = browser.requested().await;
    assert!(requested.iter().any(|url| url.ends_with("/status")), "{requested:?}");
    for url in requested {
        // Requests within the browser itself are allowed.
        let inside = url.starts_with("data:") || url.starts_with("chrome");
        assert!(inside || url.starts_with(&own), "{url}");
    }
    assert_eq!(browser.log("browser").await, Vec::<serde_json::Value>::new());
    // On a narrow screen servers come second, and the head says how many of them are down.
    browser.look(360, 900, "light").await;
    let second = "const top = id => document.getElementById(id).getBoundingClientRect().top; \
                  return top('h-requests') < top('h-servers') && top('h-servers') < top('h-latency')";
    assert_eq!(browser.script(second).await, json!(true));
    let down = "return document.getElementById('down').innerText";
    assert_eq!(browser.script(down).await, json!("1 of 5 down"));
    let of = "return document.querySelector('#latency th').innerText";
    let of = browser.script(of).await;
    assert!(of.as_str().is_some_and(|of| of.starts_with("Prefill of ")), "{of}");
    let left = "return [...document.querySelectorAll('#rows .bad')].filter(one => one.innerText.includes('client left')).length";
    assert_eq!(browser.script(left).await, json!(0));
    let axis = "return document.getElementById('axis').innerText";
    let first_token = browser.script(axis).await;
    browser.script("document.getElementById('whole').click()").await;
    assert_ne!(browser.script(axis).await, first_token);
    // If the server is gone, the page says so and keeps showing what it last got.
    task.abort();
    browser.until(&format!("{LIVE} === 'stale'")).await;
    assert_eq!(browser.script(&format!("return {ROWS}")).await, json!(30 + world.going.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_reaches_each_requests_figures() {
    let Some(browser) = Browser::start().await else {
        return;
    };
    let (address, world, _task) = start(busy(200)).await;
    browser.open(&format!("http://{address}/")).await;
    browser.until(&format!("{ROWS} === 40")).await;
    browser.script("document.getElementById('pause').click()").await;
    browser.until(&format!("{LIVE} === 'paused'")).await;
    browser.script("document.getElementById('more').click()").await;
    let rows = 200 + world.going.len();
    assert_eq!(browser.script(&format!("return {ROWS}")).await, json!(rows));
    browser.script("document.getElementById('whole').focus()").await;
    browser.key("Tab").await;
    let shown = "document.getElementById('one').firstChild.textContent";
    let id = |at: usize| format!("{shown} === [...latest.in_flight, ...latest.recent][{at}].id");
    browser.until(&id(0)).await;
    browser.key("ArrowDown").await;
    browser.key("ArrowDown").await;
    browser.until(&id(2)).await;
    // The table is a single stop for the Tab key, however many rows it has.
    let stops = "return document.querySelectorAll('#rows [tabindex=\"0\"]').length";
    assert_eq!(browser.script(stops).await, json!(1));
    let unnamed = "return [...document.querySelectorAll('button')].filter(one => !one.hidden && !(one.ariaLabel ?? one.textContent)).length";
    assert_eq!(browser.script(unnamed).await, json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_yet_is_said_in_words() {
    let Some(browser) = Browser::start().await else {
        return;
    };
    let (address, _world, _task) = start(nothing()).await;
    browser.look(360, 900, "light").await;
    browser.open(&format!("http://{address}/")).await;
    browser.until(&format!("{LIVE} === 'on'")).await;
    assert_eq!(browser.script(&format!("return {ROWS}")).await, json!(0));
    assert_eq!(browser.script("return document.getElementById('none').hidden").await, json!(false));
    assert_eq!(browser.script(NO_SCROLL).await, json!(0));
    assert_eq!(browser.log("browser").await, Vec::<serde_json::Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_and_long_texts_stay_text_and_in_their_place() {
    let Some(browser) = Browser::start().await else {
        return;
    };
    const HOSTILE: &str = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script>";
    let mut world = nothing();
    let name = |host: String| ServerUrl { tls: true, target: Target { host: Host::Name(host.into()), port: 8100 } };
    for number in 0..64 {
        let role = if number % 2 == 0 { Role::Prefill } else { Role::Decode };
        let mut one = server(role, "host:8100", ServerState::Down, [number, u64::MAX, u64::MAX]);
        one.url = name(if number == 0 { HOSTILE.into() } else { format!("{}.example", "a".repeat(240)) });
        world.servers.push(one);
    }
    let record = world.observer.begin(&HOSTILE.repeat(8), ago(5000));
    record.path(Path::Fallback);
    record.prefill_asked(&world.servers[0].url, ago(4000));
    record.tokens(Some(u64::MAX), Some(u64::MAX));
    record.finish(Outcome::UpstreamFailed, ago(1000));
    let (address, _world, _task) = start(world).await;
    browser.look(360, 900, "light").await;
    browser.open(&format!("http://{address}/")).await;
    browser.until(&format!("{ROWS} === 1")).await;
    browser
        .script("document.getElementById('more-servers').click(); document.querySelector('#rows .row').click()")
        .await;
    assert_eq!(browser.script("return document.querySelectorAll('#servers li').length").await, json!(64));
    assert_eq!(browser.script("return document.querySelectorAll('img, script:not([nonce])').length").await, json!(0));
    assert_eq!(browser.script("return window.hit ?? null").await, json!(null));
    let shown = browser.script("return document.body.innerText").await;
    assert!(shown.as_str().is_some_and(|text| text.contains(HOSTILE)), "{shown}");
    for width in WIDTHS {
        browser.look(width, 900, "dark").await;
        assert_eq!(browser.script(NO_SCROLL).await, json!(0), "{width} px");
    }
    assert_eq!(browser.log("browser").await, Vec::<serde_json::Value>::new());
}

/// Saves a picture in the folder that `TRANSLOAD_PICTURES` names, if it is set.
async fn save(browser: &Browser, name: &str) {
    use base64::Engine;
    let Some(folder) = std::env::var_os("TRANSLOAD_PICTURES") else {
        return;
    };
    let picture = browser.picture().await;
    let picture = base64::engine::general_purpose::STANDARD.decode(picture).expect("base64");
    let path = std::path::Path::new(&folder).join(name);
    let mut file = std::fs::File::create(path).expect("the folder exists");
    file.write_all(&picture).expect("a picture");
}
