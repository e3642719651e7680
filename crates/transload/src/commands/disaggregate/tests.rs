//! Tests of the settings that result from arguments, environments and configurations.

use std::fs;

use clap::Parser;
use transload_sidecar::settings::Settings;

use crate::cli::Cli;
use crate::commands::Command;
use crate::failure::{Failure, chain};

/// Returns the settings and the options ignored, as `main` would have them.
pub(super) fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Settings, Vec<String>), String> {
    let variable = |name: &str| {
        let known = environment.iter().find(|(known, _)| *known == name);
        known.map(|(_, value)| (*value).to_owned())
    };
    let cli = Cli::try_parse_from([&["transload"], arguments].concat());
    let read = match cli.map_err(|error| error.to_string())?.command {
        Command::Announce(args) => Err(args.announcement().expect_err("a fault")),
        Command::Sidecar(args) => args.settings(&variable),
        Command::Proxy(args) => args.settings(&variable).map(|settings| (settings, Vec::new())),
        other => panic!("{other:?}"),
    };
    read.map_err(|failure| match failure {
        Failure::Input(report) => {
            let help = report.help().map(|help| help.to_string());
            format!("{}\n{}", chain(report.as_ref()), help.unwrap_or_default())
        }
        other => panic!("{other:?}"),
    })
}

/// Each field with its value, on a line: `limits.body=1024`. Names of types are left out.
fn fields(settings: &Settings) -> Vec<String> {
    let (mut path, mut fields) = (Vec::new(), Vec::new());
    for line in format!("{settings:#?}").lines() {
        let line = line.trim().trim_end_matches(',');
        let (name, value) = match line.split_once(": ") {
            Some((name, value)) => (Some(name), value),
            None => (None, line),
        };
        if matches!(value, "}" | ")" | "]") {
            path.pop();
        } else if value.ends_with(['{', '(', '[']) {
            path.push(name);
        } else {
            let names = path.iter().copied().chain([name]).flatten();
            fields.push(format!("{}={value}", names.collect::<Vec<_>>().join(".")));
        }
    }
    fields
}

/// Returns the fields that are otherwise than with `default`.
fn differences(settings: &Settings, default: &Settings) -> Vec<String> {
    let mut known = fields(default);
    let mut fields = fields(settings);
    fields.retain(|field| match known.iter().position(|k| k == field) {
        Some(at) => {
            known.swap_remove(at);
            false
        }
        None => true,
    });
    fields.sort();
    fields
}

/// A row of the table: a command, its arguments, the environment, the configuration's text, and the resulting
/// differences.
type Row = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

fn check(command: &[&str], rows: &[Row]) {
    let (default, _) = read(command, &[]).expect("the defaults");
    for (arguments, environment, file, expected) in rows {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("configuration.yaml");
        let path = path.to_str().expect("a path of text");
        let mut all = [command, arguments].concat();
        if !file.is_empty() {
            fs::write(path, file).expect("a file");
            all.extend(["--configuration-file", path]);
        }
        let (settings, _) = read(&all, environment).unwrap_or_else(|error| panic!("{all:?}: {error}"));
        let expected: Vec<_> = expected.iter().map(|field| (*field).to_owned()).collect();
        assert_eq!(differences(&settings, &default), expected, "{all:?} {environment:?} {file}");
    }
}

#[test]
fn the_defaults_of_the_sidecar_are_those_of_llm_d() {
    let (settings, ignored) = read(&["sidecar"], &[]).expect("the defaults");
    assert_eq!(ignored, Vec::<String>::new());
    insta::assert_snapshot!(fields(&settings).join("\n"));
}

#[test]
fn the_defaults_of_the_proxy() {
    let (settings, _) = read(&["proxy", "--decode", "http://d:1"], &[]).expect("the defaults");
    insta::assert_snapshot!(fields(&settings).join("\n"));
}

