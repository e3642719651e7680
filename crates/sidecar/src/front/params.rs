//! The parameters that clients may not set, and where they may stand.

use bytes::Bytes;

use crate::exchange::Trouble;
use crate::exchange::request::CLIENT_PARAMS;
use crate::json::{Edit, NotAnObject, Object};

/// Returns the text of a body without the parameters that clients may not set. If there are none, the result shares the
/// body's memory.
pub(super) fn without_params(object: &Object) -> Result<Bytes, Trouble> {
    let mut edit = removed(object);
    for (key, rest) in INSIDE {
        if let Some(inner) = contained(object, key)? {
            edit = match cleaned(&inner, rest)? {
                Some(text) => edit.set(key, text),
                None => edit,
            };
        }
    }
    Ok(edit.finish())
}

/// The members in which vLLM also accepts parameters, in addition to the body itself.
const INSIDE: [(&str, &[&str]); 2] = [("vllm_xargs", &[]), ("sampling_params", &["extra_args"])];

fn removed(object: &Object) -> Edit<'_> {
    let has = |key: &&&str| object.get(key).is_some();
    let params = CLIENT_PARAMS.iter().filter(has);
    params.fold(object.edit(), |edit, key| edit.remove(key))
}

/// Removes parameters from the object at this path within an object. Returns the new text of the outer object, or
/// `None` if there were none.
fn cleaned(object: &Object, path: &[&'static str]) -> Result<Option<String>, Trouble> {
    let edit = match path.split_first() {
        None => removed(object),
        Some((key, rest)) => {
            let Some(inner) = contained(object, key)? else {
                return Ok(None);
            };
            match cleaned(&inner, rest)? {
                Some(text) => object.edit().set(key, text),
                None => return Ok(None),
            }
        }
    };
    let text = edit.finish();
    let is_same = text.as_ptr() == object.text().as_ptr();
    Ok((!is_same).then(|| String::from_utf8_lossy(&text).into_owned()))
}

/// Returns a member that is an object and may contain parameters. Refuses a repeated name, since parsers disagree about
/// which one counts.
fn contained(object: &Object, key: &str) -> Result<Option<Object>, Trouble> {
    if object.repeats(key) {
        let message = format!("`{key}` is there more than once. Send it once.");
        return Err(Trouble::bad_request(message));
    }
    match object.slice(key).filter(|value| value.first() == Some(&b'{')) {
        Some(value) => Object::parse(value)
            .map(Some)
            .map_err(|wrong| Trouble::bad_request(format!("`{key}` cannot be read: {wrong}."))),
        None => Ok(None),
    }
}

pub(super) fn is_param(name: &str) -> bool {
    CLIENT_PARAMS.contains(&name)
}

pub(super) fn is_container(name: &str) -> bool {
    INSIDE.iter().any(|(key, _)| *key == name)
}

/// Returns whether a field contains parameters of [`CLIENT_PARAMS`], or might for a more lenient parser.
pub(super) fn steers(name: &str, value: &[u8]) -> bool {
    match Object::parse(Bytes::copy_from_slice(value)) {
        Ok(object) => {
            let mut paths = INSIDE.iter().filter(|(key, _)| *key == name);
            paths.any(|(_, rest)| !matches!(cleaned(&object, rest), Ok(None)))
        }
        Err(wrong) => may_hide(value, wrong),
    }
}

/// Returns whether a more lenient parser might find an object in a body.
pub(super) fn may_hide(text: &[u8], wrong: NotAnObject) -> bool {
    wrong != NotAnObject::OtherValue && memchr::memchr(b'{', text).is_some()
}
