use super::*;

fn form(parts: &[(&str, &str)]) -> String {
    let parts = parts.iter().map(|(head, content)| format!("--b0\r\n{head}\r\n\r\n{content}\r\n"));
    parts.collect::<String>() + "--b0--\r\n"
}

fn named(name: &str, content: &str) -> String {
    let head = format!("Content-Disposition: form-data; name=\"{name}\"");
    form(&[(&head, content)])
}

fn read(body: &[u8], pieces: usize) -> Result<(), Fault> {
    let mut form = Multipart::new(b"multipart/form-data; boundary=b0")?;
    for piece in body.chunks(pieces) {
        form.feed(piece)?;
    }
    form.finish()
}

fn verdict(body: &str) -> Result<(), Fault> {
    let whole = read(body.as_bytes(), body.len().max(1));
    for pieces in 1..body.len().min(200) {
        assert_eq!(read(body.as_bytes(), pieces), whole, "{body:?} in {pieces} B");
    }
    whole
}

#[test]
fn what_is_a_clients_passes() {
    let long = "x".repeat(20_000);
    for body in [
        String::new(),
        "--b0--".to_owned(),
        "\r\n--b0--\r\n".to_owned(),
        named("model", "m"),
        named("vllm_xargs", r#"{"session_id": "kv_transfer_params", "a": [1]}"#),
        named("vllm_xargs", ""),
        named("vllm_xargs", "3"),
        named("prompt", "{\"kv_transfer_params\": 1}\r\n--b1\r\n--b\r\n\r--b\n-"),
        named("timestamp_granularities[]", "word"),
        named("file", &format!("{long}a--b0\0--b0--")),
        named("file", ""),
        form(&[
            (
                "Content-Disposition: form-data; name=file; filename=\"C:\\a;\\\".wav\"; filename*=UTF-8''a\r\nContent-Type: audio/wav",
                "RIFF",
            ),
            ("content-disposition:form-data;name=\"kv_transfer\"", "1"),
        ]),
    ] {
        verdict(&body).unwrap_or_else(|fault| panic!("{body:?}: {fault}"));
    }
}

#[test]
fn what_is_not_and_what_others_may_read_so_is_refused() {
    let disposition = |rest: &str| form(&[(&format!("Content-Disposition: form-data; {rest}"), "1")]);
    let audio = "Content-Disposition: form-data; name=\"file\"; filename=\"a\"";
    for body in [
        named("kv_transfer_params", "1"),
        named("vllm_xargs[kv_transfer_params]", "1"),
        named("sampling_params.extra_args.bootstrap_host", "1"),
        named("vllm_xargs", r#"{"a": 1, "kv\u005ftransfer_params": "x"}"#),
        named("vllm_xargs", r#"{"a": NaN, "kv_transfer_params": "x"}"#),
        named("vllm_xargs", "{\"a\": 1} \0"),
        named("sampling_params", r#"{"extra_args": {"bootstrap_room": 1}}"#),
        named("sampling_params", r#"{"extra_args": {"bootstrap_room": 1}, "extra_args": {}}"#),
        form(&[(audio, "x"), ("Content-Disposition: form-data; name=vllm_xargs", r#"{"kv_transfer_params":1}"#)]),
        disposition("name=kv_transfer_params"),
        disposition("NAME = \"kv_transfer_params\""),
        disposition("name=\"a\"; name=\"kv_transfer_params\""),
        disposition("filename=\"x;name=kv_transfer_params\"; name=\"a\""),
        disposition("filename=\"\\\"; name=\"kv_transfer_params"),
        disposition("name*=utf-8''kv%5Ftransfer_params"),
        disposition("name*0=\"kv_\"; name*1=\"transfer_params\""),
        disposition("name=\"kv\\_transfer_params\""),
        disposition("name=\"a\"b"),
        disposition("name=\"kv_transfer_params;b\""),
        disposition("filename=\"a\""),
        form(&[("Content-Type: text/plain", "1")]),
        form(&[(&format!("{audio}\r\n{audio}"), "1")]),
        form(&[(&format!("X: 1\r\n {audio}"), "1")]),
        form(&[(&format!("{audio}\nContent-Disposition : form-data; name=a"), "1")]),
        format!("preamble\r\n{}", named("a", "1")),
        format!("{}--b0\r\n", named("a", "1")),
        named("a", "1").replace("--b0--\r\n", ""),
        named("a", "1\n--b0\r\nContent-Disposition: form-data; name=\"kv_transfer_params\"\r\n\r\n1"),
        named("a", "1\r\n--b0 \r\nContent-Disposition: form-data; name=\"kv_transfer_params\"\r\n\r\n1"),
        named("a", "").replace("\r\n\r\n\r\n", "\r\n\r\n"),
        form(&[(&format!("X: {}\r\n{audio}", "x".repeat(MOST_HEAD)), "1")]),
    ] {
        assert!(verdict(&body).is_err(), "{body:?} passes");
    }
    let kinds =
        ["", "; boundary=", "; boundary=a; boundary=b", "; boundary*=utf-8''b0", "; boundary=b0; charset=utf-7"];
    for kind in kinds {
        let kind = format!("multipart/form-data{kind}");
        assert!(Multipart::new(kind.as_bytes()).is_err(), "{kind:?} is read");
    }
    let kind = b"multipart/form-data; charset=\"UTF-8\"; boundary=\"b 0\"";
    assert_eq!(Multipart::new(kind).map(|form| form.delimiter), Ok(b"--b 0".to_vec()));
}

#[test]
fn forms_in_a_line_are_read_too() {
    for text in ["", "a=1&b", "vllm_xargs=%7B%22a%22%3A1%7D", "vllm_xargs", "a=kv_transfer_params%", "q=%7b"] {
        assert_eq!(urlencoded(text.as_bytes()), Ok(()), "{text:?}");
    }
    for text in [
        "kv_transfer_params=1",
        "a=1&kv%5Ftransfer_params",
        "a=1;bootstrap_host=x",
        "vllm_xargs%5Bkv_transfer_params%5D=1",
        "vllm_xargs=%7B%22kv_transfer_params%22:1%7D&vllm_xargs=1",
        "vllm_xargs={%22kv_transfer_params%22:+1",
        "{\"a\":\"&vllm_xargs=%7B%22kv_transfer_params%22%3A1%7D&\"}",
        "vllm_xargs=;{\"kv_transfer_params\":1}",
    ] {
        assert!(urlencoded(text.as_bytes()).is_err(), "{text:?} passes");
    }
}