#[test]
#[rustfmt::skip]
fn flags_of_the_sidecar() {
    check(&["sidecar"], &[
        (&[], &[], "", &[]),
        (&["--port", "9000"], &[], "", &["listen=[::]:9000"]),
        (&["--port=9000"], &[], "", &["listen=[::]:9000"]),
        (&["--port=0"], &[], "", &["listen=[::]:0"]),
        (&["--port=9000", "--port=9001"], &[], "", &["listen=[::]:9001"]),
        (&["--vllm-port=8200"], &[], "", &["mode.decode.target.port=8200"]),
        (&["--model-server-port=8200"], &[], "", &["mode.decode.target.port=8200"]),
        (&["--model-server-port=1", "--vllm-port=2"], &[], "", &["mode.decode.target.port=2"]),
        (&["--kv-connector=nixlv2"], &[], "", &[]),
        (&["--kv-connector", "shared-storage"], &[], "", &["connector=SharedStorage"]),
        (&["--connector=sglang"], &[], "", &["connector=Sglang"]),
        (&["--kv-connector="], &[], "", &[]),
        (&["--data-parallel-size=8"], &[], "", &["mode.ranks=8"]),
        (&["--host=127.0.0.1"], &[], "", &["listen=127.0.0.1:8000"]),
        (&["--host=::1", "--port=81"], &[], "", &["listen=[::1]:81"]),
        (&[], &[], "host: localhost\n", &["listen=127.0.0.1:8000"]),
        (&["--data-parallel-size=536", "--port=65000"], &[], "", &["listen=[::]:65000", "mode.ranks=536"]),
        (&["--secure-proxy=false"], &[], "", &["serving_tls=None"]),
        (&["--secure-proxy", "false"], &[], "", &["serving_tls=None"]),
        (&["--secure-proxy=0"], &[], "", &["serving_tls=None"]),
        (&["--secure-proxy=F"], &[], "", &["serving_tls=None"]),
        (&["--secure-proxy"], &[], "", &[]),
        (&["--secure-proxy", "--port=9000"], &[], "", &["listen=[::]:9000"]),
        (&["--secure-proxy=false", "--secure-proxy=True"], &[], "", &[]),
        (&["--cert-path=/tls"], &[], "", &["serving_tls.folder=\"/tls\""]),
        (&["--cert-path=/tls", "--secure-proxy=false"], &[], "", &["serving_tls=None"]),
        (&["--cert-path="], &[], "", &[]),
        (&["--enable-tls=prefiller"], &[], "", &["mode.prefill_tls=true"]),
        (&["--enable-tls=decoder"], &[], "", &["mode.decode.tls=true"]),
        (&["--enable-tls=prefiller,decoder"], &[], "", &["mode.decode.tls=true", "mode.prefill_tls=true"]),
        (&["--enable-tls=prefiller", "--enable-tls", "decoder"], &[], "", &["mode.decode.tls=true", "mode.prefill_tls=true"]),
        (&["--enable-tls=encoder"], &[], "", &[]),
        (&["--enable-tls="], &[], "", &[]),
        (&["--prefiller-use-tls"], &[], "", &["mode.prefill_tls=true"]),
        (&["--decoder-use-tls=true"], &[], "", &["mode.decode.tls=true"]),
        (&["--decoder-use-tls=false"], &[], "", &[]),
        (&["--prefiller-use-tls=false", "--enable-tls=prefiller"], &[], "", &["mode.prefill_tls=true"]),
        (&["--tls-insecure-skip-verify=prefiller"], &[], "", &["upstream_tls.skip_verify_prefill=true"]),
        (&["--tls-insecure-skip-verify=decoder, prefiller"], &[], "",
            &["upstream_tls.skip_verify_decode=true", "upstream_tls.skip_verify_prefill=true"]),
        (&["--prefiller-tls-insecure-skip-verify"], &[], "", &["upstream_tls.skip_verify_prefill=true"]),
        (&["--decoder-tls-insecure-skip-verify=1"], &[], "", &["upstream_tls.skip_verify_decode=true"]),
        (&["--enable-prefiller-sampling"], &[], "", &["mode.sample=true"]),
        (&["--enable-prefiller-sampling", "true"], &[], "", &["mode.sample=true"]),
        (&["--enable-prefiller-sampling=false"], &[], "", &[]),
        (&["--enable-ssrf-protection=false"], &[], "", &[]),
        (&["--decode-chunk-size=256"], &[], "", &["decode_chunk=256"]),
        (&["--decode-chunk-size=0"], &[], "", &[]),
        (&["--overlap"], &[], "", &["overlap=true"]),
        (&[], &[], "overlap: true\n", &["overlap=true"]),
        (&["--max-idle-conns-per-host=2048"], &[], "", &["limits.idle_connections=2048"]),
        (&["--upstream-ca=/ca.pem"], &[], "", &["upstream_tls.ca=\"/ca.pem\""]),
        (&["--client-cert=/c.pem", "--client-key=/k.pem"], &[], "",
            &["upstream_tls.client=\"/c.pem\"", "upstream_tls.client=\"/k.pem\""]),
        (&["--client-ca=/ca.pem"], &[], "", &["serving_tls.client_ca=\"/ca.pem\""]),
        (&["--configuration=", "--configuration-file="], &[], "", &[]),
        (&["--verify-remote-host=false"], &[], "", &["mode.verify_remote_host=false"]),
        (&["--trust-client-params"], &[], "", &["trust_client_params=true"]),
        (&["--allow-prefill=p.example:8000"], &[], "", &["mode.allow.hosts=\"p.example\"", "mode.allow.port=8000"]),
        (&["--allow-prefill=10.0.0.0/8,p", "--allow-prefill=q:1", "--enable-ssrf-protection", "--verify-remote-host"],
            &[], "", &["mode.allow.hosts=\"p\"", "mode.allow.hosts=\"q\"", "mode.allow.hosts=10.0.0.0", "mode.allow.hosts=8",
            "mode.allow.port=1", "mode.allow.port=None", "mode.allow.port=None"]),
        (&[], &[], "allow-prefill: [p]\nenable-ssrf-protection: true\n", &["mode.allow.hosts=\"p\"", "mode.allow.port=None"]),
        (&["--prefill-failure=error"], &[], "", &["prefill_failure=Error"]),
        (&["--prefill-max-retries=2", "--prefill-retry-backoff=1s"], &[], "", &["prefill_backoff=1s", "prefill_retries=2"]),
        (&["--prefill-timeout=1500ms"], &[], "", &["limits.prefill_timeout=1.5s"]),
        (&["--prefill-timeout=10m"], &[], "", &["limits.prefill_timeout=600s"]),
        (&["--connect-timeout=1.5s"], &[], "", &["limits.connect_timeout=1.5s"]),
        (&["--body-limit=1GiB"], &[], "", &["limits.body=1073741824", "limits.body_memory=2147483648"]),
        (&["--body-limit=16KiB"], &[], "", &["limits.body=16384"]),
        (&["--max-requests-per-client=7"], &[], "", &["limits.requests_per_client=7"]),
        (&["--admin=off"], &[], "", &["admin=None"]),
        (&["--admin=:9500"], &[], "", &["admin=[::]:9500"]),
        (&["--admin=localhost:0"], &[], "", &["admin=127.0.0.1:0"]),
        (&["--admin", "[::1]:9400"], &[], "", &["admin=[::1]:9400"]),
        (&["--drain=0"], &[], "", &["drain=0ns"]),
        (&["--drain=2m"], &[], "", &["drain=120s"]),
    ]);
}

