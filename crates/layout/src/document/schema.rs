//! The JSON Schema of deployment documents, derived from their readers.

use super::Value;
use super::field::{Field, Form, Need};
use super::kinds::KINDS;
use super::read::{Inherited, read_deployment, read_group, read_stage};
use super::reader::Reader;

/// The URL of the schema, which is also its id.
const ID: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/raw/main/docs/src/reference/deployment.schema.json");

/// Returns the [JSON Schema](https://json-schema.org/draft/2020-12) of deployment documents in JSON or TOML, for
/// editors and other tools.
///
/// The functions that read documents define it: on an empty document they request every possible field. So it contains
/// every field with type, bounds, names and default. It cannot express how fields fit together, the syntax of layers
/// and orders, and that 2.0 is not a whole number here. So a document may match the schema and still be faulty. A
/// document that [`Deployment::from_value`](crate::Deployment::from_value) accepts always matches.
///
/// ```
/// let schema = transload_layout::document::json_schema();
/// assert!(serde_json::to_string(&schema).unwrap().contains("sliding_window"));
/// ```
pub fn json_schema() -> Value {
    let group = Reader::requested_by(|reader| read_group(reader, &Inherited::NOTHING));
    let stage = object(&Reader::requested_by(read_stage));
    let mut definitions = vec![("group", object(&group)), ("stage", stage), ("spec", spec())];
    definitions.extend(KINDS.iter().map(|kind| {
        let fields = Reader::requested_by(|reader| kind.read(reader));
        (kind.name, object(&fields))
    }));

    let mut schema = vec![
        ("$schema", text("https://json-schema.org/draft/2020-12/schema")),
        ("$id", text(ID)),
        ("title", text("Transload deployment document")),
        ("description", text("one side of a transfer: its ranks, what each layer caches, and where every byte lies")),
    ];
    schema.extend(object_fields(&Reader::requested_by(read_deployment)));
    schema.push(("$defs", table(definitions)));
    table(schema)
}

/// Returns the schema of a spec, which has the fields of its kind.
///
/// It uses conditions, because validators then name the faulty field, whereas for a `oneOf` most only say that no
/// alternative matches. Some editors take their hints only from alternatives. For these the kinds are listed in an
/// `anyOf` too, together with one alternative that always matches.
fn spec() -> Value {
    let kinds = || KINDS.iter();
    let name =
        [("description", text("what kind of cache this is")), ("enum", list(kinds().map(|kind| text(kind.name))))];
    let fields_of = kinds().map(|kind| {
        let this = table([("const", text(kind.name))]);
        let chosen = table([("properties", table([("kind", this)])), ("required", list([text("kind")]))]);
        table([("if", chosen), ("then", reference(kind.name))])
    });
    let shown = kinds().map(|kind| reference(kind.name));
    table([
        ("type", text("object")),
        ("properties", table([("kind", table(name))])),
        ("required", list([text("kind")])),
        ("allOf", list(fields_of)),
        ("$comment", text("anyOf takes everything; it is for editors that look for hints there")),
        ("anyOf", list(shown.chain([Value::Bool(true)]))),
    ])
}

fn object(fields: &[Field]) -> Value {
    table(object_fields(fields))
}

fn object_fields(fields: &[Field]) -> [(&'static str, Value); 4] {
    let required = fields.iter().filter(|field| matches!(field.need, Need::Required));
    [
        ("type", text("object")),
        ("properties", table(fields.iter().map(|field| (field.key, property(field))))),
        ("required", list(required.map(|field| text(field.key)))),
        ("additionalProperties", Value::Bool(false)),
    ]
}

fn property(field: &Field) -> Value {
    let mut schema = vec![("description", text(field.about))];
    schema.extend(form(field));
    if let Need::Default(default) = &field.need {
        schema.push(("default", default.clone()));
    }
    table(schema)
}

fn form(field: &Field) -> Vec<(&'static str, Value)> {
    match &field.form {
        Form::Text => vec![("type", text("string"))],
        Form::Constant(constant) => vec![("const", text(constant))],
        Form::Name(names) => vec![("enum", list(names.iter().map(|name| text(name))))],
        Form::Flag => vec![("type", text("boolean"))],
        Form::Number(bounds) => whole_number(*bounds.start(), *bounds.end()).into(),
        Form::Numbers(bounds) => vec![
            ("type", text("array")),
            ("items", table(whole_number(*bounds.start(), *bounds.end()))),
            ("minItems", Value::Integer(1)),
        ],
        Form::Order => {
            let indices = [
                ("type", text("array")),
                ("items", table(whole_number(0, 4))),
                ("minItems", Value::Integer(5)),
                ("maxItems", Value::Integer(5)),
                ("uniqueItems", Value::Bool(true)),
            ];
            let forms = [table([("type", text("string"))]), table(indices)];
            vec![("anyOf", list(forms))]
        }
        // The definition with the field's name describes the tables.
        Form::Tables(most) => vec![
            ("type", text("array")),
            ("items", reference(field.key)),
            ("minItems", Value::Integer(1)),
            ("maxItems", Value::Integer(*most as i128)),
        ],
    }
}

fn whole_number(least: u64, most: u64) -> [(&'static str, Value); 3] {
    [("type", text("integer")), ("minimum", Value::Integer(least.into())), ("maximum", Value::Integer(most.into()))]
}

fn reference(definition: &str) -> Value {
    table([("$ref", text(&format!("#/$defs/{definition}")))])
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::List(items.into_iter().collect())
}

fn table<'k>(fields: impl IntoIterator<Item = (&'k str, Value)>) -> Value {
    let fields = fields.into_iter();
    Value::Table(fields.map(|(key, value)| (key.to_owned(), value)).collect())
}