#[test]
#[rustfmt::skip]
fn flags_go_before_a_configuration_and_that_before_the_environment() {
    const SAMPLING: &str = "ENABLE_PREFILLER_SAMPLING";
    check(&["sidecar"], &[
        (&[], &[(SAMPLING, "true")], "", &["mode.sample=true"]),
        (&[], &[(SAMPLING, "1")], "", &["mode.sample=true"]),
        (&[], &[(SAMPLING, "true")], "enable-prefiller-sampling: false", &[]),
        (&[], &[(SAMPLING, "false")], "enable-prefiller-sampling: true", &["mode.sample=true"]),
        (&["--enable-prefiller-sampling=false"], &[(SAMPLING, "true")], "", &[]),
        (&["--enable-prefiller-sampling=false"], &[], "enable-prefiller-sampling: true", &[]),
        (&[], &[("POD_IP", "10.0.0.7")], "", &["mode.pod_ip=\"10.0.0.7\""]),
        (&[], &[("SGLANG_BOOTSTRAP_PORT", "9000")], "", &["bootstrap_port=9000"]),
        (&[], &[("INFERENCE_POOL", "default/pool")], "", &[]),
        (&[], &[], "port: 8085\nvllm-port: 8203\n", &["listen=[::]:8085", "mode.decode.target.port=8203"]),
        (&["--port=1"], &[], "port: 8085\nvllm-port: 8203\n", &["listen=[::]:1", "mode.decode.target.port=8203"]),
        (&["--port=8000"], &[], "port: 8085", &[]),
        (&["--vllm-port=5"], &[], "model-server-port: 8203", &["mode.decode.target.port=5"]),
        (&["--model-server-port=5"], &[], "vllm-port: 8203", &["mode.decode.target.port=5"]),
        (&["--configuration={port: 8085, vllm-port: 8203}"], &[], "",
            &["listen=[::]:8085", "mode.decode.target.port=8203"]),
        (&["--configuration", "{\"port\": 8085, \"enable-tls\": [\"prefiller\", \"decoder\"]}"], &[], "",
            &["listen=[::]:8085", "mode.decode.tls=true", "mode.prefill_tls=true"]),
        (&[], &[], "enable-tls: [prefiller]\n", &["mode.prefill_tls=true"]),
        (&[], &[], "enable-tls:\n  - prefiller\n  - decoder\n", &["mode.decode.tls=true", "mode.prefill_tls=true"]),
        (&[], &[], "enable-tls: prefiller,decoder\n", &["mode.decode.tls=true", "mode.prefill_tls=true"]),
        // A list of a flag takes the place of the configuration's.
        (&["--enable-tls=decoder"], &[], "enable-tls: [prefiller]\n", &["mode.decode.tls=true"]),
        (&["--enable-tls=decoder"], &[], "prefiller-use-tls: true\n", &["mode.decode.tls=true"]),
        (&["--prefiller-use-tls"], &[], "enable-tls: [decoder]\n", &["mode.decode.tls=true", "mode.prefill_tls=true"]),
        (&["--prefiller-use-tls=false"], &[], "prefiller-use-tls: true\n", &[]),
        (&[], &[], "prefiller-use-tls: true\ndecoder-tls-insecure-skip-verify: true",
            &["mode.prefill_tls=true", "upstream_tls.skip_verify_decode=true"]),
        (&["--tls-insecure-skip-verify=prefiller"], &[], "decoder-tls-insecure-skip-verify: true",
            &["upstream_tls.skip_verify_prefill=true"]),
        (&[], &[], "secure-proxy: false\nkv-connector: sglang\n", &["connector=Sglang", "serving_tls=None"]),
        (&[], &[], "connector: shared-storage", &["connector=SharedStorage"]),
        (&[], &[], "body-limit: 1MiB\nprefill-timeout: 5s\nadmin: off\n",
            &["admin=None", "limits.body=1048576", "limits.prefill_timeout=5s"]),
        // What a template leaves of a value that nobody set.
        (&[], &[], "cert-path: \"\"\nkv-connector:\nenable-tls: []\nport: 8085\n", &["listen=[::]:8085"]),
        (&[], &[], "# nothing\n", &[]),
        (&[], &[], "{}", &[]),
        (&[], &[], "zap-log-level: debug\npool-group: group\ninference-pool: pool\nenable-p2p-pull: true\np2p-connector-port: 7\n", &[]),
        (&["--ec-connector="], &[], "ec-connector: \"\"\ntracing: false", &[]),
        (&["--metrics-port=9090"], &[], "", &["admin=[::]:9090"]),
        (&["--max-connections=7", "--body-memory=128MiB"], &[], "", &["limits.body_memory=134217728", "limits.connections=7"]),
        (&[], &[], "port: '8085'\nsecure-proxy: no\n", &["listen=[::]:8085", "serving_tls=None"]),
    ]);
}

#[test]
#[rustfmt::skip]
fn flags_of_the_proxy() {
    const KEY: &str = "OPENAI_API_KEY";
    check(&["proxy", "--decode=http://d:1"], &[
        (&["--prefill=https://p:2"], &[], "",
            &["mode.prefill.target.host=\"p\"", "mode.prefill.target.port=2", "mode.prefill.tls=true"]),
        (&["--prefill=http://p:2/,http://[::1]:3", "--prefill=http://10.0.0.1:4"], &[], "", &[
            "mode.prefill.target.host=\"p\"", "mode.prefill.target.host=10.0.0.1", "mode.prefill.target.host=::1",
            "mode.prefill.target.port=2", "mode.prefill.target.port=3", "mode.prefill.target.port=4",
            "mode.prefill.tls=false", "mode.prefill.tls=false", "mode.prefill.tls=false",
        ]),
        (&["--listen=0.0.0.0:80"], &[], "", &["listen=0.0.0.0:80"]),
        (&["--host=0.0.0.0", "--port=8192"], &[], "", &["listen=0.0.0.0:8192"]),
        (&["--host", "localhost"], &[], "", &[]),
        (&["--host", "::"], &[], "", &["listen=[::]:8000"]),
        (&["--policy=least-loaded", "--min-prompt=1k"], &[], "", &["mode.min_prompt=1000", "mode.policy=LeastLoaded"]),
        (&["--policy=prefix"], &[], "", &["mode.policy=Prefix"]),
        (&["--discover=dns:prefill:80"], &[], "", &["mode.discover.host=\"prefill\"", "mode.discover.port=80", "mode.discover=Decode"]),
        (&["--cert-path=/tls"], &[], "", &["serving_tls.client_ca=None", "serving_tls.folder=\"/tls\""]),
        (&["--cert-path=/tls", "--client-ca=/ca.pem"], &[], "",
            &["serving_tls.client_ca=\"/ca.pem\"", "serving_tls.folder=\"/tls\""]),
        (&[], &[(KEY, "secret")], "", &["mode.api_key=Secret"]),
        (&["--prefiller-hosts", "a", "b", "--prefiller-ports", "2", "3"], &[], "", &[
            "mode.prefill.target.host=\"a\"", "mode.prefill.target.host=\"b\"",
            "mode.prefill.target.port=2", "mode.prefill.target.port=3",
            "mode.prefill.tls=false", "mode.prefill.tls=false",
        ]),
        (&["--prefiller-host=a"], &[], "",
            &["mode.prefill.target.host=\"a\"", "mode.prefill.target.port=8100", "mode.prefill.tls=false"]),
        (&["--prefiller-port=2"], &[], "",
            &["mode.prefill.target.host=\"localhost\"", "mode.prefill.target.port=2", "mode.prefill.tls=false"]),
        (&["--decoder-hosts=::1", "--decoder-ports=2"], &[], "",
            &["mode.decode.target.host=::1", "mode.decode.target.port=2", "mode.decode.tls=false"]),
        (&[], &[], "policy: prefix\nprefill: [http://p:2]\nprefiller-hosts: []\n", &["mode.policy=Prefix",
            "mode.prefill.target.host=\"p\"", "mode.prefill.target.port=2", "mode.prefill.tls=false"]),
    ]);
}

#[test]
fn what_means_nothing_here_is_named() {
    let arguments = ["sidecar", "--zap-devel", "--zap-log-level=5", "--configuration={pool-group: x}"];
    let (_, ignored) = read(&arguments, &[("INFERENCE_POOL", "a/b")]).expect("they are accepted");
    assert_eq!(ignored, ["inference-pool", "pool-group", "zap-devel", "zap-log-level"]);
}

#[test]
fn faults_say_what_would_be_right() {
    let mut said = String::new();
    type Line = (&'static [&'static str], &'static [(&'static str, &'static str)]);
    let lines: &[Line] = &[
        (&["sidecar", "--port=http"], &[]),
        (&["proxy", "--decode=http://d:1"], &[("OPENAI_API_KEY", "sk-1\n")]),
        (&["sidecar", "--port=70000"], &[]),
        (&["sidecar", "--vllm-port=0"], &[]),
        (&["sidecar", "--prot=1"], &[]),
        (&["sidecar", "--kv-connector=mooncake"], &[]),
        (&["sidecar", "--ec-connector=ec-nixl"], &[]),
        (&["sidecar", "--configuration={ec-connector: ec-nixl}"], &[]),
        (&["sidecar", "--max-connections=0"], &[]),
        (&["sidecar", "--body-memory=1MiB"], &[]),
        (&["sidecar", "--admin=:1", "--metrics-port=2"], &[]),
        (&["sidecar", "--secure-proxy=maybe"], &[]),
        (&["sidecar", "--secure-proxy", "no"], &[]),
        (&["sidecar", "--enable-tls=prefill"], &[]),
        (&["sidecar", "--prefill-timeout=300"], &[]),
        (&["sidecar", "--prefill-timeout=0s"], &[]),
        (&["sidecar", "--prefill-timeout=5w"], &[]),
        (&["sidecar", "--drain=99999m"], &[]),
        (&["sidecar", "--body-limit=64"], &[]),
        (&["sidecar", "--body-limit=64MeB"], &[]),
        (&["sidecar", "--admin=9400"], &[]),
        (&["sidecar", "--admin=[::1:9400"], &[]),
        (&["sidecar", "--admin=host.example:9400"], &[]),
        (&["sidecar", "--max-requests-per-client=0"], &[]),
        (&["sidecar", "--data-parallel-size=0"], &[]),
        (&["sidecar", "--host=0.0.0.0:8000"], &[]),
        (&["sidecar", "--data-parallel-size=3", "--port=65534"], &[]),
        (&["sidecar", "--data-parallel-size=3", "--vllm-port=65534"], &[]),
        (&["sidecar", "--enable-ssrf-protection"], &[]),
        (&["sidecar", "--client-cert=/c.pem"], &[]),
        (&["sidecar", "--client-key=/k.pem"], &[]),
        (&["sidecar", "--secure-proxy=false", "--client-ca=/ca.pem"], &[]),
        (&["sidecar"], &[("ENABLE_PREFILLER_SAMPLING", "yes")]),
        (&["sidecar"], &[("SGLANG_BOOTSTRAP_PORT", "65536")]),
        (&["sidecar", "--configuration={}", "--configuration-file=/x"], &[]),
        (&["sidecar", "--configuration-file=/nonexistent/x.yaml"], &[]),
        (&["sidecar", "--configuration={prot: 1}"], &[]),
        (&["sidecar", "--configuration={vllm-prot: 1}"], &[]),
        (&["sidecar", "--configuration={unheard-of: 1}"], &[]),
        (&["sidecar", "--configuration={help: true}"], &[]),
        (&["sidecar", "--configuration={verbose: 1}"], &[]),
        (&["sidecar", "--configuration={port=1: 1}"], &[]),
        (&["sidecar", "--configuration={port: many}"], &[]),
        (&["sidecar", "--configuration={port: [1, 2]}"], &[]),
        (&["sidecar", "--configuration={port: {a: 1}}"], &[]),
        (&["sidecar", "--configuration={port: 1, port: 2}"], &[]),
        (&["sidecar", "--configuration={vllm-port: 1, model-server-port: 2}"], &[]),
        (&["sidecar", "--configuration={configuration-file: x}"], &[]),
        (&["sidecar", "--configuration=[1, 2]"], &[]),
        (&["sidecar", "--configuration=port"], &[]),
        (&["sidecar", "--configuration={port: 1"], &[]),
        (&["sidecar", "positional"], &[]),
        (&["proxy", "--prefill=http://p:1"], &[]),
        (&["proxy", "--decode=d:1"], &[]),
        (&["proxy", "--decode=http://d:"], &[]),
        (&["proxy", "--decode=http://d:0"], &[]),
        (&["proxy", "--decode=http://user@d:1"], &[]),
        (&["proxy", "--decode=http://d:1/v1"], &[]),
        (&["proxy", "--decode=http://d:1", "--decode=http://d:1/"], &[]),
        (&["proxy", "--decode=http://d:1", "--policy=fastest"], &[]),
        (&["proxy", "--decode=http://d:1", "--listen=x"], &[]),
        (&["proxy", "--decode=http://d:1", "--listen=:1", "--port=2"], &[]),
        (&["proxy", "--decode=http://d:1", "--client-ca=/ca.pem"], &[]),
        (&["proxy", "--decode=http://d:1", "--min-prompt=many"], &[]),
        (&["proxy", "--decoder-hosts", "a", "b", "--decoder-ports", "1"], &[]),
        (&["proxy", "--decoder-hosts", "http://a", "--decoder-ports", "1"], &[]),
        (&["proxy", "--decode=http://d:1", "--vllm-port=1"], &[]),
        (&["proxy", "--decode=http://d:1", "positional"], &[]),
        (&["proxy", "--discover=consul://a"], &[]),
        (&["proxy", "--discover=file:"], &[]),
        (&["proxy", "--discover=dns:decode"], &[]),
        (&["proxy", "--discover=etcd://user:password@a:2379/b"], &[]),
        (&["announce", "--etcd=etcd://a:2379", "--role=decode", "--url=http://a:1"], &[]),
        (&["announce", "--etcd=etcd://a/b", "--role=both", "--url=http://a:1"], &[]),
        (&["announce", "--etcd=etcd://a/b", "--role=decode", "--url=a:1"], &[]),
        (&["announce", "--etcd=etcd://a/b", "--role=decode", "--url=http://a:1", "--client-key=/k"], &[]),
        (&["announce", "--etcd=etcd://a/b", "--role=decode"], &[]),
        (&["sidecar", "--allow-prefill=http://a"], &[]),
        (&["sidecar", "--allow-prefill=10.0.0.1/8"], &[]),
        (&["sidecar", "--allow-prefill="], &[]),
        (&["sidecar", "--allow-prefill=,"], &[]),
        (&["sidecar", "--configuration={allow-prefill: []}"], &[]),
        (&["sidecar", "--configuration={allow-prefill: [a, 'b:0']}"], &[]),
    ];
    for (arguments, environment) in lines {
        let error = read(arguments, environment).map(|(settings, _)| settings).expect_err("a fault");
        // Usage is the same everywhere.
        let told: Vec<_> = error
            .lines()
            .take_while(|line| !line.starts_with("Usage:"))
            .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
            .collect();
        said += &format!("$ {}", arguments.join(" "));
        for (name, value) in *environment {
            said += &format!(" [{name}={value}]");
        }
        said += &format!("\n{}\n\n", told.join("\n"));
    }
    insta::assert_snapshot!(said);
}

#[test]
fn helps() {
    for command in ["sidecar", "proxy", "announce"] {
        let help = Cli::try_parse_from(["transload", command, "--help"]).expect_err("the help");
        insta::assert_snapshot!(format!("help_{command}"), help.to_string());
    }
}
